// Loading of the kernels, shared by the files that have instances. The top-k they exist for:
// instances.def.
#pragma once

#include <cuda_runtime.h>

#include <mutex>

#include "kernels/cuda/ep/kernels.hpp"

namespace mep::device {

// Loads the kernel, and lowers *ctas to what fits on one multiprocessor.
inline cudaError_t resident_ctas_per_sm(const void* kernel, size_t shared_bytes, int* ctas) {
  cudaFuncAttributes attributes{};
  cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error != cudaSuccess) return error;
  int fit = 0;
  error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, kernel, kEpThreads, shared_bytes);
  if (error == cudaSuccess && fit < *ctas) *ctas = fit;
  return error;
}

// Shared memory beyond the default has to be asked for; never less than an object has asked for already.
inline cudaError_t allow_shared_memory(const void* kernel, size_t bytes) {
  constexpr size_t kDefault = 16 << 10;  // of 48 KiB: the kernels themselves declare up to 29
  if (bytes <= kDefault) return cudaSuccess;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error != cudaSuccess) return error;
  if (static_cast<size_t>(attributes.maxDynamicSharedSizeBytes) >= bytes) return cudaSuccess;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(bytes));
}

// Few tokens are sooner sent by few CTAs.
inline uint32_t useful_ctas(const EpGeometry& g, uint32_t tokens, uint32_t most) {
  constexpr uint32_t kUnitBytes = 512;  // of the wire, about
  constexpr uint32_t kWarps = kEpThreads / 32;
  const uint64_t useful = (uint64_t{tokens} * g.wire_row / kUnitBytes) / kWarps + 1;
  return useful < most ? static_cast<uint32_t>(useful) : most;
}

int load_dispatch_kernels(const EpGeometry& g, int* ctas_per_sm);
int load_combine_kernels(const EpGeometry& g, int* ctas_per_sm);

// High throughput: the halves of a dispatch that `a` has.
struct DispatchArgs;
int launch_throughput(const DispatchArgs& a, uint32_t most_ctas, cudaStream_t stream);
int load_throughput_kernels(const EpGeometry& g, int* ctas_per_sm);

// Through send queues.
struct CombineArgs;
int launch_queued_dispatch(const DispatchArgs& args, const EpQueues& queues, uint32_t most_ctas,
                           cudaStream_t stream);
int launch_queued_combine(const CombineArgs& args, const EpQueues& queues, uint32_t most_ctas,
                          cudaStream_t stream);
template <class Args>
struct Queued;
int launch_queued_throughput(const Queued<DispatchArgs>& a, uint32_t most_ctas,
                             cudaStream_t stream);
int load_queued_throughput_kernels(const EpGeometry& g, int* ctas_per_sm);
int load_queued_dispatch_kernels(const EpGeometry& g, int* ctas_per_sm);
int load_queued_combine_kernels(const EpGeometry& g, int* ctas_per_sm);

}  // namespace mep::device

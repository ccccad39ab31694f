// Loading of the kernels, shared by the files that have instances. The top-k they exist for:
// ep_instances.def.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/ep_kernels.hpp"

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

int load_dispatch_kernels(const EpGeometry& g, int* ctas_per_sm);
int load_combine_kernels(const EpGeometry& g, int* ctas_per_sm);

}  // namespace mep::device

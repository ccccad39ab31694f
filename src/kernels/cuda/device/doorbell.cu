#include "kernels/cuda/device/doorbell.hpp"

#include "kernels/cuda/device/instructions.cuh"
#include "transport/gpu_queue/send_queue.hpp"

namespace mep::device {
namespace {

__global__ void ring_kernel(uint64_t* doorbell, uint64_t value) {
  gpu_queue::SystemMemory::ring(doorbell, value);
}

}  // namespace

int launch_ring(uint64_t* doorbell, uint64_t value, void* stream) {
  launch_kernel(ring_kernel, dim3(1), dim3(1), 0, static_cast<cudaStream_t>(stream), doorbell,
                value);
  return cudaPeekAtLastError();
}

}  // namespace mep::device

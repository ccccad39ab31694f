#include "kernels/cuda/device/losses.hpp"

#include "kernels/cuda/device/instructions.cuh"

namespace mep::device {
namespace {

constexpr uint32_t kThreads = 64;

__global__ void __launch_bounds__(kThreads)
    show_losses_kernel(const __grid_constant__ LossWords words, int32_t* lost) {
  for (uint32_t rank = threadIdx.x; rank < words.ranks; rank += kThreads) {
    const uint64_t gone = load_system(words.gone + rank);
    words.shown[rank] = gone;
    lost[rank] = gone > words.forgotten[rank] ? 1 : 0;
  }
}

__global__ void __launch_bounds__(kThreads)
    forget_losses_kernel(const __grid_constant__ LossWords words) {
  for (uint32_t rank = threadIdx.x; rank < words.ranks; rank += kThreads) {
    words.forgotten[rank] = words.shown[rank];
  }
}

}  // namespace

int launch_show_losses(const LossWords& words, int32_t* lost, void* stream) {
  launch_kernel(show_losses_kernel, dim3(1), dim3(kThreads), 0, static_cast<cudaStream_t>(stream),
                words, lost);
  return cudaPeekAtLastError();
}

int launch_forget_losses(const LossWords& words, void* stream) {
  launch_kernel(forget_losses_kernel, dim3(1), dim3(kThreads), 0, static_cast<cudaStream_t>(stream),
                words);
  return cudaPeekAtLastError();
}

}  // namespace mep::device

// Shared by the tests on GPUs: checks, waits, and which GPU a rank has. Ranks are dealt to all GPUs that CUDA
// shows, rank r to GPU r modulo their number; CUDA_VISIBLE_DEVICES=0 restricts a run to one.
#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "kernels/cuda/device/instructions.cuh"

namespace gpu_test {

constexpr int kSkipped = 77;

inline int& failure_count() {
  static int count = 0;
  return count;
}

#define GPU_CHECK(condition, ...)                                       \
  do {                                                                  \
    if (!(condition)) {                                                 \
      std::printf("FAILED %s:%d %s: ", __FILE__, __LINE__, #condition); \
      std::printf(__VA_ARGS__);                                         \
      std::printf("\n");                                                \
      if (++gpu_test::failure_count() > 20) std::exit(1);               \
    }                                                                   \
  } while (0)

inline void cuda(cudaError_t error, const char* file = __builtin_FILE(),
                 int line = __builtin_LINE()) {
  if (error == cudaSuccess) return;
  std::printf("FAILED %s:%d: CUDA says %s\n", file, line, cudaGetErrorString(error));
  std::exit(1);
}

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline int32_t gpu_count() {
  int count = 0;
  const bool counted = cudaGetDeviceCount(&count) == cudaSuccess;
  (void)cudaGetLastError();
  return counted ? count : 0;
}

inline bool gpu_is_there() {
  const int32_t count = gpu_count();
  if (count == 0) std::printf("no usable GPU: skipped\n");
  return count != 0;
}

inline int32_t gpu_of(uint32_t rank) {
  return static_cast<int32_t>(rank) % gpu_count();
}

// Lets all GPUs read and write each other's memory of cudaMalloc. False: one of them cannot.
inline bool join_gpus() {
  for (int32_t gpu = 0; gpu < gpu_count(); ++gpu) {
    cuda(cudaSetDevice(gpu));
    for (int32_t peer = 0; peer < gpu_count(); ++peer) {
      int reaches = 1;
      if (peer != gpu) cuda(cudaDeviceCanAccessPeer(&reaches, gpu, peer));
      if (reaches == 0) return false;
      if (peer == gpu) continue;
      const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
      if (error != cudaErrorPeerAccessAlreadyEnabled) cuda(error);
      (void)cudaGetLastError();
    }
  }
  return true;
}

// Waits for everything on every GPU that ranks of this process may have.
inline void synchronize_all() {
  int before = 0;
  cuda(cudaGetDevice(&before));
  for (int32_t gpu = 0; gpu < gpu_count(); ++gpu) {
    cuda(cudaSetDevice(gpu));
    cuda(cudaDeviceSynchronize());
  }
  cuda(cudaSetDevice(before));
}

// The time after which an operation ends that a rank does not call. A loaded host takes long for a GPU's threads.
#ifdef MEP_CUDA_ON_HOST
constexpr uint32_t kSoonMs = 3000;
#else
constexpr uint32_t kSoonMs = 500;
#endif

// The reach that MEP_CUDA_REACH asks for; empty: the best that the GPUs can, as for auto.
inline std::string_view asked_reach() {
  const char* const reach = std::getenv("MEP_CUDA_REACH");
  return reach == nullptr || std::string_view(reach) == "auto" ? "" : reach;
}

// A word in pinned memory that a kernel sets.
class Mark {
 public:
  Mark() {
    cuda(cudaHostAlloc(&word_, sizeof *word_, cudaHostAllocMapped | cudaHostAllocPortable));
    *word_ = 0;
  }
  ~Mark() { (void)cudaFreeHost(const_cast<uint32_t*>(word_)); }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  volatile uint32_t* word() const { return word_; }
  // Fails the test when nothing sets it for 20 s.
  void wait() const {
    const double end = now_s() + 20;
    while (*word_ == 0 && now_s() < end) std::this_thread::yield();
    GPU_CHECK(*word_ != 0, "a kernel has not begun");
  }

 private:
  volatile uint32_t* word_ = nullptr;
};

// Sets the mark, then runs for so long.
[[maybe_unused]] static __global__ void busy_for(uint64_t ns, volatile uint32_t* begun) {
  const uint64_t end = mep::device::nanoseconds() + ns;
  *begun = 1;
  while (mep::device::nanoseconds() < end) __nanosleep(1000);
}

}  // namespace gpu_test

// A signal here is what it is in the library: a word stored with release at system scope, and seen by
// polling with a fence behind it.
#include "device/floors.hpp"

namespace mep::perf {
namespace {

constexpr uint64_t kLimitNs = 5'000'000'000;

__device__ uint64_t nanoseconds() {
  uint64_t value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
  return value;
}

__device__ void store_release(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__global__ void ping_pong(PingPong call) {
  const uint64_t limit = nanoseconds() + kLimitNs;
  for (uint32_t round = 1; round <= call.rounds; ++round) {
    const uint64_t value = call.done + round;
    if (call.begins) store_release(call.mine, value);
    uint64_t seen = 0;
    for (uint32_t polls = 1; seen < value; ++polls) {
      asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(call.other) : "memory");
      if (polls % 4096 == 0 && nanoseconds() > limit) {
        *call.is_late = 1;
        return;
      }
    }
    asm volatile("fence.acq_rel.sys;" ::: "memory");
    if (!call.begins) store_release(call.mine, value);
  }
}

__global__ void __launch_bounds__(512) nothing() {}

}  // namespace

cudaError_t launch_ping_pong(const PingPong& call, cudaStream_t stream) {
  ping_pong<<<1, 1, 0, stream>>>(call);
  return cudaGetLastError();
}

cudaError_t launch_nothing(cudaStream_t stream) {
  nothing<<<16, 512, 0, stream>>>();
  return cudaGetLastError();
}

cudaError_t load_floor_kernels() {
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, ping_pong);
  return error == cudaSuccess ? cudaFuncGetAttributes(&attributes, nothing) : error;
}

}  // namespace mep::perf

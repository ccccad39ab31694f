// Waits on a window that lies on the host: CTA 0 waits and tells the other CTAs in memory of the GPU. Reads of a line of
// the host's memory are served one after the other, about 1 us each, so each CTA that looked itself would be that much later.
#pragma once

#include "kernels/cuda/ep/common.cuh"

namespace mep::device {

enum class Relay : uint32_t { kDispatch = 0, kCombine = 1 };

__device__ inline bool has_relay(const EpBase& a) {
  return a.memory.own != a.memory.window && gridDim.x > 1;
}
// This CTA learns from CTA 0.
__device__ inline bool is_told(const EpBase& a) {
  return has_relay(a) && blockIdx.x != 0;
}

// By CTA 0, whose wait ended well in all threads and whose threads have met since they wrote what goes with it. A CTA
// that sees the word sees that too, and what CTA 0 acquired.
__device__ inline void tell_ctas(const EpBase& a, Relay which, uint64_t epoch, uint64_t use) {
  if (threadIdx.x != 0) return;
  __threadfence();
  store_word(&a.state()->relayed[static_cast<uint32_t>(which)], signal_tag(epoch, use));
}

// By all threads of another CTA, which meet at a barrier before they go on; false: CTA 0 gave up. One thread waits, and
// leaves the abort word and the deadline to CTA 0, whose failure stands in the channel and names who was missing. The abort
// word lies on the host: looks of all threads would hold up what CTA 0 waits for.
__device__ inline bool await_cta(const EpBase& a, Relay which, Waiter waiter, uint64_t use) {
  if (threadIdx.x != 0) return true;
  constexpr uint64_t kSecond = 1'000'000'000;
  waiter.abort_word = nullptr;
  if (waiter.deadline != UINT64_MAX)
    waiter.deadline += kSecond;  // there is an end without CTA 0, too
  const uint64_t* word = &a.state()->relayed[static_cast<uint32_t>(which)];
  return await_word(waiter, word, signal_tag(waiter.epoch, use), a.g.sizes.rank) != 0;
}

}  // namespace mep::device

// Both modes of a dispatch through send queues share the launch that packs rows and the body of the kernel that exchanges them.
#pragma once

#include "kernels/cuda/ep/instances.hpp"
#include "kernels/cuda/ep/queued.cuh"
#include "kernels/cuda/ep/receive.cuh"

namespace mep::device {

// By one CTA. post(waiter, use) sends this rank's rows; arrange(waiter, use) places those of all, once their counts are
// here. Both give false after a failure.
template <class Post, class Arrange>
__device__ inline void exchange_rows(const QueuedDispatch& a, Post&& post, Arrange&& arrange) {
  DeviceChannel& channel = a.state()->channel;
  a.read_peers();
  const Waiter waiter(a.memory.control, &channel, static_cast<uint32_t>(EpPhase::kRows));
  const uint64_t use = channel.use + (a.sends != 0 ? 1 : 0);
  if (threadIdx.x == 0 && a.sends == 0 && channel.epoch != waiter.epoch) {
    fail(&channel, waiter.epoch, Cause::kOldEpoch, kNobody, waiter.phase);
  }
  __syncthreads();
  bool good = __syncthreads_and(!has_failed(&channel, waiter.epoch)) != 0;
  test_delay(a, 4);
  if (a.sends != 0) {
    good = __syncthreads_and(good && post(waiter, use)) != 0;
    if (threadIdx.x == 0) commit_dispatch(a, use);
    __syncthreads();
  }
  if (a.arranges == 0) return;
  good = __syncthreads_and(good && await_ranks(a, waiter, a.l.counts_ready, use)) != 0;
  good = good && arrange(waiter, use);
  if (a.receives == 0) return;
  receive_rows(a, waiter, use, good);
}

using PackKernel = void (*)(QueuedDispatch);

// Scales of a record have no gaps: the geometry says so to the kernel.
inline void launch_pack(PackKernel kernel, const QueuedDispatch& a, uint32_t most,
                        cudaStream_t stream) {
  if (a.tokens == 0) return;
  QueuedDispatch packs = a;
  packs.g.scale_group_step = a.g.scale_bytes;
  launch_kernel(kernel, useful_ctas(a.g, a.tokens, most), kEpThreads, 0, stream, packs);
}

}  // namespace mep::device

// Combine through send queues: push, sum.
#include <algorithm>

#include "kernels/cuda/ep_combine.cuh"
#include "kernels/cuda/ep_instances.hpp"
#include "kernels/cuda/ep_queued.cuh"

namespace mep::device {
namespace {

struct QueuedCombine : Queued<CombineArgs> {
  const uint32_t* entries;  // of the rows that came

  __device__ uint8_t* kinds() const { return reinterpret_cast<uint8_t*>(queues.scratch + l.kinds); }
};

// --- Push ---------------------------------------------------------------------------------------------

// Every term by way of the outbox to its place; those for this rank itself stay, or are copied for a later launch.
__device__ inline void post_terms(const QueuedCombine& a, const Waiter& waiter, uint32_t* shared) {
  const uint32_t lane = threadIdx.x % kWarpThreads;
  const uint32_t entry_count = a.g.sizes.max_tokens * a.g.row_k;
  const uint64_t most = (a.l.outbox_bytes - a.l.sent_terms) / a.g.combine_row;
  bool good = true;
  const RowRanges all(a, shared);
  all.for_each([&](const RowOfRange& row) {
    const uint32_t target = row.range % a.g.sizes.ranks;
    if (!good || !in_mask(peer_table().complete, target) || !a.is_live(target)) return;
    const uint64_t index = a.row_index(row.range / a.g.sizes.ranks, row.row);
    const std::byte* y = a.y + index * a.g.combine_row;
    if (target == a.g.sizes.rank) {
      if (a.own_copy != nullptr) {
        copy_row(a.own_copy + index * a.g.combine_row, y, a.g.combine_row, lane);
      }
      return;
    }
    // No peer of this library tells more rows than its tokens can name, or another entry.
    const uint32_t entry = a.entries[index];
    if (entry >= entry_count || row.number >= most) return;
    test_delay_warp(a, 11);
    const uint64_t from = a.l.sent_terms + uint64_t{row.number} * a.g.combine_row;
    copy_row(a.queues.outbox + from, y, a.g.combine_row, lane);
    const auto put = a.queue_to(target, waiter)
                         .put(a.at_peer(a.l.terms + uint64_t{entry} * a.g.combine_row),
                              a.from_outbox(from), a.g.combine_row);
    good = is_done(put, waiter, target);
  });
}

__device__ inline uint64_t output_word(const Waiter& waiter, uint32_t rank) {
  const PeerTable& table = peer_table();
  const CombineWord told =
      in_mask(table.complete, rank) ? CombineWord::kPushed : CombineWord::kNone;
  return signal_tag(waiter.epoch, table.use) | combine_payload(told, table.mark);
}

__device__ inline void tell_outputs(const QueuedCombine& a, const Waiter& waiter) {
  const uint64_t use = peer_table().use;
  if (threadIdx.x == 0) {
    a.tell_self(a.l.combine_ready, use, output_word(waiter, a.g.sizes.rank));
  }
  a.for_live_peers(waiter, [&](uint32_t rank, gpu_queue::QueuePeer<> peer) {
    const auto told =
        peer.signal(a.word_at_peer(a.l.combine_ready, use), output_word(waiter, rank));
    return is_done(told, waiter, rank);
  });
}

__global__ void __launch_bounds__(kEpThreads, 2)
    push_kernel(const __grid_constant__ QueuedCombine a) {
  auto* const first_rows = launched_shared<uint32_t>();
  __shared__ uint8_t kinds[kMaxRanks];
  __shared__ uint32_t shared_last;
  DeviceChannel& channel = a.state()->channel;
  a.read_peers();
  read_dispatch(a);
  const Waiter waiter(a.memory.control, &channel, static_cast<uint32_t>(EpPhase::kOutputs));
  __syncthreads();
  test_delay(a, 7);
  if (a.sends != 0) {
    const bool sound = __syncthreads_and(!has_failed(&channel, waiter.epoch)) != 0;
    if (sound) post_terms(a, waiter, first_rows);
    test_delay(a, 8);
    if (!is_last_of(&channel.ticket[0], gridDim.x, &shared_last)) return;
    if (threadIdx.x == 0) {
      channel.epoch = waiter.epoch;
      channel.seq += 1;
      a.state()->credited = 1;
    }
    if (__syncthreads_and(!has_failed(&channel, waiter.epoch)) != 0) tell_outputs(a, waiter);
  } else if (threadIdx.x == 0 && channel.epoch != waiter.epoch) {
    fail(&channel, waiter.epoch, Cause::kOldEpoch, kNobody, waiter.phase);
  }
  if (a.receives == 0) return;
  const bool good = __syncthreads_and(!has_failed(&channel, waiter.epoch)) != 0;
  if (!good || __syncthreads_and(await_outputs(a, waiter, kinds)) == 0) return;
  for (uint32_t rank = threadIdx.x; rank < a.g.sizes.ranks; rank += kEpThreads) {
    a.kinds()[rank] = kinds[rank];
  }
}

// --- Sum ----------------------------------------------------------------------------------------------

template <class Type>
__global__ void __launch_bounds__(kEpThreads, 2)
    sum_kernel(const __grid_constant__ QueuedCombine a) {
  __shared__ uint8_t kinds[kMaxRanks];
  __shared__ uint32_t shared_last;
  __shared__ uint32_t shared_missing;
  DeviceChannel& channel = a.state()->channel;
  a.read_peers();
  if (threadIdx.x == 0) shared_missing = 0;
  // Nothing here waits, so nothing here fails: the same for all threads.
  const bool here = !has_failed(&channel, a.memory.control->epoch);
  for (uint32_t rank = threadIdx.x; rank < a.g.sizes.ranks; rank += kEpThreads) {
    kinds[rank] = here ? a.kinds()[rank] : 0;
  }
  __syncthreads();
  if (here) {
    sum_tokens<Type, 0, false>(a, kinds, &shared_missing);
  } else {
    clear_tokens<false>(a);
  }
  __syncthreads();
  const bool unusual = !here || shared_missing != 0;
  const Ending ending = take_ticket(&channel.ticket[1], gridDim.x, unusual, false, &shared_last);
  if (ending == Ending::kNotLast) return;
  conclude_combine(a, kinds, ending == Ending::kLastOfFailed);
}

using SumKernel = void (*)(QueuedCombine);

SumKernel select_sum_kernel(const EpSizes& sizes) {
  if (sizes.combine_type == MEP_FLOAT16) return sum_kernel<Float16>;
  if (sizes.combine_type == MEP_FLOAT32) return sum_kernel<Float32>;
  return sum_kernel<Bfloat16>;
}

}  // namespace

int launch_queued_combine(const CombineArgs& args, const EpQueues& queues, uint32_t most_ctas,
                          cudaStream_t stream) {
  const auto* entries = reinterpret_cast<const uint32_t*>(args.memory.window + args.g.entries);
  const QueuedCombine a{make_queued(args, queues), entries};
  const uint32_t most = std::min(most_ctas, kMostBusCtas);
  const cudaError_t error =
      allow_shared_memory(reinterpret_cast<const void*>(push_kernel), range_bytes(a.g));
  if (error != cudaSuccess) return error;
  launch_kernel(push_kernel, a.sends != 0 ? most : 1, kEpThreads, range_bytes(a.g), stream, a);
  if (a.receives != 0) launch_kernel(select_sum_kernel(a.g.sizes), most, kEpThreads, 0, stream, a);
  return cudaPeekAtLastError();
}

int load_queued_combine_kernels(const EpGeometry& g, int* ctas_per_sm) {
  cudaError_t error =
      allow_shared_memory(reinterpret_cast<const void*>(push_kernel), range_bytes(g));
  if (error == cudaSuccess) {
    error = resident_ctas_per_sm(reinterpret_cast<const void*>(push_kernel), range_bytes(g),
                                 ctas_per_sm);
  }
  if (error != cudaSuccess) return error;
  return resident_ctas_per_sm(reinterpret_cast<const void*>(select_sum_kernel(g.sizes)), 0,
                              ctas_per_sm);
}

}  // namespace mep::device

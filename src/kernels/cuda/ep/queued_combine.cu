// Combine where send queues reach some peers, or all: push, sum.
#include <algorithm>

#include "kernels/cuda/ep/combine.cuh"
#include "kernels/cuda/ep/instances.hpp"
#include "kernels/cuda/ep/queued.cuh"

namespace mep::device {
namespace {

struct QueuedCombine : Queued<CombineArgs> {
  const uint32_t* entries;  // of the rows that came

  __device__ uint8_t* kinds() const { return reinterpret_cast<uint8_t*>(queues.scratch + l.kinds); }
};

// --- Push ---------------------------------------------------------------------------------------------

// The caller's values of a row, on their way to the token's rank.
__device__ inline void copy_weights(const QueuedCombine& a, float* to, uint64_t row,
                                    uint32_t lane) {
  const uint32_t top_k = a.g.sizes.top_k;
  for (uint32_t k = lane; k < top_k; k += kWarpThreads) {
    to[k] = a.returned_weights[row * top_k + k];
  }
}

// Terms for this rank itself stay, or are copied for a later launch.
template <bool kThroughput>
__device__ inline void keep_term(const QueuedCombine& a, uint64_t index, uint32_t entry,
                                 uint32_t lane) {
  if (a.own_copy != nullptr) {
    copy_row(a.own_copy + index * a.g.combine_row, a.y + index * a.g.combine_row, a.g.combine_row,
             lane);
  }
  if (!kThroughput || a.returned_weights == nullptr) return;
  auto* weights = reinterpret_cast<float*>(a.queues.inbox + a.l.weights);
  copy_weights(a, weights + uint64_t{entry} * a.g.sizes.top_k, index, lane);
}

// Every term to its place, and what goes back with it: stored there, or by way of the outbox.
template <bool kThroughput>
__device__ inline void post_terms(const QueuedCombine& a, const Waiter& waiter, uint32_t* shared) {
  const uint32_t lane = threadIdx.x % kWarpThreads;
  const uint32_t entry_count = a.g.sizes.max_tokens * a.g.row_k;
  const bool has_weights = kThroughput && a.returned_weights != nullptr;
  bool good = true;
  const RowRanges all(a, shared);
  all.for_each([&](const RowOfRange& row) {
    const uint32_t target = row.range % a.g.sizes.ranks;
    if (!good || !in_mask(peer_table().complete, target) || !a.is_live(target)) return;
    const uint64_t index = a.row_index(row.range / a.g.sizes.ranks, row.row);
    // No peer of this library tells more rows than its tokens can name, or another entry.
    const uint32_t entry = a.entries[index];
    if (entry >= entry_count || row.number >= a.l.most_terms) return;
    if (target == a.g.sizes.rank) return keep_term<kThroughput>(a, index, entry, lane);
    test_delay_warp(a, 11);
    if (std::byte* inbox = a.peer(target); inbox != nullptr) {
      copy_row(inbox + a.l.terms + uint64_t{entry} * a.g.combine_row, a.y + index * a.g.combine_row,
               a.g.combine_row, lane);
      auto* weights = reinterpret_cast<float*>(inbox + a.l.weights);
      if (has_weights) copy_weights(a, weights + uint64_t{entry} * a.g.sizes.top_k, index, lane);
      return;
    }
    const uint64_t from = a.l.sent_terms + uint64_t{row.number} * a.g.combine_row;
    copy_row(a.queues.outbox + from, a.y + index * a.g.combine_row, a.g.combine_row, lane);
    const uint32_t weights_bytes = a.g.sizes.top_k * 4;
    const uint64_t weights_from = a.l.sent_weights + uint64_t{row.number} * weights_bytes;
    if (has_weights) {
      copy_weights(a, reinterpret_cast<float*>(a.queues.outbox + weights_from), index, lane);
    }
    gpu_queue::QueuePeer<> peer = a.queue_to(target, waiter);
    gpu_queue::Request request{};
    if (lane == 0) {
      request = gpu_queue::write(peer.in_window(a.l.terms + uint64_t{entry} * a.g.combine_row),
                                 a.from_outbox(peer, from), a.g.combine_row);
    } else if (lane == 1) {
      request = gpu_queue::write(peer.in_window(a.l.weights + uint64_t{entry} * weights_bytes),
                                 a.from_outbox(peer, weights_from), weights_bytes);
    }
    const bool wants = lane == 0 || (lane == 1 && has_weights);
    good = is_done(peer.post_lanes(wants, request), peer, waiter, target);
  });
}

__device__ inline CombineWord output_kind(uint32_t rank) {
  return in_mask(peer_table().complete, rank) ? CombineWord::kPushed : CombineWord::kNone;
}
__device__ inline uint64_t output_word(const Waiter& waiter, uint32_t rank) {
  const PeerTable& table = peer_table();
  return signal_tag(waiter.epoch, table.use) | combine_payload(output_kind(rank), table.mark);
}

// The queue keeps the order: the mark of the values that went back is seen before the word.
template <bool kThroughput>
__device__ inline void tell_outputs(const QueuedCombine& a, const Waiter& waiter) {
  const uint64_t use = peer_table().use;
  const uint32_t rank_here = a.g.sizes.rank;
  const auto marks = [&](uint32_t rank) {
    return kThroughput && a.returned_weights != nullptr && output_kind(rank) != CombineWord::kNone;
  };
  a.tell_stored(
      a.l.combine_ready, use, [&](uint32_t rank) { return output_word(waiter, rank); },
      [&](uint32_t rank, std::byte* inbox) {
        if (marks(rank)) *a.weights_mark(inbox, rank_here) = peer_table().mark;
      });
  const uint32_t lane = threadIdx.x % kWarpThreads;
  a.for_queued_peers(waiter, [&](uint32_t rank, gpu_queue::QueuePeer<> peer) {
    gpu_queue::Request request{};
    if (lane == 0) {
      request = gpu_queue::write_word(peer.in_window(a.l.weights_marks + uint64_t{rank_here} * 8),
                                      peer_table().mark);
    } else if (lane == 1) {
      request = gpu_queue::write_word(a.word_at_peer(peer, a.l.combine_ready, use),
                                      output_word(waiter, rank));
    }
    const bool wants = lane == 0 ? marks(rank) : lane == 1;
    return is_done(peer.post_lanes(wants, request), peer, waiter, rank);
  });
}

template <bool kThroughput>
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
    if (sound) post_terms<kThroughput>(a, waiter, first_rows);
    test_delay(a, 8);
    if (!is_last_of(&channel.ticket[0], gridDim.x, &shared_last)) return;
    if (threadIdx.x == 0) {
      channel.epoch = waiter.epoch;
      channel.seq += 1;
      a.state()->credited = 1;
    }
    if (__syncthreads_and(!has_failed(&channel, waiter.epoch)) != 0) {
      tell_outputs<kThroughput>(a, waiter);
    }
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

template <class Type, bool kThroughput>
__global__ void __launch_bounds__(kEpThreads, 2)
    sum_kernel(const __grid_constant__ QueuedCombine a) {
  __shared__ uint8_t kinds[kMaxRanks];
  __shared__ uint32_t shared_last;
  __shared__ uint32_t shared_missing;
  DeviceChannel& channel = a.state()->channel;
  a.read_peers();
  if (kThroughput) read_dispatch(a);
  if (threadIdx.x == 0) shared_missing = 0;
  // Nothing here waits, so nothing here fails: the same for all threads.
  const bool here = !has_failed(&channel, a.memory.control->epoch);
  for (uint32_t rank = threadIdx.x; rank < a.g.sizes.ranks; rank += kEpThreads) {
    kinds[rank] = here ? a.kinds()[rank] : 0;
  }
  __syncthreads();
  if (here) {
    sum_tokens<Type, 0, kThroughput>(a, kinds, &shared_missing);
    if constexpr (kThroughput) {
      if (a.out_weights != nullptr) sum_weights(a, kinds);
    }
  } else {
    clear_tokens<kThroughput>(a);
  }
  __syncthreads();
  const bool unusual = !here || shared_missing != 0;
  const Ending ending = take_ticket(&channel.ticket[1], gridDim.x, unusual, false, &shared_last);
  if (ending == Ending::kNotLast) return;
  conclude_combine(a, kinds, ending == Ending::kLastOfFailed);
}

using CombineKernel = void (*)(QueuedCombine);

template <bool kThroughput>
CombineKernel sum_kernel_for(const EpSizes& sizes) {
  if (sizes.combine_type == MEP_FLOAT16) return sum_kernel<Float16, kThroughput>;
  if (sizes.combine_type == MEP_FLOAT32) return sum_kernel<Float32, kThroughput>;
  return sum_kernel<Bfloat16, kThroughput>;
}

CombineKernel select_sum_kernel(const EpSizes& sizes) {
  return sizes.high_throughput != 0 ? sum_kernel_for<true>(sizes) : sum_kernel_for<false>(sizes);
}

CombineKernel select_push_kernel(const EpSizes& sizes) {
  return sizes.high_throughput != 0 ? push_kernel<true> : push_kernel<false>;
}

}  // namespace

int launch_queued_combine(const CombineArgs& args, const EpQueues& queues, uint32_t most_ctas,
                          cudaStream_t stream) {
  const auto* entries = reinterpret_cast<const uint32_t*>(args.memory.window + args.g.entries);
  const QueuedCombine a{make_queued(args, queues), entries};
  const uint32_t most = std::min(most_ctas, kMostBusCtas);
  const CombineKernel push = select_push_kernel(a.g.sizes);
  const cudaError_t error =
      allow_shared_memory(reinterpret_cast<const void*>(push), range_bytes(a.g));
  if (error != cudaSuccess) return error;
  launch_kernel(push, a.sends != 0 ? most : 1, kEpThreads, range_bytes(a.g), stream, a);
  if (a.receives != 0) launch_kernel(select_sum_kernel(a.g.sizes), most, kEpThreads, 0, stream, a);
  return cudaPeekAtLastError();
}

int load_queued_combine_kernels(const EpGeometry& g, int* ctas_per_sm) {
  const auto* push = reinterpret_cast<const void*>(select_push_kernel(g.sizes));
  cudaError_t error = allow_shared_memory(push, range_bytes(g));
  if (error == cudaSuccess) error = resident_ctas_per_sm(push, range_bytes(g), ctas_per_sm);
  if (error != cudaSuccess) return error;
  return resident_ctas_per_sm(reinterpret_cast<const void*>(select_sum_kernel(g.sizes)), 0,
                              ctas_per_sm);
}

}  // namespace mep::device

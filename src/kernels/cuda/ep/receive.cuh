// Dispatch, the receiver's side: waits until every source's rows lie here, then says what came. One CTA.
// When the operation failed nothing is said to have come.
#pragma once

#include "kernels/cuda/ep/common.cuh"

namespace mep::device {

// Until the words of all ranks at `block` carry the use; each is given to keep(source, word), 0 for a rank that is not there.
template <class Args, class Keep>
__device__ inline bool await_ranks(const Args& a, const Waiter& waiter, uint64_t block,
                                   uint64_t use, Keep&& keep) {
  const uint64_t tag = signal_tag(waiter.epoch, use);
  for (uint32_t source = threadIdx.x; source < a.g.sizes.ranks; source += kEpThreads) {
    uint64_t word = 0;
    if (a.is_live(source)) {
      word = await_word(waiter, a.rank_word(a.written_by(source), block, use, source), tag, source);
      if (word == 0) return false;
    }
    keep(source, word);
  }
  return true;
}
template <class Args>
__device__ inline bool await_ranks(const Args& a, const Waiter& waiter, uint64_t block,
                                   uint64_t use) {
  return await_ranks(a, waiter, block, use, [](uint32_t, uint64_t) {});
}

// Until the rows of all ranks are here.
template <class Args>
__device__ inline bool await_rows(const Args& a, const Waiter& waiter, uint64_t use) {
  if (a.g.sizes.by_token == 0) return await_ranks(a, waiter, a.g.rows_ready, use);
  return await_ranks(a, waiter, a.g.rows_ready, use, [&](uint32_t source, uint64_t word) {
    const uint32_t tokens = word == 0 ? 0 : signal_payload(word);
    a.template local<uint32_t>(a.g.tokens_of)[source] = min(tokens, a.g.sizes.max_tokens);
  });
}

// Until all ranks have given the rows of the last use back, where no counts of this one say so.
template <class Args>
__device__ inline bool await_given_back(const Args& a, const Waiter& waiter, uint64_t use) {
  if (use - 1 == 0 && a.state()->carries == 0) return true;
  return await_ranks(a, waiter, a.g.combine_ready, use - 1);
}

// How many rows each source has for each expert, into the ranges.
__device__ inline bool read_counts(const DispatchArgs& a, const Waiter& waiter, uint64_t use) {
  const uint32_t ranks = a.g.sizes.ranks;
  const uint64_t tag = signal_tag(waiter.epoch, use);
  for (uint32_t i = threadIdx.x; i < a.g.sizes.local_experts * ranks; i += kEpThreads) {
    const uint32_t source = i % ranks;
    const uint32_t place = a.g.sizes.rank * a.g.sizes.local_experts + i / ranks;
    uint64_t word = 0;
    if (a.is_live(source)) {
      const uint64_t* at = a.count_word(a.memory.window, use, source, place);
      word = await_word<load_word>(waiter, at, tag, source);
      if (word == 0) return false;
      if (signal_payload(word) > a.g.sizes.max_tokens) {
        refuse_bytes(waiter, source);
        return false;
      }
    }
    a.local<int64_t>(a.g.layout_range)[i] = signal_payload(word);
  }
  return true;
}

// Each expert's ranges by source, from their counts.
__device__ inline void arrange_rows(const DispatchArgs& a, Arrived* arrived) {
  const uint32_t ranks = a.g.sizes.ranks;
  for (uint32_t expert = threadIdx.x; expert < a.g.sizes.local_experts; expert += kEpThreads) {
    int64_t* ranges = a.local<int64_t>(a.g.layout_range) + uint64_t{expert} * ranks;
    uint32_t begin = 0;
    uint32_t total = 0;
    uint32_t end = 0;
#pragma unroll 8
    for (uint32_t source = 0; source < ranks; ++source) {
      if (a.g.sizes.slotted != 0) begin = source * a.g.sizes.max_tokens;
      const auto count = static_cast<uint32_t>(ranges[source]);
      ranges[source] = static_cast<int64_t>(uint64_t{begin} << 32 | count);
      begin += count;
      total += count;
      if (count != 0) end = begin;
    }
    a.local<int32_t>(a.g.recv_count)[expert] = static_cast<int32_t>(total);
    atomicAdd(&arrived->total, static_cast<unsigned long long>(total));
    if (end != 0) {
      atomicMax(&arrived->rows_needed, static_cast<unsigned long long>(a.row_index(expert, end)));
    }
  }
}

__device__ inline void receive_nothing(const DispatchArgs& a) {
  const uint32_t experts = a.g.sizes.local_experts;
  for (uint32_t i = threadIdx.x; i < experts; i += kEpThreads) {
    a.local<int32_t>(a.g.recv_count)[i] = 0;
    a.local<int32_t>(a.g.expert_rows)[i] = 0;
  }
  for (uint32_t i = threadIdx.x; i < a.g.columns; i += kEpThreads) {
    a.local<int64_t>(a.g.layout_range)[i] = 0;
  }
  if (a.g.sizes.by_token == 0) return;
  for (uint32_t i = threadIdx.x; i < a.g.sizes.ranks; i += kEpThreads) {
    a.local<uint32_t>(a.g.tokens_of)[i] = 0;
  }
}

// Delivers to the caller what came. The ranges are final only with the kernel.
__device__ inline void deliver(const DispatchArgs& a) {
  const uint32_t experts = a.g.sizes.local_experts;
  for (uint32_t i = threadIdx.x; i < experts; i += kEpThreads) {
    const int32_t count = a.local<int32_t>(a.g.recv_count)[i];
    for (int32_t* counts : a.recv_count) {
      if (counts != nullptr) counts[i] = count;
    }
  }
  for (int64_t* ranges : a.layout_range) {
    if (ranges == nullptr) continue;
    for (uint32_t i = threadIdx.x; i < a.g.columns; i += kEpThreads) {
      ranges[i] = a.local<int64_t>(a.g.layout_range)[i];
    }
  }
}

// By one CTA. read: the counts, into the ranges; false: a wait for them did not end well.
template <class Read>
__device__ inline bool arrange_by(const DispatchArgs& a, Read&& read) {
  Arrived& arrived = a.state()->arrived;
  if (threadIdx.x == 0) arrived = {};
  __syncthreads();
  const bool known = __syncthreads_and(read()) != 0;
  if (!known) return false;
  arrange_rows(a, &arrived);
  __syncthreads();
  deliver(a);
  return true;
}
// Called when the counts are here: packed, while rows are still on their way.
__device__ inline bool arrange(const DispatchArgs& a, const Waiter& waiter, uint64_t use) {
  return arrange_by(a, [&] { return read_counts(a, waiter, use); });
}

// The end of an operation, by one CTA. here: all counts were arranged; false: something failed.
template <class Args>
__device__ inline void receive_rows(const Args& a, const Waiter& waiter, uint64_t use, bool here) {
  // The operation's status is known: it is read while rows are waited for, not after it. In shared memory,
  // since what is kept in registers across a wait may be put into local memory.
  __shared__ Arrived all_arrived;
  __shared__ OpEnd end;
  EpState& state = *a.state();
  if (threadIdx.x == 0) {
    all_arrived = state.arrived;
    end = {waiter.epoch, state.channel.seq, state.op_bad_entries};
  }
  here = here && await_rows(a, waiter, use);
  here = __syncthreads_and(here) != 0;
  trace_last(a, 7);
  if (!here) {
    receive_nothing(a);
    __syncthreads();
    deliver(a);
  } else if (a.statistics != nullptr) {
    for (uint32_t i = threadIdx.x; i < a.g.sizes.local_experts; i += kEpThreads) {
      a.statistics[i] += a.template local<int32_t>(a.g.expert_rows)[i];
    }
  }
  if (threadIdx.x != 0) return;
  uint64_t complete[kMaskWords];
#pragma unroll
  for (uint32_t word = 0; word < kMaskWords; ++word) {
    complete[word] = here ? peer_table().live[word] : 0;
    state.complete[word] = complete[word];
  }
  const Arrived arrived = here ? all_arrived : Arrived{};
  mep_result_t result = here ? mep_result_t{MEP_SUCCESS} : failure_result(state.channel);
  if (here && a.recv_x != nullptr && arrived.rows_needed > a.recv_rows) result = MEP_ERR_CAPACITY;
  state.rows_refused = result == MEP_SUCCESS ? 0 : 1;
  if (a.recv_total != nullptr) *a.recv_total = static_cast<int64_t>(arrived.total);
  fill_status(a, a.op_status, result, complete, end);
}

// Receives what an earlier kernel sent, by one CTA. arrange_counts: arrange(), or that of the other mode.
template <class Arrange>
__device__ inline void receive_alone(const DispatchArgs& a, Arrange&& arrange_counts) {
  a.read_peers();
  test_delay(a, 6);
  DeviceChannel& channel = a.state()->channel;
  const Waiter waiter(a.memory.control, &channel, static_cast<uint32_t>(EpPhase::kRows));
  if (threadIdx.x == 0 && channel.epoch != waiter.epoch) {
    fail(&channel, waiter.epoch, Cause::kOldEpoch, kNobody, waiter.phase);
  }
  __syncthreads();
  bool here = !has_failed(&channel, waiter.epoch);
  here = __syncthreads_and(here) != 0 && arrange_counts(a, waiter, channel.use);
  receive_rows(a, waiter, channel.use, here);
}

// --- Into the caller's memory -------------------------------------------------------------------------

// Where a row goes: to the caller, or to views that do not lie in the window.
struct RowCopy {
  std::byte* x;
  std::byte* scales;
  uint64_t scale_row_step, scale_expert_step;

  // refused: the caller has no room for the rows.
  __device__ RowCopy(const DispatchArgs& a, bool refused)
      : x(a.recv_x),
        scales(a.recv_scales),
        scale_row_step(a.recv_scales_row_step),
        scale_expert_step(a.recv_scales_expert_step) {
    if (a.has_rows == 0) {
      x = scales = nullptr;
      return;
    }
    const bool has_views = a.has_views() || a.g.sizes.by_token != 0;
    if (refused || x == nullptr) x = has_views ? a.memory.own + a.g.recv_x : nullptr;
    if (a.g.groups == 0 || (scales != nullptr && !refused)) return;
    scales = has_views ? a.memory.own + a.g.scales : nullptr;
    scale_row_step = a.g.scale_row_step;
    scale_expert_step = a.g.scale_expert_step;
  }
};

// rows: memory.own for those of this rank itself.
__device__ inline void copy_row_out(const DispatchArgs& a, const RowCopy& to, bool is_own,
                                    const RowOfRange& row, uint32_t lane) {
  std::byte* rows = is_own ? a.memory.own : a.memory.window;
  const uint32_t group = row.range / a.g.sizes.ranks;
  const uint64_t index = a.row_index(group, row.row);
  const std::byte* x = rows + a.g.recv_x;
  const bool is_there = is_own && a.keeps_own == 0;
  if (to.x != nullptr && to.x != x && !is_there) {
    copy_row(to.x + index * a.g.wire_row, x + index * a.g.wire_row, a.g.wire_row, lane);
  }
  copy_beside(a, a.src_info, a.g.src_info, index, 1, lane);
  if (a.g.sizes.high_throughput != 0) {
    copy_beside(a, a.recv_topk_idx, a.g.topk_idx, index, a.g.sizes.top_k, lane);
    copy_beside(a, a.recv_topk_weights, a.g.topk_weights, index, a.g.sizes.top_k, lane);
  }
  if (to.scales == nullptr || to.scales == rows + a.g.scales) return;
  if (is_there && a.recv_scales != nullptr) return;
  const std::byte* from = a.scales_of(rows + a.g.scales, group, row.row);
  std::byte* scales = to.scales + group * to.scale_expert_step + row.row * to.scale_row_step;
  copy_scales(a.g, scales, a.g.scale_group_step, from, a.g.scale_group_step, lane);
}

// Only rows that came.
static __global__ void __launch_bounds__(kEpThreads, 2)
    copy_out_kernel(const __grid_constant__ DispatchArgs a) {
  auto* const first_rows = launched_shared<uint32_t>();
  const bool refused = a.state()->rows_refused != 0;
  if (refused && !a.has_views()) return;
  const RowCopy to(a, refused);
  RowRanges(a, first_rows).for_each([&](const RowOfRange& row) {
    const bool is_own = row.range % a.g.sizes.ranks == a.g.sizes.rank;
    copy_row_out(a, to, is_own, row, threadIdx.x % kWarpThreads);
  });
}

}  // namespace mep::device

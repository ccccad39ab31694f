// High throughput, the rows: each warp takes consecutive units of this rank's tokens, lists the token's rows on its
// ranks, and writes them there, quantised on the way if the wire wants it. The warp with a token's first unit also
// writes what goes with its rows. The last CTA tells every rank.
#pragma once

#include "kernels/cuda/ep/codec.cuh"
#include "kernels/cuda/ep/relay.cuh"
#include "kernels/cuda/ep/throughput_layout.cuh"

namespace mep::device {

// A token's rows, in shared memory of a warp.
struct TokenRows {
  RowTarget targets[kMaxEpTopK];
  uint32_t ranks[kMaxEpTopK];
  uint32_t rows[kMaxEpTopK];
};

// The row of `token` at `rank`, which its bit in the chunk's mask says it has.
__device__ inline uint32_t throughput_row(const DispatchArgs& a, uint32_t token, uint32_t rank) {
  const uint64_t at = uint64_t{token / kChunkTokens} * a.g.sizes.ranks + rank;
  const uint32_t below = (1u << token % kChunkTokens) - 1;
  const uint32_t mask = a.local<uint32_t>(a.g.masks)[at];
  return a.of_handle<uint32_t>(a.g.handle_first)[rank] + a.local<uint32_t>(a.g.chunk_first)[at] +
         static_cast<uint32_t>(__popc(mask & below));
}

// Where a row of this rank is written, and what goes with it: entry, token, K experts, K weights.
struct RowHome {
  RowTarget target;
  uint32_t* entry;
  uint32_t* token;
  int32_t* experts;
  float* weights;
};
__device__ inline RowHome row_home(const DispatchArgs& a, uint32_t rank, uint32_t row) {
  std::byte* window = a.peer(rank);
  const bool is_own = rank == a.g.sizes.rank;
  std::byte* kept = is_own ? a.memory.own : window;
  RowTarget target{kept + a.g.recv_x + uint64_t{row} * a.g.wire_row,
                   a.scales_of(kept + a.g.scales, 0, row)};
  if (is_own && a.keeps_own == 0 && row < a.recv_rows) {
    target.row = a.recv_x + uint64_t{row} * a.g.wire_row;
    if (a.recv_scales != nullptr) target.scales = a.recv_scales + row * a.recv_scales_row_step;
  }
  const uint64_t values = uint64_t{row} * a.g.sizes.top_k;
  return {target, reinterpret_cast<uint32_t*>(window + a.g.entries) + row,
          reinterpret_cast<uint32_t*>(window + a.g.src_info) + row,
          reinterpret_cast<int32_t*>(window + a.g.topk_idx) + values,
          reinterpret_cast<float*>(window + a.g.topk_weights) + values};
}

// Lists the token's rows on ranks that are in the comm; returns how many there are. tells: this warp has the token's
// first unit. Args: row_home() is that of its rows.
template <class Args>
__device__ inline uint32_t list_rows(const Args& args, uint32_t token, bool tells, uint32_t lane,
                                     TokenRows* out) {
  const DispatchArgs& a = args;
  uint32_t count = 0;
  for (uint32_t base = 0; base < a.g.row_k; base += kWarpThreads) {
    const uint32_t j = base + lane;
    const uint32_t entry = token * a.g.row_k + j;
    int32_t place = -1;
    if (j < a.g.row_k) place = a.of_handle<int32_t>(a.g.handle_places)[entry];
    const auto rank = static_cast<uint32_t>(place);
    uint32_t row = kRowNotSent;
    if (place >= 0 && a.is_live(rank)) {
      row = a.replays != 0 ? a.of_handle<uint32_t>(a.g.handle_rows)[entry]
                           : throughput_row(a, token, rank);
    }
    if (tells && a.replays == 0 && j < a.g.row_k) {
      a.of_handle<uint32_t>(a.g.handle_rows)[entry] = row;
    }
    const uint32_t here = __ballot_sync(0xffffffffu, row != kRowNotSent);
    if (row != kRowNotSent) {
      const uint32_t slot = count + static_cast<uint32_t>(__popc(here & ((1u << lane) - 1)));
      const RowHome home = row_home(args, rank, row);
      out->targets[slot] = home.target;
      out->ranks[slot] = rank;
      out->rows[slot] = row;
      if (tells) {
        *home.entry = entry;
        *home.token = token;
      }
    }
    count += static_cast<uint32_t>(__popc(here));
  }
  __syncwarp();
  return count;
}

// With each row its local experts and their weights.
template <class Args>
__device__ inline void send_topk(const Args& args, uint32_t token, uint32_t lane,
                                 const TokenRows& rows, uint32_t count) {
  const DispatchArgs& a = args;
  const uint32_t top_k = a.g.sizes.top_k;
  const int32_t* places = a.of_handle<int32_t>(a.g.handle_experts) + uint64_t{token} * top_k;
  const float* weights = a.of_handle<float>(a.g.handle_weights) + uint64_t{token} * top_k;
  const bool has_weights = a.head()->has_weights != 0;
  for (uint32_t i = lane; i < count * top_k; i += kWarpThreads) {
    const uint32_t slot = i / top_k;
    const uint32_t k = i - slot * top_k;
    const uint32_t rank = rows.ranks[slot];
    const int32_t first = static_cast<int32_t>(rank * a.g.sizes.local_experts);
    const int32_t place = places[k];
    const bool is_there =
        place >= first && place < first + static_cast<int32_t>(a.g.sizes.local_experts);
    const float weight = has_weights ? weights[k] : 1;
    const RowHome home = row_home(args, rank, rows.rows[slot]);
    home.experts[k] = is_there ? place - first : -1;
    home.weights[k] = is_there ? weight : 0;
  }
}

template <class Codec, class Args>
__device__ inline void send_throughput_rows(const Args& args) {
  const DispatchArgs& a = args;
  __shared__ TokenRows lists[kEpWarps];
  constexpr uint32_t kAtOnce = 4;  // units whose loads are under way together
  const typename Codec::Source source(a);
  const uint32_t lane = threadIdx.x % kWarpThreads;
  TokenRows& rows = lists[threadIdx.x / kWarpThreads];
  // Without rows a token's one unit is what goes with them.
  const uint32_t units = a.has_rows != 0 ? Codec::units(a.g) : 1;
  const uint64_t total = uint64_t{a.tokens} * units;
  const uint64_t warps = uint64_t{gridDim.x} * kEpWarps;
  const uint64_t index = uint64_t{threadIdx.x / kWarpThreads} * gridDim.x + blockIdx.x;
  uint64_t at = total * index / warps;
  const uint64_t end = total * (index + 1) / warps;
  auto token = static_cast<uint32_t>(at / units);
  auto unit = static_cast<uint32_t>(at - uint64_t{token} * units);
  for (; at < end; ++token, unit = 0) {
    test_delay_warp(a, 10);
    const uint32_t count = list_rows(args, token, unit == 0, lane, &rows);
    if (unit == 0) send_topk(args, token, lane, rows, count);
    const auto last = static_cast<uint32_t>(min(uint64_t{units}, unit + (end - at)));
    at += last - unit;
    for (; a.has_rows != 0 && unit < last; unit += kAtOnce) {
      typename Codec::Values values[kAtOnce];
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        if (unit + i < last) Codec::load(source, token, unit + i, lane, &values[i]);
      }
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        if (unit + i >= last) break;
        Codec::template send<0>(source, token, unit + i, lane, values[i], rows.targets, count,
                                nullptr);
      }
    }
    __syncwarp();
  }
}

// By one CTA: what the layout's kernel does for other dispatches.
__device__ inline void begin_replay(const DispatchArgs& a, uint64_t epoch, uint64_t use) {
  if (threadIdx.x != 0) return;
  EpState& state = *a.state();
  state.channel.epoch = epoch;
  atomicAdd(reinterpret_cast<unsigned long long*>(&state.channel.seq), 1ull);
  state.dispatch_epoch = epoch;
  a.head()->mark = dispatch_mark(epoch, use);
}

__device__ inline void announce_throughput_rows(const DispatchArgs& a, uint64_t epoch,
                                                uint64_t use) {
  if (a.replays != 0) tell_counts(a, epoch, use);
  const uint64_t tag = signal_tag(epoch, use);
  for (uint32_t rank = threadIdx.x; rank < a.g.sizes.ranks; rank += kEpThreads) {
    if (!a.is_live(rank)) continue;
    store_word_release(a.rank_word(a.peer(rank), a.g.rows_ready, use, a.g.sizes.rank), tag);
  }
}

template <class Codec>
__global__ void __launch_bounds__(kEpThreads, 2)
    throughput_rows_kernel(const __grid_constant__ DispatchArgs a) {
  __shared__ uint32_t shared_last;
  DeviceChannel& channel = a.state()->channel;
  a.read_peers();
  const Waiter waiter(a.memory.control, &channel, static_cast<uint32_t>(EpPhase::kFreeRows));
  if (threadIdx.x == 0) {
    peer_table().use = channel.use + 1;
    peer_table().credited = a.state()->credited != 0;
    if (a.replays != 0 && a.head()->epoch != waiter.epoch) {
      fail(&channel, waiter.epoch, Cause::kOldEpoch, kNobody, waiter.phase);
    }
  }
  __syncthreads();
  bool ready = !has_failed(&channel, waiter.epoch);
  const uint64_t use = peer_table().use;
  trace(a, 0);
  test_delay(a, 4);
  if (a.replays != 0) {
    if (blockIdx.x == 0) {
      if (ready) give_back_unused(a, waiter.epoch, use - 1);
      begin_replay(a, waiter.epoch, use);
    }
    if (ready) {
      ready = is_told(a) ? await_cta(a, Relay::kDispatch, waiter, use)
                         : await_given_back(a, waiter, use);
    }
  }
  ready = __syncthreads_and(ready) != 0;
  if (ready && a.replays != 0 && has_relay(a) && blockIdx.x == 0) {
    tell_ctas(a, Relay::kDispatch, waiter.epoch, use);
  }
  trace(a, 2);
  if (ready) send_throughput_rows<Codec>(a);
  trace(a, 4);
  const Ending ending = take_ticket(&channel.ticket[1], gridDim.x, !ready, true, &shared_last);
  if (ending == Ending::kNotLast) return;
  trace_last(a, 5);
  test_delay(a, 5);
  if (ending == Ending::kLast) announce_throughput_rows(a, waiter.epoch, use);
  if (threadIdx.x == 0) commit_dispatch(a, use);
  trace_last(a, 6);
  if (a.receives == 0) return;
  __syncthreads();
  bool here = ending == Ending::kLast;
  const Waiter receiver(a.memory.control, &channel, static_cast<uint32_t>(EpPhase::kRows));
  if (here && a.replays != 0) here = arrange_throughput(a, receiver, use);
  if (here && a.is_arranged != 0) deliver(a);
  receive_rows(a, receiver, use, here);
  trace_last(a, 8);
}

}  // namespace mep::device

// Dispatch, one launch for the send phase: once a rank knows everybody's counts it knows where each of its
// rows ends up, and writes it there, quantised on the way if the wire wants it. The last CTA tells every
// rank.
//
// Work is split among warps in units of one token's consecutive values, so that few tokens fill many
// processors too. A warp reads the next unit before it writes the last one, and the first before it
// waits for anything.
#pragma once

#include "kernels/cuda/ep_convert.cuh"
#include "kernels/cuda/ep_count.cuh"
#include "kernels/cuda/ep_receive.cuh"

namespace mep::device {

// Where one copy of a token's row goes.
struct RowTarget {
  std::byte* row;
  std::byte* scales;
};

// --- Codecs: one warp's unit from the caller's row to every target --------------------------------------

template <int kTopK, class Store>
__device__ inline void for_each_target(const RowTarget* targets, uint32_t count, Store&& store) {
  if constexpr (kTopK != 0) {
#pragma unroll
    for (int k = 0; k < kTopK; ++k) {
      const RowTarget target = targets[k];
      if (target.row != nullptr) store(target);
    }
  } else {
    for (uint32_t k = 0; k < count; ++k) {
      const RowTarget target = targets[k];
      if (target.row != nullptr) store(target);
    }
  }
}

// The wire has the type of x.
struct CopyCodec {
  static constexpr uint32_t kUnitBytes = kWarpThreads * 16;
  struct Values {
    uint4 bits;
  };
  static __host__ __device__ uint32_t units(const EpGeometry& g) {
    return (g.wire_row + kUnitBytes - 1) / kUnitBytes;
  }
  static __device__ void load(const DispatchArgs& a, uint32_t token, uint32_t unit, uint32_t lane,
                              Values* values) {
    const uint32_t offset = unit * kUnitBytes + lane * 16;
    if (offset < a.g.wire_row) values->bits = load_once(a.x + token * a.x_stride + offset);
  }
  template <int kTopK>
  static __device__ void send(const DispatchArgs& a, uint32_t token, uint32_t unit, uint32_t lane,
                              const Values& values, const RowTarget* targets, uint32_t count) {
    if (unit == 0 && a.g.groups != 0) send_scales<kTopK>(a, token, lane, targets, count);
    const uint32_t offset = unit * kUnitBytes + lane * 16;
    if (offset >= a.g.wire_row) return;
    for_each_target<kTopK>(targets, count, [&](const RowTarget& target) {
      *reinterpret_cast<uint4*>(target.row + offset) = values.bits;
    });
  }
  template <int kTopK>
  static __device__ void send_scales(const DispatchArgs& a, uint32_t token, uint32_t lane,
                                     const RowTarget* targets, uint32_t count) {
    const std::byte* scales = a.x_scales + token * a.x_scales_stride;
    for (uint32_t group = lane; group < a.g.groups; group += kWarpThreads) {
      const uint64_t to = group * a.g.scale_group_step;
      if (a.g.scale_bytes == 4) {
        const uint32_t scale = reinterpret_cast<const uint32_t*>(scales)[group];
        for_each_target<kTopK>(targets, count, [&](const RowTarget& target) {
          *reinterpret_cast<uint32_t*>(target.scales + to) = scale;
        });
      } else {
        const std::byte scale = scales[group];
        for_each_target<kTopK>(targets, count,
                               [&](const RowTarget& target) { target.scales[to] = scale; });
      }
    }
  }
};

// e4m3 on the wire. A lane has sixteen values, eight lanes one group of 128.
template <class Input, class Scale>
struct QuantizeCodec {
  static constexpr uint32_t kValues = 16;
  static constexpr uint32_t kGroupLanes = kScaleValues / kValues;
  static constexpr uint32_t kLoads = kValues / Input::kLanes;
  struct Values {
    uint4 bits[kLoads];
  };
  static __host__ __device__ uint32_t units(const EpGeometry& g) {
    return (g.sizes.hidden + kWarpThreads * kValues - 1) / (kWarpThreads * kValues);
  }
  static __device__ void load(const DispatchArgs& a, uint32_t token, uint32_t unit, uint32_t lane,
                              Values* values) {
    const uint32_t first = (unit * kWarpThreads + lane) * kValues;
    const std::byte* from = a.x + token * a.x_stride + first * Input::kBytes;
#pragma unroll
    for (uint32_t i = 0; i < kLoads; ++i) {
      values->bits[i] = {0, 0, 0, 0};
      if (first < a.g.sizes.hidden) values->bits[i] = load_once(from + 16 * i);
    }
  }
  template <int kTopK>
  static __device__ void send(const DispatchArgs& a, uint32_t, uint32_t unit, uint32_t lane,
                              const Values& values, const RowTarget* targets, uint32_t count) {
    const uint32_t first = (unit * kWarpThreads + lane) * kValues;
    float x[kValues];
#pragma unroll
    for (uint32_t i = 0; i < kLoads; ++i) {
      Input::unpack(values.bits[i], x + i * Input::kLanes);
    }
    float maximum = 1e-4f;
#pragma unroll
    for (uint32_t i = 0; i < kValues; ++i) maximum = fmaxf(maximum, fabsf(x[i]));  // skips NaN
#pragma unroll
    for (uint32_t step = kGroupLanes / 2; step != 0; step /= 2) {
      maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, step));
    }
    if (first >= a.g.sizes.hidden) return;  // hidden is a multiple of 16
    uint32_t scale = 0;
    const float factor = Scale::put(maximum, &scale);
    const uint2 low = quantize_eight(x, factor);
    const uint2 high = quantize_eight(x + 8, factor);
    const uint4 q = {low.x, low.y, high.x, high.y};
    const bool writes_scale = lane % kGroupLanes == 0;
    const uint64_t scale_at = first / kScaleValues * a.g.scale_group_step;
    for_each_target<kTopK>(targets, count, [&](const RowTarget& target) {
      *reinterpret_cast<uint4*>(target.row + first) = q;
      if (writes_scale) Scale::store(target.scales + scale_at, scale);
    });
  }
};

// --- Places -----------------------------------------------------------------------------------------

// Until what this rank counted lies in memory; for CTAs that did not count all of it themselves.
__device__ inline bool await_counted(const DispatchArgs& a, const Waiter& waiter, uint64_t use) {
  uint64_t word = 0;
  return wait_word(waiter, &a.state()->counted, signal_tag(waiter.epoch, use), a.g.sizes.rank,
                   &word);
}

// Waits until all ranks have said their counts, and adds those of lower ranks up: the first row of this
// rank at every expert. If the last use was not combined here, their words of place 0 also say that they gave
// its rows back: the first warp sees those, and orders what follows behind them for all.
__device__ inline bool await_counts(const DispatchArgs& a, const Waiter& waiter, uint64_t use,
                                    uint32_t* first_row) {
  constexpr uint32_t kAtOnce = 4;
  const uint64_t tag = signal_tag(waiter.epoch, use);
  const uint64_t* words = a.count_word(a.memory.window, use, 0, 0);
  const uint32_t total = a.g.sizes.ranks * a.g.places;
  for (uint32_t base = threadIdx.x; base < total; base += kAtOnce * kEpThreads) {
    uint64_t seen[kAtOnce];
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t at = base + i * kEpThreads;
      seen[i] = at < total ? load_word(words + at) : 0;
    }
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t at = base + i * kEpThreads;
      if (at >= total) break;
      const uint32_t source = at / a.g.places;
      if (!a.is_live(source)) continue;
      if (!signal_matches(seen[i], tag) && !wait_word(waiter, words + at, tag, source, &seen[i])) {
        return false;
      }
      const uint32_t count = signal_payload(seen[i]);
      if (count > a.g.sizes.max_tokens) {
        fail(waiter.channel, waiter.epoch, Cause::kBadBytes, source, waiter.phase);
        return false;
      }
      if (source < a.g.sizes.rank && count != 0) {
        atomicAdd(&first_row[at - source * a.g.places], count);
      }
    }
  }
  const bool alone = counts_alone(a.g, a.tokens);
  if (threadIdx.x >= kWarpThreads || (alone && a.state()->given_back != 0)) return true;
  uint64_t word = 0;
  for (uint32_t source = threadIdx.x; source < a.g.sizes.ranks; source += kWarpThreads) {
    if (!a.is_live(source)) continue;
    if (!wait_word(waiter, words + source * a.g.places, tag, source, &word)) return false;
  }
  if (!alone && !await_counted(a, waiter, use)) return false;
  observe();
  return true;
}

// Slotted: until all ranks have given the rows of the last use back.
__device__ inline bool await_free_rows(const DispatchArgs& a, const Waiter& waiter, uint64_t use) {
  if (threadIdx.x == 0 && !counts_alone(a.g, a.tokens)) {
    if (!await_counted(a, waiter, use)) return false;
    observe();
  }
  if (use - 1 == 0 && a.state()->carries == 0) return true;
  const uint64_t tag = signal_tag(waiter.epoch, use - 1);
  for (uint32_t source = threadIdx.x; source < a.g.sizes.ranks; source += kEpThreads) {
    uint64_t word = 0;
    if (!a.is_live(source)) continue;
    const uint64_t* at = a.rank_word(a.memory.window, a.g.combine_ready, use - 1, source);
    if (!wait_word(waiter, at, tag, source, &word)) return false;
    observe();
  }
  return true;
}

// A CTA's share: consecutive units, in turns among its warps, so that a row is written at one time.
// A unit has 256 values or more: of all that fit into a GPU's memory there are less than 2^31.
struct Share {
  uint32_t begin, end;
  uint32_t units;  // of a token

  __device__ Share(uint32_t tokens, uint32_t units_of_token) : units(units_of_token) {
    const uint64_t total = uint64_t{tokens} * units;
    begin = static_cast<uint32_t>(total * blockIdx.x / gridDim.x);
    end = static_cast<uint32_t>(total * (blockIdx.x + 1) / gridDim.x);
  }
};

// A warp's place in it.
struct Cursor {
  uint32_t at, token, unit;

  __device__ Cursor(const Share& share, uint32_t at_)
      : at(at_), token(at_ / share.units), unit(at_ % share.units) {}
  __device__ void advance(const Share& share) {
    at += kEpWarps;
    unit += kEpWarps;
    while (unit >= share.units) {
      unit -= share.units;
      ++token;
    }
  }
};

// The row of this rank's `token` at `place`, counted from its first row there.
__device__ inline uint32_t slot_of(const DispatchArgs& a, const CtaRouting& routing, uint32_t place,
                                   uint32_t token) {
  const uint32_t chunk = token / kChunkTokens;
  const uint32_t below = (1u << token % kChunkTokens) - 1;
  const uint64_t at = uint64_t{chunk} * a.g.places + place;
  if (routing.places == nullptr) {
    const uint32_t mask = a.local<uint32_t>(a.g.masks)[at];
    return a.local<uint32_t>(a.g.chunk_first)[at] + static_cast<uint32_t>(__popc(mask & below));
  }
  auto slot = static_cast<uint32_t>(__popc(routing.masks[at] & below));
  for (uint32_t earlier = 0; earlier < chunk; ++earlier) {
    slot += static_cast<uint32_t>(__popc(routing.masks[earlier * a.g.places + place]));
  }
  return slot;
}

// Lists where the copies of `tokens` tokens from `first` on go: targets [token - first][K], row null for
// none. The CTA that has a token's first unit fills the handle and tells the receivers whose row it is.
__device__ inline void list_targets(const DispatchArgs& a, const Share& share, uint32_t first,
                                    uint32_t tokens, const CtaRouting& routing,
                                    RowTarget* targets) {
  const uint32_t top_k = a.g.sizes.top_k;
  for (uint32_t i = threadIdx.x; i < tokens * top_k; i += kEpThreads) {
    const uint32_t entry = first * top_k + i;
    const uint32_t token = entry / top_k;
    const bool tells = token * share.units >= share.begin;
    int32_t place = -1;
    if (routing.places == nullptr) {
      place = a.of_handle<int32_t>(a.g.handle_places)[entry];
    } else if (routing.places[entry] != kNoPlace) {
      place = routing.places[entry];
    }
    const auto expert = static_cast<uint32_t>(place);
    const uint32_t rank = expert / a.g.sizes.local_experts;
    uint32_t row = kRowNotSent;
    RowTarget target{nullptr, nullptr};
    if (place >= 0 && a.is_live(rank)) {
      row = routing.first_row[expert] + slot_of(a, routing, expert, token);
      const uint32_t local_expert = expert - rank * a.g.sizes.local_experts;
      const uint64_t index = a.row_index(local_expert, row);
      std::byte* window = a.peer(rank);
      target.row = window + a.g.recv_x + index * a.g.wire_row;
      target.scales = a.scales_of(window + a.g.scales, local_expert, row);
      if (tells) {
        reinterpret_cast<uint32_t*>(window + a.g.entries)[index] = entry;
        reinterpret_cast<uint32_t*>(window + a.g.src_info)[index] = token;
      }
    }
    targets[i] = target;
    if (!tells) continue;
    a.of_handle<uint32_t>(a.g.handle_rows)[entry] = row;
    if (routing.places == nullptr) continue;
    a.of_handle<int32_t>(a.g.handle_places)[entry] = place;
    if (a.topk_weights != nullptr) {
      a.of_handle<float>(a.g.handle_weights)[entry] = a.topk_weights[entry];
    }
  }
}

// values: of the first unit of this warp.
template <class Codec, int kTopK>
__device__ inline void send_rows(const DispatchArgs& a, const Share& share, Cursor cursor,
                                 typename Codec::Values values, const CtaRouting& routing) {
  constexpr uint32_t kTargets = 512;  // of a batch of tokens
  __shared__ RowTarget targets[kTargets];
  const uint32_t top_k = kTopK != 0 ? kTopK : a.g.sizes.top_k;
  const uint32_t lane = threadIdx.x % kWarpThreads;
  const uint32_t batch = kTargets / top_k;
  const uint32_t end_token = (share.end + share.units - 1) / share.units;
  for (uint32_t first = share.begin / share.units; first < end_token; first += batch) {
    const uint32_t tokens = min(batch, end_token - first);
    __syncthreads();
    list_targets(a, share, first, tokens, routing, targets);
    if (first == share.begin / share.units) trace(a, 3);
    __syncthreads();
    test_delay_warp(a, 10);
    while (cursor.at < share.end && cursor.token < first + tokens) {
      Cursor next = cursor;
      next.advance(share);
      typename Codec::Values next_values{};
      if (next.at < share.end) Codec::load(a, next.token, next.unit, lane, &next_values);
      Codec::template send<kTopK>(a, cursor.token, cursor.unit, lane, values,
                                  targets + (cursor.token - first) * top_k, top_k);
      cursor = next;
      values = next_values;
    }
  }
}

// Rows are there: slotted, how many first; then the word that a receiver waits for. One fence orders
// thread 0's words behind all CTAs' rows: those came before the tickets that it has seen.
__device__ inline void announce_rows(const DispatchArgs& a, uint64_t epoch, uint64_t use) {
  const uint64_t tag = signal_tag(epoch, use);
  if (threadIdx.x == 0) {
    publish();
    for (uint32_t rank = 0; rank < a.g.sizes.ranks; ++rank) {
      if (!a.is_live(rank)) continue;
      store_word(a.rank_word(a.peer(rank), a.g.rows_ready, use, a.g.sizes.rank), tag);
    }
  }
  if (a.g.sizes.slotted == 0) return;
  __syncthreads();
  for (uint32_t place = threadIdx.x; place < a.g.places; place += kEpThreads) {
    const uint32_t rank = place / a.g.sizes.local_experts;
    const uint32_t count = a.local<uint32_t>(a.g.own_counts)[place];
#ifdef MEP_MUTANT_ZERO_COUNT
    if (count == 0) continue;
#endif
    if (!a.is_live(rank)) continue;
    store_word(a.count_word(a.peer(rank), use, a.g.sizes.rank, place), tag | count);
  }
}

// The kernel's end: what the next operation on the buffer begins with.
__device__ inline void commit_dispatch(const DispatchArgs& a, uint64_t use, uint32_t bad_entries) {
  EpState& state = *a.state();
  state.channel.use = use;
  state.given_back = 0;
  state.op_bad_entries = bad_entries;
  state.bad_entries = 0;
}

template <class Codec, int kTopK>
__global__ void __launch_bounds__(kEpThreads, 2)
    dispatch_kernel(const __grid_constant__ DispatchArgs a) {
  extern __shared__ uint32_t shared[];  // CtaRouting
  __shared__ uint32_t shared_last;
  DeviceChannel& channel = a.state()->channel;
  const bool slotted = a.g.sizes.slotted != 0;
  const EpPhase phase = slotted ? EpPhase::kFreeRows : EpPhase::kCounts;
  a.read_peers();
  const Waiter waiter(a.memory.control, &channel, static_cast<uint32_t>(phase));
  const uint64_t use = channel.use + 1;  // it changes when all CTAs are at their end
  bool ready = !has_failed(&channel, waiter.epoch);
  const Share share(a.tokens, Codec::units(a.g));
  const Cursor cursor(share, share.begin + threadIdx.x / kWarpThreads);
  typename Codec::Values values{};
  if (cursor.at < share.end) {
    Codec::load(a, cursor.token, cursor.unit, threadIdx.x % kWarpThreads, &values);
  }
  trace(a, 0);
  test_delay(a, 1);
  const CtaRouting routing(a, shared);
  const uint32_t own_slot = slotted ? a.g.sizes.rank * a.g.sizes.max_tokens : 0;
  for (uint32_t place = threadIdx.x; place < a.g.places; place += kEpThreads) {
    routing.first_row[place] = own_slot;
  }
  __syncthreads();
  count_rows(a, waiter.epoch, use, !ready, routing, &shared_last);
  __syncthreads();
  trace(a, 1);
  test_delay(a, 3);
  if (ready) {
    ready =
        slotted ? await_free_rows(a, waiter, use) : await_counts(a, waiter, use, routing.first_row);
  }
  ready = __syncthreads_and(ready) != 0;
  trace(a, 2);
  const bool arranges_early = a.receives != 0 && !slotted;
  if (ready && arranges_early && blockIdx.x == gridDim.x - 1) ready = arrange(a, waiter, use);
  if (ready) send_rows<Codec, kTopK>(a, share, cursor, values, routing);
  trace(a, 4);
  test_delay(a, 4);
  const Ending ending = take_ticket(&channel.ticket[1], gridDim.x, !ready, true, &shared_last);
  if (ending == Ending::kNotLast) return;
  trace_last(a, 5);
  test_delay(a, 5);
  uint32_t bad_entries = 0;
  if (threadIdx.x == 0) bad_entries = atomicAdd(&a.state()->bad_entries, 0u);
  if (ending == Ending::kLast) announce_rows(a, waiter.epoch, use);
  if (threadIdx.x == 0) commit_dispatch(a, use, bad_entries);
  trace_last(a, 6);
  if (a.receives == 0) return;
  if (threadIdx.x == 0 && ending != Ending::kLast) observe();
  __syncthreads();
  bool here = ending == Ending::kLast;
  const Waiter receiver(a.memory.control, &channel, static_cast<uint32_t>(EpPhase::kRows));
  if (here && !arranges_early) here = arrange(a, receiver, use);
  receive_rows(a, receiver, use, here);
  trace_last(a, 8);
}

}  // namespace mep::device

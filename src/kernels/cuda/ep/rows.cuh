// Dispatch, one launch for the send phase: once a rank knows everybody's counts it knows where each of its
// rows ends up, and writes it there, quantised on the way if the wire wants it. The last CTA tells every
// rank.
//
// Work is split among warps in units of one token's consecutive values, so that few tokens fill many
// processors too. A warp reads the next unit before it writes the last one; the first are brought to the
// L2 before anything is waited for.
//
// The loop over rows is a function that is not inlined (send_batch), so that it has all registers: what it
// kept in local memory it would fetch from the L2, behind the rows that are being written. The same holds
// for what lives across a wait, since acquires empty the L1: look at the compiler's report for spills.
#pragma once

#include "kernels/cuda/ep/codec.cuh"
#include "kernels/cuda/ep/count.cuh"
#include "kernels/cuda/ep/receive.cuh"
#include "kernels/cuda/ep/relay.cuh"

namespace mep::device {

// Until what this rank counted lies in memory; for CTAs that did not count all of it themselves.
__device__ inline bool await_counted(const DispatchArgs& a, const Waiter& waiter, uint64_t use) {
  const uint64_t tag = signal_tag(waiter.epoch, use);
  return await_word(waiter, &a.state()->counted, tag, a.g.sizes.rank) != 0;
}

// Waits until all ranks have said their counts, and adds those of lower ranks up: the first row of this
// rank at every expert. If the last use was not combined here, their words of place 0 also say that they gave
// its rows back: the first warp acquires those for all.
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
      uint64_t word = seen[i];
      if (!signal_matches(word, tag)) {
        word = await_word<load_word>(waiter, words + at, tag, source);
      }
      if (word == 0) return false;
      const uint32_t count = signal_payload(word);
      if (count > a.g.sizes.max_tokens) {
        refuse_bytes(waiter, source);
        return false;
      }
      if (source < a.g.sizes.rank && count != 0) {
        atomicAdd(&first_row[at - source * a.g.places], count);
      }
    }
  }
  const bool alone = counts_alone(a.g, a.tokens);
  if (threadIdx.x >= kWarpThreads || (alone && peer_table().credited)) return true;
  for (uint32_t source = threadIdx.x; source < a.g.sizes.ranks; source += kWarpThreads) {
    if (!a.is_live(source)) continue;
    if (await_word(waiter, words + source * a.g.places, tag, source) == 0) return false;
  }
  return alone || await_counted(a, waiter, use);
}

// Until all ranks have given the rows of the last use back.
__device__ inline bool await_free_rows(const DispatchArgs& a, const Waiter& waiter, uint64_t use) {
  if (threadIdx.x == 0 && !counts_alone(a.g, a.tokens) && !await_counted(a, waiter, use)) {
    return false;
  }
  return peer_table().freed || await_given_back(a, waiter, use);
}

// The wait before rows are sent, for all CTAs.
__device__ inline bool await_places(const DispatchArgs& a, const Waiter& waiter, uint64_t use,
                                    uint32_t* first_row) {
  if (!is_told(a)) {
    return a.has_own_places() ? await_free_rows(a, waiter, use)
                              : await_counts(a, waiter, use, first_row);
  }
  if (!peer_table().freed && !await_cta(a, Relay::kDispatch, waiter, use)) return false;
  return threadIdx.x != 0 || counts_alone(a.g, a.tokens) || await_counted(a, waiter, use);
}
__device__ inline void relay_places(const DispatchArgs& a, uint64_t epoch, uint64_t use,
                                    const uint32_t* first_row) {
  auto* told = a.local<uint32_t>(a.g.relayed_rows);
  for (uint32_t place = threadIdx.x; place < a.g.places; place += kEpThreads) {
    told[place] = first_row[place];
  }
  __syncthreads();
  tell_ctas(a, Relay::kDispatch, epoch, use);
}
// By the CTAs that were told; a barrier follows before `first_row` is used.
__device__ inline void take_places(const DispatchArgs& a, uint32_t* first_row) {
  const auto* told = a.local<uint32_t>(a.g.relayed_rows);
  for (uint32_t place = threadIdx.x; place < a.g.places; place += kEpThreads) {
    first_row[place] = told[place];
  }
}

// Tokens whose targets a CTA lists and then sends: their units [begin, end), a round of them at a time, one
// for every warp.
struct Batch {
  uint32_t begin, end;
  uint32_t units;  // of a token

  __device__ uint32_t first_token() const { return begin / units; }
  __device__ uint32_t tokens() const {
    return begin < end ? (end - 1) / units + 1 - first_token() : 0;
  }
  __device__ uint32_t unit_of_warp() const { return begin + threadIdx.x / kWarpThreads; }
};
constexpr uint32_t kBatchTargets = kEpThreads;  // each thread lists one
__device__ inline RowTarget* batch_targets() {
  __shared__ RowTarget targets[kBatchTargets];
  return targets;
}

// A CTA's share: consecutive units, in turns among its warps, so that a row is written at one time.
// A unit has 256 values or more: of all that fit into a GPU's memory there are less than 2^31.
struct Share {
  uint32_t begin, end;
  uint32_t units;  // of a token

  __device__ Share(uint32_t tokens, uint32_t units_of_token) : units(units_of_token) {
    const uint32_t cta = read_cta();
    const uint32_t total = tokens * units;
    const uint32_t whole = total / gridDim.x;
    const uint32_t rest = total % gridDim.x;
    begin = whole * cta + rest * cta / gridDim.x;
    end = whole * (cta + 1) + rest * (cta + 1) / gridDim.x;
  }
  __device__ Batch batch_from(uint32_t begin_, uint32_t top_k) const {
    const uint32_t end_ = (begin_ / units + kBatchTargets / top_k) * units;
    return {begin_, min(end, end_), units};
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

// The part of a batch's copies that is known before the counts of others are: an entry for each thread, where its
// target will be.
struct Copy {
  int32_t place;  // -1: none
  uint32_t slot;  // which of this rank's rows there
};
static_assert(sizeof(Copy) <= sizeof(RowTarget));
__device__ inline Copy* copy_of_thread() {
  return reinterpret_cast<Copy*>(batch_targets() + threadIdx.x);
}

// The expert of an entry; -1: none.
__device__ inline int32_t place_of(const DispatchArgs& a, const CtaRouting& routing,
                                   uint32_t entry) {
  if (routing.places == nullptr) return a.of_handle<int32_t>(a.g.handle_places)[entry];
  return routing.places[entry] != kNoPlace ? routing.places[entry] : -1;
}

__device__ __noinline__ inline void find_copies(const DispatchArgs& a, const Batch batch,
                                                const CtaRouting routing) {
  const uint32_t top_k = a.g.sizes.top_k;
  if (threadIdx.x >= batch.tokens() * top_k) return;
  const uint32_t entry = batch.first_token() * top_k + threadIdx.x;
  Copy copy{place_of(a, routing, entry), 0};
  if (copy.place >= 0) {
    copy.slot = slot_of(a, routing, static_cast<uint32_t>(copy.place), entry / top_k);
  }
  *copy_of_thread() = copy;
}

// By token: a row goes to a rank once, with the first of the token's copies there.
__device__ inline bool is_first_copy(const DispatchArgs& a, const CtaRouting& routing,
                                     uint32_t entry, uint32_t rank) {
  for (uint32_t other = entry - entry % a.g.sizes.top_k; other < entry; ++other) {
    const int32_t place = place_of(a, routing, other);
    if (place >= 0 && static_cast<uint32_t>(place) / a.g.sizes.local_experts == rank) return false;
  }
  return true;
}

// By token: tells every rank where this entry's copy goes.
__device__ inline void tell_copy(const DispatchArgs& a, uint32_t entry, const Copy& copy) {
  const uint32_t top_k = a.g.sizes.top_k;
  const uint64_t row = a.token_row(a.g.sizes.rank, entry / top_k);
  const uint32_t index = a.index_of_copy(copy.place, copy.slot);
  for (uint32_t rank = 0; rank < a.g.sizes.ranks; ++rank) {
    if (!a.is_live(rank)) continue;
    std::byte* block = rank == a.g.sizes.rank ? a.memory.own : a.peer(rank);
    a.token_index(block, row)[entry % top_k] = index;
  }
}

// Lists where the copies of a batch go: batch_targets() [token - first token][K], row null for none. The
// CTA that has a token's first unit fills the handle and tells the receivers whose row it is.
__device__ inline void list_targets(const DispatchArgs& a, const Batch& batch,
                                    const CtaRouting& routing) {
  const uint32_t top_k = a.g.sizes.top_k;
  if (threadIdx.x >= batch.tokens() * top_k) return;
  const uint32_t entry = batch.first_token() * top_k + threadIdx.x;
  const uint32_t token = entry / top_k;
  const bool tells = token * batch.units >= batch.begin;
  const Copy copy = *copy_of_thread();
  const auto expert = static_cast<uint32_t>(copy.place);
  const uint32_t rank = expert / a.g.sizes.local_experts;
  uint32_t row = kRowNotSent;
  RowTarget target{nullptr, nullptr};
  if (copy.place >= 0 && a.is_live(rank)) {
    row = routing.first_row[expert] + copy.slot;
    const uint32_t local_expert = expert - rank * a.g.sizes.local_experts;
    const uint64_t index = a.row_index(local_expert, row);
    std::byte* window = a.peer(rank);
    std::byte* rows = rank == a.g.sizes.rank ? a.memory.own : window;
    if (a.g.sizes.by_token == 0) {
      target.row = rows + a.g.recv_x + index * a.g.wire_row;
      target.scales = a.scales_of(rows + a.g.scales, local_expert, row);
    } else if (is_first_copy(a, routing, entry, rank)) {
      const uint64_t at = a.token_row(a.g.sizes.rank, token);
      target.row = rows + a.g.token_rows + at * a.g.wire_row;
      target.scales = rows + a.g.token_scales + at * a.g.groups * a.g.scale_bytes;
    }
    if (tells && a.g.sizes.by_token == 0) {
      reinterpret_cast<uint32_t*>(window + a.g.entries)[index] = entry;
      reinterpret_cast<uint32_t*>(window + a.g.src_info)[index] = token;
    }
  }
  batch_targets()[threadIdx.x] = target;
  if (!tells) return;
  if (a.g.sizes.by_token != 0) tell_copy(a, entry, copy);
  a.of_handle<uint32_t>(a.g.handle_rows)[entry] = row;
  if (routing.places == nullptr) return;
  a.of_handle<int32_t>(a.g.handle_places)[entry] = copy.place;
  if (a.topk_weights != nullptr) {
    a.of_handle<float>(a.g.handle_weights)[entry] = a.topk_weights[entry];
  }
}

// The first unit of a batch that this warp sends.
template <class Codec>
__device__ inline typename Codec::Values load_first(const typename Codec::Source& source,
                                                    const Batch& batch) {
  typename Codec::Values values{};
  const uint32_t at = batch.unit_of_warp();
  if (at >= batch.end) return values;
  const uint32_t token = at / batch.units;
  Codec::load(source, token, at - token * batch.units, threadIdx.x % kWarpThreads, &values);
  return values;
}

// Brings what load_first() will read nearer.
template <class Codec>
__device__ inline void fetch_first(const DispatchArgs& a) {
  const typename Codec::Source source(a);
  const Share share(a.tokens, Codec::units(a.g));
  const uint32_t at = share.begin + threadIdx.x / kWarpThreads;
  if (at >= share.end) return;
  const uint32_t token = at / share.units;
  const uint32_t offset = (at - token * share.units) * Codec::kUnitBytes +
                          threadIdx.x % kWarpThreads * (Codec::kUnitBytes / kWarpThreads);
  if (offset >= source.row_bytes) return;
  prefetch(source.x + token * source.stride + offset);
}

// A CTA's work before the counts of others are here: brings its first tokens to the L2, and finds what can be said of
// the first batch.
__device__ __noinline__ inline void prepare(const DispatchArgs& a, uint32_t units,
                                            const CtaRouting routing) {
  constexpr uint32_t kTokens = 4;
  constexpr uint32_t kLine = 128;
  const Share share(a.tokens, units);
  const Batch batch = share.batch_from(share.begin, a.g.sizes.top_k);
  const uint32_t end = min(batch.tokens(), kTokens);
  const std::byte* row = a.x + batch.first_token() * a.x_stride;
  for (uint32_t token = 0; token < end; ++token, row += a.x_stride) {
    for (uint32_t at = threadIdx.x * kLine; at < a.g.input_row; at += kEpThreads * kLine) {
      prefetch(row + at);
    }
  }
  find_copies(a, batch, routing);
}

// Whether there is time for that: with one rank nothing is waited for, and few tokens are soon listed.
__device__ inline bool prepares(const DispatchArgs& a, const CtaRouting& routing) {
  return routing.places != nullptr && a.g.sizes.ranks > 1 && a.tokens > gridDim.x;
}

// Rounds whose scales are held in shared memory before they are written: so that a row's lie beside each
// other, and warps go their own way between two barriers.
constexpr uint32_t kHeldRounds = 16;
constexpr uint32_t kHeldUnits = kHeldRounds * kEpWarps;

// The scales of units [first, end), which all warps have put into shared memory, to their rows: 16 bytes a
// unit, a token's by consecutive threads.
__device__ inline void send_scales(const Batch& batch, uint32_t top_k, uint32_t first, uint32_t end,
                                   const uint4* scales) {
  const uint32_t first_token = batch.first_token();
  const uint32_t count = end - first;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < count * top_k; i += kEpThreads) {
    const uint32_t copy = i / count;
    const uint32_t held = i - copy * count;
    const uint32_t at = first + held;
    const uint32_t token = at / batch.units;
    const uint32_t unit = at - token * batch.units;
    const RowTarget target = batch_targets()[(token - first_token) * top_k + copy];
    if (target.row == nullptr) continue;
    *reinterpret_cast<uint4*>(target.scales + unit * sizeof(uint4)) = scales[held];
  }
}

// values: load_first().
template <class Codec, int kTopK>
__device__ __noinline__ void send_batch(const typename Codec::Source source, const Batch batch,
                                        uint32_t any_top_k, typename Codec::Values values) {
  __shared__ uint4 scales[kHeldUnits];
  const uint32_t top_k = kTopK != 0 ? kTopK : any_top_k;
  const uint32_t lane = threadIdx.x % kWarpThreads;
  const uint32_t warp = threadIdx.x / kWarpThreads;
  const bool gathers = source.gathers();
  uint32_t token = batch.unit_of_warp() / batch.units;
  uint32_t unit = batch.unit_of_warp() - token * batch.units;
  const RowTarget* targets = batch_targets() + (token - batch.first_token()) * top_k;
  uint32_t first_held = batch.begin;
  for (uint32_t round = batch.begin; round < batch.end; round += kEpWarps) {
    if (round + warp < batch.end) {
      const typename Codec::Values now = values;
      const uint32_t now_unit = unit;
      const uint32_t now_token = token;
      const RowTarget* now_targets = targets;
      for (unit += kEpWarps; unit >= batch.units; unit -= batch.units) {
        ++token;
        targets += top_k;
      }
      if (round + warp + kEpWarps < batch.end) Codec::load(source, token, unit, lane, &values);
      uint4* held = scales + (round - first_held) + warp;
      Codec::template send<kTopK>(source, now_token, now_unit, lane, now, now_targets, top_k,
                                  gathers ? reinterpret_cast<uint32_t*>(held) : nullptr);
    }
    const uint32_t end = min(round + kEpWarps, batch.end);
    if (!gathers || (end - first_held < kHeldUnits && end < batch.end)) continue;
    __syncthreads();
    send_scales(batch, top_k, first_held, end, scales);
    first_held = end;
    if (end < batch.end) __syncthreads();
  }
}

template <class Codec, int kTopK>
__device__ inline void send_rows(const DispatchArgs& a, const CtaRouting& routing) {
  const typename Codec::Source source(a);
  const Share share(a.tokens, Codec::units(a.g));
  for (uint32_t begin = share.begin; begin < share.end;) {
    const Batch batch = share.batch_from(begin, a.g.sizes.top_k);
    const typename Codec::Values values = load_first<Codec>(source, batch);
    __syncthreads();
    if (begin != share.begin || !prepares(a, routing)) find_copies(a, batch, routing);
    list_targets(a, batch, routing);
    if (begin == share.begin) trace(a, 3);
    __syncthreads();
    test_delay_warp(a, 10);
    send_batch<Codec, kTopK>(source, batch, a.g.sizes.top_k, values);
    begin = batch.end;
  }
}

// Rows are there, by the CTA that came last: the words that receivers wait for and, slotted, how many there are.
__device__ inline void announce_rows(const DispatchArgs& a, uint64_t epoch, uint64_t use) {
  const uint64_t tag = signal_tag(epoch, use);
#pragma unroll 1
  for (uint32_t rank = threadIdx.x; rank < a.g.sizes.ranks; rank += kEpThreads) {
    if (!a.is_live(rank)) continue;
    store_word_release(a.rank_word(a.peer(rank), a.g.rows_ready, use, a.g.sizes.rank),
                       tag | a.tokens);
  }
  if (a.g.sizes.slotted == 0) return;
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

template <class Codec, int kTopK>
__global__ void __launch_bounds__(kEpThreads, 2)
    dispatch_kernel(const __grid_constant__ DispatchArgs a) {
  auto* const shared = launched_shared<uint32_t>();  // CtaRouting
  __shared__ uint32_t shared_last;
  DeviceChannel& channel = a.state()->channel;
  const EpPhase phase = a.has_own_places() ? EpPhase::kFreeRows : EpPhase::kCounts;
  if (counts_alone(a.g, a.tokens)) fetch_routing(a);
  a.read_peers();
  const Waiter waiter(a.memory.control, &channel, static_cast<uint32_t>(phase));
  // They change when all CTAs are at their end.
  if (threadIdx.x == 0) {
    peer_table().use = channel.use + 1;
    peer_table().credited = a.state()->credited != 0;
    peer_table().freed = a.state()->freed == signal_tag(waiter.epoch, channel.use);
  }
  bool ready = !has_failed(&channel, waiter.epoch);
  fetch_first<Codec>(a);
  trace(a, 0);
  test_delay(a, 1);
  const CtaRouting routing(a, shared);
  const bool slotted = a.g.sizes.slotted != 0 && a.g.sizes.by_token == 0;
  const uint32_t own_slot = slotted ? a.g.sizes.rank * a.g.sizes.max_tokens : 0;
  for (uint32_t place = threadIdx.x; place < a.g.places; place += kEpThreads) {
    routing.first_row[place] = own_slot;
  }
  __syncthreads();
  count_rows<kTopK>(a, waiter.epoch, !ready, routing, &shared_last);
  __syncthreads();
  trace(a, 1);
  test_delay(a, 3);
  if (ready) {
    if (prepares(a, routing)) prepare(a, Codec::units(a.g), routing);
    ready = await_places(a, waiter, peer_table().use, routing.first_row);
  }
  ready = __syncthreads_and(ready) != 0;
  if (ready && has_relay(a)) {
    if (blockIdx.x == 0) {
      relay_places(a, waiter.epoch, peer_table().use, routing.first_row);
    } else if (!a.has_own_places()) {
      take_places(a, routing.first_row);
    }
  }
  trace(a, 2);
  const bool arranges_early = a.receives != 0 && !a.has_own_places();
  if (ready && arranges_early && blockIdx.x == gridDim.x - 1) {
    ready = arrange(a, waiter, peer_table().use);
  }
  if (ready) send_rows<Codec, kTopK>(a, routing);
  trace(a, 4);
  test_delay(a, 4);
  const Ending ending = take_ticket(&channel.ticket[1], gridDim.x, !ready, true, &shared_last);
  if (ending == Ending::kNotLast) return;
  const uint64_t use = peer_table().use;
  trace_last(a, 5);
  test_delay(a, 5);
  if (ending == Ending::kLast) announce_rows(a, waiter.epoch, use);
  if (threadIdx.x == 0) commit_dispatch(a, use);
  trace_last(a, 6);
  if (a.receives == 0) return;
  __syncthreads();
  bool here = ending == Ending::kLast;
  const Waiter receiver(a.memory.control, &channel, static_cast<uint32_t>(EpPhase::kRows));
  if (here && !arranges_early) here = arrange(a, receiver, use);
  receive_rows(a, receiver, use, here);
  trace_last(a, 8);
}

}  // namespace mep::device

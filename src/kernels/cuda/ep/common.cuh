// Shared by the kernels of dispatch and combine: their arguments, and where things lie.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/device/op_status.cuh"
#include "kernels/cuda/device/protocol.cuh"
#include "kernels/cuda/ep/caller.hpp"
#include "kernels/cuda/ep/kernels.hpp"
#include "protocol/ep_words.hpp"

namespace mep::device {

constexpr uint32_t kWarpThreads = 32;
constexpr uint32_t kEpWarps = kEpThreads / kWarpThreads;
constexpr uint32_t kMaxEpTopK = 64;

// Which ranks take part and where their windows are, read once by every CTA: global memory would be asked
// again after each acquire.
struct PeerTable {
  std::byte* windows[kMaxRanks];
  uint64_t live[kMaskWords];
  uint64_t use;  // of the dispatch that runs, or was received last
  // The state as it was when the kernel began; loaded together, since each load takes as long as all.
  bool credited;                  // dispatch
  bool freed;                     // dispatch: all ranks gave the rows of the last use back
  uint32_t mark;                  // combine
  uint64_t complete[kMaskWords];  // combine
};
__device__ inline PeerTable& peer_table() {
  __shared__ PeerTable table;
  return table;
}

struct EpBase {
  EpGeometry g;
  EpMemory memory;
  std::byte* handle;
  uint32_t test_delay;
  uint32_t sends, receives;

  __device__ EpState* state() const { return reinterpret_cast<EpState*>(memory.local); }
  __device__ EpHandleHead* head() const { return reinterpret_cast<EpHandleHead*>(handle); }
  template <class T>
  __device__ T* local(uint64_t offset) const {
    return reinterpret_cast<T*>(memory.local + offset);
  }
  template <class T>
  __device__ T* of_handle(uint64_t offset) const {
    return reinterpret_cast<T*>(handle + offset);
  }
  // By all threads, first; a CTA barrier follows before anything of it is used.
  __device__ void read_peers() const {
    PeerTable& table = peer_table();
    for (uint32_t rank = threadIdx.x; rank < g.sizes.ranks; rank += kEpThreads) {
      table.windows[rank] = memory.peers[rank];
    }
    if (threadIdx.x < kMaskWords) table.live[threadIdx.x] = memory.control->live[threadIdx.x];
  }
  __device__ bool is_live(uint32_t rank) const { return in_mask(peer_table().live, rank); }
  __device__ std::byte* peer(uint32_t rank) const { return peer_table().windows[rank]; }
  // This rank's memory that `source` writes.
  __device__ std::byte* written_by(uint32_t /*source*/) const { return memory.window; }
  // Words of the window that `source` writes for a use.
  // column: a place; in high throughput a rank or R + an expert of the window's owner.
  __device__ uint64_t* count_word(std::byte* window, uint64_t use, uint32_t source,
                                  uint32_t column) const {
    const uint64_t index = (use % 2 * g.sizes.ranks + source) * g.count_words + column;
    return reinterpret_cast<uint64_t*>(window + g.counts) + index;
  }
  __device__ uint64_t* rank_word(std::byte* window, uint64_t block, uint64_t use,
                                 uint32_t source) const {
    return reinterpret_cast<uint64_t*>(window + block) + use % 2 * g.sizes.ranks + source;
  }
  // By each rank one, 8 bytes apart, since a queue writes words: the dispatch whose values came back from it.
  __device__ uint32_t* weights_mark(std::byte* window, uint32_t source) const {
    return reinterpret_cast<uint32_t*>(window + g.weights_marks) + 2 * source;
  }
  // In the last dispatch.
  __device__ uint32_t first_row_of(uint32_t group, uint32_t source) const {
    const int64_t range = local<int64_t>(g.layout_range)[group * g.sizes.ranks + source];
    return static_cast<uint32_t>(static_cast<uint64_t>(range) >> 32);
  }
  __device__ uint64_t row_index(uint32_t group, uint32_t row) const {
    return uint64_t{group} * g.rows_per_expert + row;
  }
  __device__ const uint32_t* entries() const {
    std::byte* block = g.sizes.by_token != 0 ? memory.own : memory.window;
    return reinterpret_cast<const uint32_t*>(block + g.entries);
  }
  // Views of the rows do not lie in the window.
  __device__ bool has_views() const { return memory.own != memory.window; }
  // Rows go to places that do not depend on the counts of others.
  __device__ bool has_own_places() const { return g.sizes.slotted != 0 || g.sizes.by_token != 0; }
  // By token.
  __device__ uint64_t token_row(uint32_t source, uint32_t token) const {
    return uint64_t{source} * g.sizes.max_tokens + token;
  }
  __device__ uint32_t* token_index(std::byte* block, uint64_t token_row) const {
    return reinterpret_cast<uint32_t*>(block + g.token_index) + token_row * g.sizes.top_k;
  }
  // place -1: none.
  __device__ uint32_t index_of_copy(int32_t place, uint32_t slot) const {
    if (place < 0) return kRowNotSent;
    return static_cast<uint32_t>(place) * g.sizes.max_tokens + slot;
  }
  __device__ std::byte* scales_of(std::byte* scales, uint32_t group, uint32_t row) const {
    return scales + group * g.scale_expert_step + row * g.scale_row_step;
  }
};

struct DispatchArgs : EpBase, DispatchInputs, DispatchOutputs {
  const void* topk_idx;
  uint32_t idx_is_int32;
  uint32_t tokens;
  const float* topk_weights;
  uint64_t recv_rows;  // that fit at recv_x
  uint32_t replays;
  uint32_t has_rows;     // 0: a replay of the routing alone
  uint32_t arranges;     // tells what comes; it may receive that later
  uint32_t is_arranged;  // an earlier launch has told that
  uint32_t keeps_own;  // 0: this rank's rows for itself go straight to recv_x, those that fit there
};

struct CombineArgs : EpBase {
  const std::byte* y;
  uint32_t push;
  const std::byte* own_terms;  // this rank's for its own tokens: never pushed, read here
  std::byte* own_copy;  // they are copied here from y, for a later launch; null: they need not
  const float* returned_weights;  // [rows][K]; null: none go back
  float* out_weights;             // [T][K]; null: not wanted
  uint32_t renormalize;
  const float* weights;
  const std::byte* bias;
  const std::byte* token_bias[2];  // [T] combine rows
  std::byte* out;
  uint64_t out_stride;
  OpStatusPlace op_status;
};

// wait_word() and fail() of dispatch, not inlined: who waits has time for a call, and a kernel that is short
// and keeps few registers begins sooner. 0: the wait did not end well; else the word, with its tag.
template <LoadWord load = load_word_acquire>
__device__ __noinline__ uint64_t await_word(const Waiter waiter, const uint64_t* word, uint64_t tag,
                                            uint32_t source) {
  uint64_t value = 0;
  return wait_word<load>(waiter, word, tag, source, &value) ? value : 0;
}
__device__ __noinline__ inline void refuse_bytes(const Waiter waiter, uint32_t source) {
  fail(waiter.channel, waiter.epoch, Cause::kBadBytes, source, waiter.phase);
}

// Random pauses, in builds for tests: each operation, point and CTA, or warp, has its own.
__device__ inline void random_pause([[maybe_unused]] const EpBase& a,
                                    [[maybe_unused]] uint32_t point) {
#ifdef MEP_TEST_HOOKS
  if (a.test_delay == 0) return;
  uint32_t hash = a.test_delay * 0x9e3779b1u + blockIdx.x * 0x85ebca6bu + point * 0xc2b2ae35u +
                  static_cast<uint32_t>(a.state()->channel.seq) * 0x27d4eb2fu + a.g.sizes.rank;
  hash ^= hash >> 15;
  hash *= 0x2c1b3c6du;
  hash ^= hash >> 12;
  if (hash % 4 != 0) return;
  const uint64_t end = nanoseconds() + hash / 4 % 20'000;
  while (nanoseconds() < end) let_others_run();
#endif
}
__device__ inline void test_delay(const EpBase& a, uint32_t point) {
  random_pause(a, point);
}
__device__ inline void test_delay_warp(const EpBase& a, uint32_t point) {
  random_pause(a, point + threadIdx.x / kWarpThreads * 64);
}

// When a stage of an operation was over, in builds for measuring: by CTA 0, or by the CTA that came last.
__device__ inline void trace_last([[maybe_unused]] const EpBase& a,
                                  [[maybe_unused]] uint32_t stage) {
#ifdef MEP_EP_TRACE
  if (threadIdx.x == 0) a.state()->trace[stage] = nanoseconds();
#endif
}
__device__ inline void trace(const EpBase& a, uint32_t stage) {
  if (blockIdx.x == 0) trace_last(a, stage);
}

// The result that an operation leaves with when the channel has failed in this epoch.
__device__ inline mep_result_t failure_result(const DeviceChannel& channel) {
  switch (static_cast<Cause>(channel.failed_cause)) {
    case Cause::kDeadline:
      return MEP_ERR_TIMEOUT;
    case Cause::kBadBytes:
      return MEP_ERR_MISMATCH;
    case Cause::kRefused:
      return MEP_ERR_DEVICE;
    default:
      return MEP_ERR_PEER_FAILED;
  }
}

// The end of an operation for its status, besides its result.
struct OpEnd {
  uint64_t epoch, seq;
  uint32_t bad_entries;
};

// failed: the ranks that are in the comm and not in `contributed`.
__device__ inline void fill_status(const EpBase& a, const OpStatusPlace& status,
                                   mep_result_t result, const uint64_t* contributed,
                                   const OpEnd& end) {
  if (status.record == nullptr) return;
  mep_op_status_t head{};
  head.result = result;
  head.epoch = end.epoch;
  head.seq = end.seq;
  head.bad_entries = end.bad_entries;
  uint64_t failed[kMaskWords];
#pragma unroll
  for (uint32_t word = 0; word < kMaskWords; ++word) {
    const uint32_t ranks = a.g.sizes.ranks > word * 64 ? a.g.sizes.ranks - word * 64 : 0;
    const uint64_t all = ranks >= 64 ? ~uint64_t{0} : (uint64_t{1} << ranks) - 1;
    failed[word] = all & ~contributed[word];
  }
  write_op_status(status, head, failed);
}

// Like is_last_of(), for CTAs that tell each other whether one of them gave up: no load is needed to know.
enum class Ending : uint32_t { kNotLast = 0, kLast = 1, kLastOfFailed = 2 };

// publishes: the last CTA will tell others what the CTAs wrote.
__device__ inline Ending take_ticket(uint32_t* ticket, uint32_t ctas, bool failed, bool publishes,
                                     uint32_t* shared) {
  constexpr uint32_t kFailedCta = 1u << 16;
#ifndef MEP_MUTANT_NO_TICKET_BARRIER
  __syncthreads();
#endif
  if (threadIdx.x == 0) {
    const uint32_t mine = failed ? kFailedCta + 1 : 1;
    const uint32_t sum = add_in_turn(ticket, mine, publishes || failed) + mine;
    Ending ending = Ending::kNotLast;
    if (sum % kFailedCta == ctas) ending = sum == ctas ? Ending::kLast : Ending::kLastOfFailed;
    if (ending != Ending::kNotLast) *ticket = 0;
    *shared = static_cast<uint32_t>(ending);
  }
  __syncthreads();
  return static_cast<Ending>(*shared);
}

// Exclusive sums of count_of(0 .. n), each given to keep(i, sum); the sum of all. By one CTA, which has met before and meets
// after it.
template <class Count, class Keep>
__device__ inline uint32_t add_up(uint32_t n, Count&& count_of, Keep&& keep) {
  __shared__ uint32_t of_warps[kEpWarps];
  const uint32_t each = (n + kEpThreads - 1) / kEpThreads;
  const uint32_t begin = min(threadIdx.x * each, n);
  const uint32_t end = min(begin + each, n);
  uint32_t own = 0;
  for (uint32_t i = begin; i < end; ++i) own += count_of(i);
  const uint32_t lane = threadIdx.x % kWarpThreads;
  const uint32_t warp = threadIdx.x / kWarpThreads;
  uint32_t up_to = own;
  for (uint32_t step = 1; step < kWarpThreads; step *= 2) {
    const uint32_t lower = __shfl_up_sync(0xffffffffu, up_to, step);
    if (lane >= step) up_to += lower;
  }
  if (lane == kWarpThreads - 1) of_warps[warp] = up_to;
  __syncthreads();
  uint32_t first = up_to - own;
  uint32_t total = 0;
  for (uint32_t i = 0; i < kEpWarps; ++i) {
    if (i < warp) first += of_warps[i];
    total += of_warps[i];
  }
  for (uint32_t i = begin; i < end; ++i) {
    keep(i, first);
    first += count_of(i);
  }
  return total;
}

// Masks [chunks][columns] of what belongs to a column: into `before` how many of earlier chunks do, for each chunk, and
// keep(column, of all chunks). By one CTA, a warp a column at a time.
template <class Keep>
__device__ inline void add_up_masks(const uint32_t* masks, uint32_t* before, uint32_t chunks,
                                    uint32_t columns, Keep&& keep) {
  const uint32_t lane = threadIdx.x % kWarpThreads;
  for (uint32_t column = threadIdx.x / kWarpThreads; column < columns; column += kEpWarps) {
    uint32_t total = 0;
    for (uint32_t base = 0; base < chunks; base += kWarpThreads) {
      const uint32_t chunk = base + lane;
      const uint64_t at = uint64_t{chunk} * columns + column;
      const uint32_t own = chunk < chunks ? static_cast<uint32_t>(__popc(masks[at])) : 0;
      uint32_t sum = own;
#pragma unroll
      for (uint32_t step = 1; step < kWarpThreads; step *= 2) {
        const uint32_t lower = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= step) sum += lower;
      }
      if (chunk < chunks) before[at] = total + sum - own;
      total += __shfl_sync(0xffffffffu, sum, kWarpThreads - 1);
    }
    if (lane == 0) keep(column, total);
  }
}

// The rows of all ranges [columns], numbered through, so that warps take them in turns: a warp that looked at one range
// after the other would wait for memory as often. In dynamic shared memory, range_bytes() of it.
__host__ __device__ inline size_t range_bytes(const EpGeometry& g) {
  return g.columns * sizeof(uint32_t);
}
constexpr uint32_t kRowUnit = kWarpThreads * 16;  // bytes that a warp copies at once
struct RowOfRange {
  uint32_t range;
  uint32_t row;     // of its group
  uint32_t at;      // of the range
  uint32_t number;  // of all
};
struct RowRanges {
  const int64_t* ranges;
  uint32_t* first;  // [columns] number of the first row of each
  uint32_t columns;
  uint32_t total;

  __device__ RowRanges(const EpBase& a, uint32_t* shared)
      : ranges(a.local<int64_t>(a.g.layout_range)), first(shared), columns(a.g.columns) {
    total = add_up(
        columns, [&](uint32_t i) { return static_cast<uint32_t>(ranges[i]); },
        [&](uint32_t i, uint32_t sum) { shared[i] = sum; });
    __syncthreads();
  }
  // The last range that begins at the row or before it: those that are empty begin where the next one does.
  __device__ uint32_t range_of(uint32_t number) const {
    uint32_t low = 0;
    for (uint32_t end = columns; end - low > 1;) {
      const uint32_t middle = low + (end - low) / 2;
      if (first[middle] <= number) {
        low = middle;
      } else {
        end = middle;
      }
    }
    return low;
  }
  // Calls of(RowOfRange) for the rows of this warp.
  template <class Row>
  __device__ void for_each(Row&& of) const {
    for_each_piece(1, [&](const RowOfRange& row, uint32_t /*piece*/) { of(row); });
  }
  // `pieces` warps share a row: calls of(RowOfRange, piece).
  template <class Row>
  __device__ void for_each_piece(uint32_t pieces, Row&& of) const {
    const uint32_t warp = threadIdx.x / kWarpThreads * gridDim.x + blockIdx.x;
    for (uint32_t at = warp; at < total * pieces; at += gridDim.x * kEpWarps) {
      const uint32_t number = at / pieces;
      const uint32_t range = range_of(number);
      const uint32_t of_range = number - first[range];
      const auto begin = static_cast<uint32_t>(static_cast<uint64_t>(ranges[range]) >> 32);
      of(RowOfRange{range, begin + of_range, of_range, number}, at % pieces);
    }
  }
};

// The scales of a row, by one warp; steps in bytes. from null: zeros.
__device__ inline void copy_scales(const EpGeometry& g, std::byte* to, uint64_t to_step,
                                   const std::byte* from, uint64_t from_step, uint32_t lane) {
  for (uint32_t group = lane; group < g.groups; group += kWarpThreads) {
    std::byte* place = to + group * to_step;
    const std::byte* source = from == nullptr ? nullptr : from + group * from_step;
    if (g.scale_bytes == 4) {
      *reinterpret_cast<uint32_t*>(place) =
          source == nullptr ? 0 : *reinterpret_cast<const uint32_t*>(source);
    } else {
      *place = source == nullptr ? std::byte{0} : *source;
    }
  }
}

// A row, by one warp; several loads are under way before the first store.
__device__ inline void copy_row(std::byte* to, const std::byte* from, uint32_t bytes,
                                uint32_t lane) {
  constexpr uint32_t kStep = kRowUnit;
  constexpr uint32_t kAtOnce = 4;
  uint32_t at = lane * 16;
  for (; at + (kAtOnce - 1) * kStep < bytes; at += kAtOnce * kStep) {
    uint4 bits[kAtOnce];
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) bits[i] = load_once(from + at + i * kStep);
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) *reinterpret_cast<uint4*>(to + at + i * kStep) = bits[i];
  }
  for (; at < bytes; at += kStep) *reinterpret_cast<uint4*>(to + at) = load_once(from + at);
}

// 32-bit values of a row; null: not there.
__device__ inline void copy_values(void* to, const std::byte* from, uint64_t row, uint32_t values,
                                   uint32_t lane) {
  if (to == nullptr) return;
  for (uint64_t i = row * values + lane; i < (row + 1) * values; i += kWarpThreads) {
    static_cast<uint32_t*>(to)[i] = reinterpret_cast<const uint32_t*>(from)[i];
  }
}

// `values` 32-bit values that go with a row, at `block` of the window: to the views and to the caller.
__device__ inline void copy_beside(const EpBase& a, void* to, uint64_t block, uint64_t row,
                                   uint32_t values, uint32_t lane) {
  const std::byte* from = a.memory.window + block;
  copy_values(to, from, row, values, lane);
  if (a.has_views()) copy_values(a.memory.own + block, from, row, values, lane);
}

}  // namespace mep::device

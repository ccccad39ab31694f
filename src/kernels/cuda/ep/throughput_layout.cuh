// High throughput, before the rows: a few CTAs read the routing and find each token's ranks; the last of them tells
// every rank how many rows it and each of its experts get, and waits for what the others tell. The rows' kernel needs
// all of it.
//
// A warp takes a chunk of tokens at a time, a lane each token. The routing passes through shared memory, so that
// global memory is read and written in order.
#pragma once

#include "kernels/cuda/ep/count.cuh"
#include "kernels/cuda/ep/receive.cuh"

namespace mep::device {

// Shared memory of the layout's CTA, in words: rows per physical expert, a mask per warp and rank, and the chunk
// that each of `warps` warps reads.
struct LayoutShared {
  uint32_t stride;  // words of a token, odd: lanes meet in no bank
  uint32_t warps;   // that read chunks: fewer with a large top-k

  __host__ __device__ explicit LayoutShared(const EpGeometry& g)
      : stride(g.sizes.top_k | 1), warps(kEpWarps) {
    constexpr uint32_t kMostWords = 10'000;
    const uint32_t fit = kMostWords / (kChunkTokens * stride);
    if (fit < warps) warps = fit;
  }
  __host__ __device__ uint32_t masks_at(const EpGeometry& g) const { return g.places; }
  __host__ __device__ uint32_t chunks_at(const EpGeometry& g) const {
    return masks_at(g) + warps * g.sizes.ranks;
  }
  __host__ __device__ uint32_t words(const EpGeometry& g) const {
    return chunks_at(g) + warps * kChunkTokens * stride;
  }
};

constexpr int32_t kInvalidExpert = -2;

// The chunk's experts to shared memory: -1 none, kInvalidExpert what names no expert.
template <class Index>
__device__ inline void load_chunk(const DispatchArgs& a, uint32_t chunk, uint32_t lane,
                                  uint32_t stride, int32_t* out) {
  const uint32_t top_k = a.g.sizes.top_k;
  const uint32_t first = chunk * kChunkTokens * top_k;
  const uint32_t count = min(kChunkTokens, a.tokens - chunk * kChunkTokens) * top_k;
  const Index* from = static_cast<const Index*>(a.topk_idx) + first;
  constexpr uint32_t kAtOnce = 8;
  for (uint32_t base = lane; base < count; base += kAtOnce * kWarpThreads) {
    int64_t seen[kAtOnce];
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t at = base + i * kWarpThreads;
      seen[i] = at < count ? int64_t{from[at]} : -1;
    }
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t at = base + i * kWarpThreads;
      if (at >= count) break;
      const bool valid = static_cast<uint64_t>(seen[i]) < a.g.sizes.experts;
      const int32_t expert = valid           ? static_cast<int32_t>(seen[i])
                             : seen[i] == -1 ? -1
                                             : kInvalidExpert;
      out[at / top_k * stride + at % top_k] = expert;
    }
  }
  __syncwarp();
}

// The token's experts become places, in `mine`; returns how many entries count as -1. Where two
// name one expert the first stays.
__device__ inline uint32_t find_places(const DispatchArgs& a, uint32_t token, int32_t* mine,
                                       uint32_t* expert_counts) {
  uint32_t bad = 0;
  for (uint32_t k = 0; k < a.g.sizes.top_k; ++k) {
    int32_t place = mine[k];
    if (place >= 0 && a.memory.map_first != nullptr) {
      const uint32_t first = a.memory.map_first[place];
      const uint32_t replicas = a.memory.map_first[place + 1] - first;
      const uint32_t chosen = first + (token + a.g.sizes.rank) % replicas;
      place = static_cast<int32_t>(a.memory.map_places[chosen]);
    }
    for (uint32_t earlier = 0; earlier < k && place >= 0; ++earlier) {
      if (mine[earlier] == place) place = kInvalidExpert;
    }
    if (place == kInvalidExpert) {
      ++bad;
      place = -1;
    }
    mine[k] = place;
    if (place >= 0) atomicAdd(&expert_counts[place], 1u);
  }
  return bad;
}

// The token's ranks, rising, into the handle, and its bit into the mask of each that is in the comm.
__device__ inline void find_ranks(const DispatchArgs& a, uint32_t token, const int32_t* mine,
                                  uint32_t* masks) {
  const uint32_t local_experts = a.g.sizes.local_experts;
  int32_t* ranks = a.of_handle<int32_t>(a.g.handle_places) + uint64_t{token} * a.g.row_k;
  int32_t last = -1;
  for (uint32_t j = 0; j < a.g.row_k; ++j) {
    int32_t next = INT32_MAX;
    for (uint32_t k = 0; k < a.g.sizes.top_k; ++k) {
      if (mine[k] < 0) continue;
      const auto rank = static_cast<int32_t>(static_cast<uint32_t>(mine[k]) / local_experts);
      if (rank > last && rank < next) next = rank;
    }
    if (next == INT32_MAX) {
      for (; j < a.g.row_k; ++j) ranks[j] = -1;
      return;
    }
    ranks[j] = last = next;
    const auto rank = static_cast<uint32_t>(next);
    if (a.is_live(rank)) atomicOr(&masks[rank], 1u << token % kChunkTokens);
  }
}

__device__ inline void mark_throughput_chunk(const DispatchArgs& a, const LayoutShared& layout,
                                             uint32_t chunk, uint32_t* shared, uint32_t* bad) {
  const uint32_t warp = threadIdx.x / kWarpThreads;
  const uint32_t lane = threadIdx.x % kWarpThreads;
  const uint32_t ranks = a.g.sizes.ranks;
  const uint32_t top_k = a.g.sizes.top_k;
  uint32_t* masks = shared + layout.masks_at(a.g) + warp * ranks;
  int32_t* experts = reinterpret_cast<int32_t*>(shared + layout.chunks_at(a.g)) +
                     warp * kChunkTokens * layout.stride;
  for (uint32_t rank = lane; rank < ranks; rank += kWarpThreads) masks[rank] = 0;
  if (a.idx_is_int32 != 0) {
    load_chunk<int32_t>(a, chunk, lane, layout.stride, experts);
  } else {
    load_chunk<int64_t>(a, chunk, lane, layout.stride, experts);
  }
  const uint32_t token = chunk * kChunkTokens + lane;
  if (token < a.tokens) {
    int32_t* mine = experts + lane * layout.stride;
    *bad += find_places(a, token, mine, shared);
    find_ranks(a, token, mine, masks);
  }
  __syncwarp();
  uint32_t* kept = a.local<uint32_t>(a.g.masks) + uint64_t{chunk} * ranks;
  for (uint32_t rank = lane; rank < ranks; rank += kWarpThreads) kept[rank] = masks[rank];
  const uint32_t first = chunk * kChunkTokens * top_k;
  const uint32_t count = min(kChunkTokens, a.tokens - chunk * kChunkTokens) * top_k;
  for (uint32_t at = lane; at < count; at += kWarpThreads) {
    a.of_handle<int32_t>(a.g.handle_experts)[first + at] =
        experts[at / top_k * layout.stride + at % top_k];
    if (a.topk_weights != nullptr) {
      a.of_handle<float>(a.g.handle_weights)[first + at] = a.topk_weights[first + at];
    }
  }
  __syncwarp();
}

// Rows for each rank, and how many of them are of earlier chunks.
__device__ inline void sum_chunks(const DispatchArgs& a) {
  auto* counts = a.of_handle<uint32_t>(a.g.handle_counts);
  add_up_masks(a.local<uint32_t>(a.g.masks), a.local<uint32_t>(a.g.chunk_first),
               chunks_of(a.tokens), a.g.sizes.ranks,
               [&](uint32_t rank, uint32_t rows) { counts[rank] = rows; });
}

// Count words to every rank: rows for each rank, and rows for each of the receiver's experts. A replay knows the
// places, so it tells a receiver the counts of that receiver's rows alone.
__device__ inline void tell_counts(const DispatchArgs& a, uint64_t epoch, uint64_t use) {
  const uint64_t tag = signal_tag(epoch, use);
  const uint32_t ranks = a.g.sizes.ranks;
  const uint32_t* counts = a.of_handle<uint32_t>(a.g.handle_counts);
  const uint32_t* expert_counts = a.of_handle<uint32_t>(a.g.handle_expert_counts);
  for (uint32_t column = threadIdx.x; column < ranks; column += kEpThreads) {
    const uint64_t word = tag | counts[column];
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      if (!a.is_live(rank) || (a.replays != 0 && rank != column)) continue;
      store_word(a.count_word(a.peer(rank), use, a.g.sizes.rank, column), word);
    }
  }
  for (uint32_t place = threadIdx.x; place < a.g.places; place += kEpThreads) {
    const uint32_t rank = place / a.g.sizes.local_experts;
    if (!a.is_live(rank)) continue;
    const uint32_t column = ranks + place - rank * a.g.sizes.local_experts;
    store_word(a.count_word(a.peer(rank), use, a.g.sizes.rank, column), tag | expert_counts[place]);
  }
}

// A count word of this rank's window; false: it did not come, or says what cannot be.
__device__ inline bool await_count(const DispatchArgs& a, const Waiter& waiter, uint64_t use,
                                   uint32_t source, uint32_t column, uint32_t* count) {
  const uint64_t tag = signal_tag(waiter.epoch, use);
  const uint64_t* at = a.count_word(a.memory.window, use, source, column);
  const uint64_t word = await_word<load_word>(waiter, at, tag, source);
  *count = signal_payload(word);
  if (word == 0) return false;
  if (*count <= a.g.sizes.max_tokens) return true;
  refuse_bytes(waiter, source);
  return false;
}

// The word of column 0 also says that its rank gave the rows of the last use back.
__device__ inline bool acquire_counts(const DispatchArgs& a, const Waiter& waiter, uint64_t use,
                                      uint32_t source) {
  const uint64_t* at = a.count_word(a.memory.window, use, source, 0);
  return await_word(waiter, at, signal_tag(waiter.epoch, use), source) != 0;
}

// Waits for what lower ranks send to each rank: the first row of this rank there, into the handle. The first warp
// acquires for all. Args: await_count() and acquire_counts() are those of its counts.
template <class Args>
__device__ inline bool await_first_rows(const Args& args, const Waiter& waiter, uint64_t use) {
  const DispatchArgs& a = args;
  __shared__ uint32_t first_row[kMaxRanks];
  const uint32_t ranks = a.g.sizes.ranks;
  for (uint32_t rank = threadIdx.x; rank < ranks; rank += kEpThreads) first_row[rank] = 0;
  __syncthreads();
  bool known = true;
  for (uint32_t i = threadIdx.x; i < ranks * a.g.sizes.rank && known; i += kEpThreads) {
    const uint32_t source = i / ranks;
    uint32_t count = 0;
    if (!a.is_live(source)) continue;
    known = await_count(args, waiter, use, source, i - source * ranks, &count);
    if (known) atomicAdd(&first_row[i - source * ranks], count);
  }
  if (threadIdx.x < kWarpThreads) {
    for (uint32_t source = threadIdx.x; source < ranks && known; source += kWarpThreads) {
      if (a.is_live(source)) known = acquire_counts(args, waiter, use, source);
    }
  }
  known = __syncthreads_and(known) != 0;
  for (uint32_t rank = threadIdx.x; rank < ranks; rank += kEpThreads) {
    a.of_handle<uint32_t>(a.g.handle_first)[rank] = first_row[rank];
  }
  return known;
}

// By one CTA: what every source sends here, into ranges and counts, and to the caller.
template <class Args>
__device__ inline bool arrange_throughput(const Args& args, const Waiter& waiter, uint64_t use) {
  const DispatchArgs& a = args;
  __shared__ uint32_t source_rows[kMaxRanks];
  __shared__ uint32_t expanded_rows;
  if (threadIdx.x == 0) expanded_rows = 0;
  const uint32_t ranks = a.g.sizes.ranks;
  const uint32_t experts = a.g.sizes.local_experts;
  auto* expert_rows = a.local<uint32_t>(a.g.expert_rows);
  for (uint32_t i = threadIdx.x; i < experts; i += kEpThreads) expert_rows[i] = 0;
  for (uint32_t i = threadIdx.x; i < ranks; i += kEpThreads) source_rows[i] = 0;
  __syncthreads();
  bool known = true;
  for (uint32_t i = threadIdx.x; i < ranks * (1 + experts) && known; i += kEpThreads) {
    const uint32_t source = i % ranks;
    const uint32_t slot = i / ranks;
    uint32_t count = 0;
    if (!a.is_live(source)) continue;
    const uint32_t column = slot == 0 ? a.g.sizes.rank : ranks + slot - 1;
    known = await_count(args, waiter, use, source, column, &count);
    if (!known) break;
    if (slot == 0) {
      source_rows[source] = count;
    } else {
      atomicAdd(&expert_rows[slot - 1], count);
    }
  }
  if (__syncthreads_and(known) == 0) return false;
  const uint32_t unit = a.g.sizes.expert_alignment;
  for (uint32_t i = threadIdx.x; i < experts; i += kEpThreads) {
    const uint64_t rounded = (uint64_t{expert_rows[i]} + unit - 1) / unit * unit;
    const auto count = static_cast<uint32_t>(rounded < INT32_MAX ? rounded : INT32_MAX);
    a.local<uint32_t>(a.g.recv_count)[i] = count;
    if (a.g.expanded.rows != 0) atomicAdd(&expanded_rows, count);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t begin = 0;
    for (uint32_t source = 0; source < ranks; ++source) {
      a.local<int64_t>(a.g.layout_range)[source] =
          static_cast<int64_t>(uint64_t{begin} << 32 | source_rows[source]);
      begin += source_rows[source];
    }
    const uint32_t total = a.g.expanded.rows != 0 ? expanded_rows : begin;
    a.state()->arrived = {total, total};
    if (a.receives == 0 && a.recv_total != nullptr) *a.recv_total = static_cast<int64_t>(total);
  }
  __syncthreads();
  deliver(a);
  return true;
}

// By the CTA that came last, also after a failure: rows per expert into the handle, and zeros for the next dispatch.
__device__ inline void take_expert_counts(const DispatchArgs& a) {
  for (uint32_t place = threadIdx.x; place < a.g.places; place += kEpThreads) {
    uint32_t* count = a.local<uint32_t>(a.g.expert_sums) + place;
    a.of_handle<uint32_t>(a.g.handle_expert_counts)[place] = *count;
    *count = 0;
  }
}

// Rows for each rank of this CTA's chunks.
__device__ inline void mark_throughput_chunks(const DispatchArgs& a, const LayoutShared& layout,
                                              uint32_t* shared) {
  const uint32_t chunks = chunks_of(a.tokens);
  const uint32_t warp = threadIdx.x / kWarpThreads;
  uint32_t bad = 0;
  for (uint32_t chunk = warp * gridDim.x + blockIdx.x; chunk < chunks && warp < layout.warps;
       chunk += layout.warps * gridDim.x) {
    mark_throughput_chunk(a, layout, chunk, shared, &bad);
  }
  if (bad != 0) atomicAdd(&a.state()->bad_entries, bad);
  __syncthreads();
  for (uint32_t place = threadIdx.x; place < a.g.places; place += kEpThreads) {
    const uint32_t count = shared[place];
    if (count != 0) atomicAdd(a.local<uint32_t>(a.g.expert_sums) + place, count);
  }
}
// Useful CTAs, and shared memory of each.
inline uint32_t useful_layout_ctas(const DispatchArgs& a, uint32_t most_ctas) {
  const uint32_t useful = chunks_of(a.tokens) / LayoutShared(a.g).warps + 1;
  return useful < most_ctas ? useful : most_ctas;
}
inline size_t layout_shared_bytes(const EpGeometry& g) {
  return LayoutShared(g).words(g) * sizeof(uint32_t);
}

}  // namespace mep::device

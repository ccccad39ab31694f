// Dispatch, the first stage: who gets how many rows of this rank. Reads the routing, makes entries that
// cannot be -1, counts the others and, packed, tells every rank the counts: a count word carries its own
// data, so it needs no other word behind it.
//
// With tokens up to a few hundred every CTA reads the whole routing into its shared memory, which is faster
// than to wait for what another has found; CTA 0 tells the counts. With more, CTAs share the chunks among
// them, the last one tells the counts, and the others wait until it has.
#pragma once

#include "kernels/cuda/ep/common.cuh"

namespace mep::device {

constexpr uint32_t kAloneWords = 14'000;  // of shared memory
constexpr uint16_t kNoPlace = 0xffff;

__host__ __device__ inline uint32_t chunks_of(uint32_t tokens) {
  return (tokens + kChunkTokens - 1) / kChunkTokens;
}
// Shared memory of a CTA: the first row at each place; masks [chunks][places]; alone, the entries' places.
__host__ __device__ inline uint32_t alone_words(const EpGeometry& g, uint32_t tokens) {
  return g.places * (1 + chunks_of(tokens)) + (tokens * g.sizes.top_k + 1) / 2;
}
__host__ __device__ inline bool counts_alone(const EpGeometry& g, uint32_t tokens) {
  return uint64_t{tokens} * g.sizes.top_k < 2 * kAloneWords &&
         uint64_t{chunks_of(tokens)} * g.places < kAloneWords &&
         alone_words(g, tokens) <= kAloneWords;
}
__host__ __device__ inline uint32_t shared_words(const EpGeometry& g, uint32_t tokens) {
  return counts_alone(g, tokens) ? alone_words(g, tokens) : 2 * g.places;
}

// The parts of it.
struct CtaRouting {
  uint32_t* first_row;
  uint32_t* masks;
  uint16_t* places;  // null: they are in the handle, and the masks in the local block

  __device__ CtaRouting(uint32_t* rows, uint32_t* chunk_masks)
      : first_row(rows), masks(chunk_masks), places(nullptr) {}
  __device__ CtaRouting(const DispatchArgs& a, uint32_t* shared)
      : first_row(shared), masks(shared + a.g.places), places(nullptr) {
    if (!counts_alone(a.g, a.tokens)) return;
    places = reinterpret_cast<uint16_t*>(masks + chunks_of(a.tokens) * a.g.places);
  }
};

__device__ inline int64_t read_expert(const DispatchArgs& a, uint32_t entry) {
  if (a.idx_is_int32 != 0) return static_cast<const int32_t*>(a.topk_idx)[entry];
  return static_cast<const int64_t*>(a.topk_idx)[entry];
}

// The first of two entries of a token that name the same expert counts.
__device__ inline bool names_again(const DispatchArgs& a, uint32_t token, uint32_t entry,
                                   int64_t expert) {
  bool again = false;
  for (uint32_t earlier = token * a.g.sizes.top_k; earlier < entry; ++earlier) {
    again = again || read_expert(a, earlier) == expert;
  }
  return again;
}

// The place of an entry that names a valid expert, where that takes more than a look: with a map, or (careful)
// if some token names an expert twice. -1: an earlier entry of the token has named it.
__device__ __noinline__ inline int32_t look_up_place(const DispatchArgs& a, uint32_t entry,
                                                     uint32_t expert, bool careful) {
  const uint32_t token = entry / a.g.sizes.top_k;
  if (careful && names_again(a, token, entry, expert)) return -1;
  if (a.memory.map_first == nullptr) return static_cast<int32_t>(expert);
  const uint32_t first = a.memory.map_first[expert];
  const uint32_t replicas = a.memory.map_first[expert + 1] - first;
  return static_cast<int32_t>(a.memory.map_places[first + (token + a.g.sizes.rank) % replicas]);
}

__device__ __noinline__ inline void note_entry(const DispatchArgs& a, uint32_t entry,
                                               int32_t place) {
  a.of_handle<int32_t>(a.g.handle_places)[entry] = place;
  a.of_handle<uint32_t>(a.g.handle_rows)[entry] = kRowNotSent;
  if (a.topk_weights == nullptr) return;
  a.of_handle<float>(a.g.handle_weights)[entry] = a.topk_weights[entry];
}

// The outcome of marking entries. twice: another one of the token has named the expert, both meet in one bit.
struct Marked {
  bool twice = false;
  uint32_t bad = 0;
};

// One entry to the masks of chunks from that of `first` on. Rare work is called: the instructions of a
// kernel that has just begun come from the L2, so there should be few.
template <int kTopK>
__device__ inline void mark_entry(const DispatchArgs& a, uint32_t first, uint32_t entry,
                                  int64_t expert, const CtaRouting& routing, bool careful,
                                  Marked* marked) {
  const uint32_t token = entry / (kTopK != 0 ? kTopK : a.g.sizes.top_k);
  int32_t place = -1;
  if (static_cast<uint64_t>(expert) < a.g.sizes.experts) {
    place = static_cast<int32_t>(expert);
    if (careful || a.memory.map_first != nullptr) {
      place = look_up_place(a, entry, static_cast<uint32_t>(expert), careful);
    }
  }
  if (place < 0 && expert != -1) ++marked->bad;
  if (routing.places != nullptr) {
    routing.places[entry] = place < 0 ? kNoPlace : static_cast<uint16_t>(place);
  } else {
    note_entry(a, entry, place);
  }
  if (place < 0) return;
  const uint32_t bit = 1u << token % kChunkTokens;
  uint32_t* mask = routing.masks + (token - first) / kChunkTokens * a.g.places + place;
  if ((atomicOr(mask, bit) & bit) != 0) marked->twice = true;
}

constexpr uint32_t kEntriesAtOnce = 8;  // loads under way

// Entries `from`, `from` + kEpThreads and so on, up to `end`.
template <class Index>
__device__ inline void read_experts(const DispatchArgs& a, uint32_t from, uint32_t end,
                                    int64_t* experts) {
  const auto* indices = static_cast<const Index*>(a.topk_idx);
#pragma unroll
  for (uint32_t i = 0; i < kEntriesAtOnce; ++i) {
    const uint32_t entry = from + i * kEpThreads;
    experts[i] = entry < end ? int64_t{indices[entry]} : -1;
  }
}

// Entries of the tokens [first, end). False if some token names an expert twice.
template <int kTopK>
__device__ inline bool mark_tokens(const DispatchArgs& a, uint32_t first, uint32_t end,
                                   const CtaRouting& routing, bool careful) {
  const uint32_t top_k = kTopK != 0 ? kTopK : a.g.sizes.top_k;
  const uint32_t end_entry = end * top_k;
  Marked marked;
  for (uint32_t base = first * top_k + threadIdx.x; base < end_entry;
       base += kEntriesAtOnce * kEpThreads) {
    int64_t experts[kEntriesAtOnce];
    if (a.idx_is_int32 != 0) {
      read_experts<int32_t>(a, base, end_entry, experts);
    } else {
      read_experts<int64_t>(a, base, end_entry, experts);
    }
#pragma unroll
    for (uint32_t i = 0; i < kEntriesAtOnce; ++i) {
      const uint32_t entry = base + i * kEpThreads;
      if (entry >= end_entry) break;
      mark_entry<kTopK>(a, first, entry, experts[i], routing, careful, &marked);
    }
  }
  const bool twice = __syncthreads_or(marked.twice) != 0;
  const bool tells = routing.places == nullptr || blockIdx.x == 0;
  if (!twice && marked.bad != 0 && tells) atomicAdd(&a.state()->bad_entries, marked.bad);
  return !twice;
}

template <int kTopK>
__device__ inline void mark_chunks(const DispatchArgs& a, uint32_t first_chunk, uint32_t chunks,
                                   const CtaRouting& routing) {
  const uint32_t first = first_chunk * kChunkTokens;
  const uint32_t end = min(a.tokens, first + chunks * kChunkTokens);
#pragma unroll 1
  for (uint32_t pass = 0; pass < 2; ++pass) {
    for (uint32_t i = threadIdx.x; i < chunks * a.g.places; i += kEpThreads) routing.masks[i] = 0;
    __syncthreads();
    if (mark_tokens<kTopK>(a, first, end, routing, pass != 0)) break;
  }
  if (routing.places != nullptr) return;
  uint32_t* kept = a.local<uint32_t>(a.g.masks) + uint64_t{first_chunk} * a.g.places;
  for (uint32_t i = threadIdx.x; i < a.g.places; i += kEpThreads) kept[i] = routing.masks[i];
  __syncthreads();
}

// The routing, nearer, for kernels that read all of it: by every thread, first.
__device__ inline void fetch_routing(const DispatchArgs& a) {
  constexpr uint32_t kLine = 128;
  const uint32_t bytes = a.tokens * a.g.sizes.top_k * (a.idx_is_int32 != 0 ? 4 : 8);
  const auto* from = static_cast<const std::byte*>(a.topk_idx);
  for (uint32_t at = threadIdx.x * kLine; at < bytes; at += kEpThreads * kLine) {
    prefetch(from + at);
  }
}

// A use that is over without combine: its rows are given back by the start of the next, with this word.
__device__ inline bool is_unused(const DispatchArgs& a, uint64_t last_use) {
  return !peer_table().credited && (last_use != 0 || a.state()->carries != 0);
}
__device__ inline uint64_t unused_word(uint64_t epoch, uint64_t last_use) {
  return signal_tag(epoch, last_use) | combine_payload(CombineWord::kNone, 0);
}
__device__ inline void give_back_unused(const DispatchArgs& a, uint64_t epoch, uint64_t last_use) {
  if (!is_unused(a, last_use)) return;
  const uint64_t word = unused_word(epoch, last_use);
#pragma unroll 1
  for (uint32_t rank = threadIdx.x; rank < a.g.sizes.ranks; rank += kEpThreads) {
    if (!a.is_live(rank)) continue;
    store_word_release(a.rank_word(a.peer(rank), a.g.combine_ready, last_use, a.g.sizes.rank),
                       word);
  }
}

// Sums the chunks' masks of a place, into own_counts. keeps: and what comes before each chunk.
__device__ inline uint32_t sum_place(const DispatchArgs& a, const uint32_t* masks, uint32_t place,
                                     bool keeps) {
  const uint32_t chunks = chunks_of(a.tokens);
  uint32_t* first = a.local<uint32_t>(a.g.chunk_first) + place;
  uint32_t total = 0;
#pragma unroll 8
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    const uint64_t at = uint64_t{chunk} * a.g.places;
    const uint32_t mask = masks[at + place];
    if (keeps) first[at] = total;
    total += static_cast<uint32_t>(__popc(mask));
  }
  a.local<uint32_t>(a.g.own_counts)[place] = total;
  return total;
}

// By one CTA: sums the chunks' masks and tells the counts. If the last use was not combined, the word of place
// 0 is ordered behind what this rank did before the kernel, by the fence that its thread made at the
// start: it gives the rows of that use back.
__device__ inline void publish_counts(const DispatchArgs& a, uint64_t epoch, const uint32_t* masks,
                                      bool alone) {
  const uint64_t use = peer_table().use;
  const uint64_t tag = signal_tag(epoch, use);
  for (uint32_t place = threadIdx.x; place < a.g.places; place += kEpThreads) {
    const uint32_t total = sum_place(a, masks, place, !alone);
    if (a.g.sizes.slotted != 0) continue;
    if (a.g.sizes.by_token != 0) {
      const uint32_t owner = place / a.g.sizes.local_experts;
      if (!a.is_live(owner)) continue;
      store_word(a.count_word(a.peer(owner), use, a.g.sizes.rank, place), tag | total);
      continue;
    }
#ifdef MEP_MUTANT_ZERO_COUNT
    if (total == 0) continue;
#endif
    for (uint32_t rank = 0; rank < a.g.sizes.ranks; ++rank) {
      if (!a.is_live(rank)) continue;
      store_word(a.count_word(a.peer(rank), use, a.g.sizes.rank, place), tag | total);
    }
  }
  if (alone) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  store_word(&a.state()->counted, tag);
}

// The operation begins: for reports, and for the combine that follows. Nobody else reads these now.
__device__ inline void begin_dispatch(const DispatchArgs& a, uint64_t epoch, uint64_t use) {
  EpState& state = *a.state();
  state.channel.epoch = epoch;
  // Without a value that the thread would wait for.
  atomicAdd(reinterpret_cast<unsigned long long*>(&state.channel.seq), 1ull);
  state.dispatch_epoch = epoch;
  a.head()->tokens = a.tokens;
  a.head()->has_weights = a.topk_weights != nullptr ? 1 : 0;
  a.head()->mark = dispatch_mark(epoch, use);
}

// The kernel's end: what the next operation on the buffer begins with.
__device__ inline void commit_dispatch(const DispatchArgs& a, uint64_t use) {
  EpState& state = *a.state();
  state.channel.use = use;
  state.credited = 0;
  state.op_bad_entries = atomicExch(&state.bad_entries, 0u);
}

// Every CTA calls it; when it returns a CTA has the routing, or has to wait for `counted`.
template <int kTopK>
__device__ inline void count_rows(const DispatchArgs& a, uint64_t epoch, bool failed,
                                  const CtaRouting& routing, uint32_t* shared_last) {
  const uint32_t chunks = chunks_of(a.tokens);
  // A use that was combined was given back by that; else the counts say so, see publish_counts(): who may tell
  // them orders them behind what this rank has read of that use.
  const bool tells = blockIdx.x == 0 || routing.places == nullptr;
  if (tells && threadIdx.x == 0 && !peer_table().credited) publish();
  if (blockIdx.x == gridDim.x - 1 && !failed) give_back_unused(a, epoch, peer_table().use - 1);
  if (blockIdx.x == 0 && threadIdx.x == 0) begin_dispatch(a, epoch, peer_table().use);
  if (routing.places != nullptr) {
    if (failed) return;
    mark_chunks<kTopK>(a, 0, chunks, routing);
    test_delay(a, 2);
    if (blockIdx.x == 0) publish_counts(a, epoch, routing.masks, true);
    return;
  }
  const uint32_t ctas = min(chunks, gridDim.x);
  if (blockIdx.x >= ctas) return;
  for (uint32_t chunk = blockIdx.x; chunk < chunks && !failed; chunk += ctas) {
    mark_chunks<kTopK>(a, chunk, 1, routing);
  }
  // Also after a failure, which a CTA that begins late may be the only one to see.
  if (!is_last_of(&a.state()->channel.ticket[0], ctas, shared_last)) return;
  if (failed || has_failed(&a.state()->channel, epoch)) return;
  test_delay(a, 2);
  publish_counts(a, epoch, a.local<uint32_t>(a.g.masks), false);
}

}  // namespace mep::device

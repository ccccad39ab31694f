// Dispatch by token, the receiver's last step: each row that came goes to every place that it has among the rows of this
// rank's experts. A row crosses the bus once, however many experts here want it.
#pragma once

#include "kernels/cuda/ep/receive.cuh"

namespace mep::device {

// The tokens of all sources, numbered through; warps take parts of them in turns.
struct TokenParts {
  uint32_t tokens;  // of all sources
  uint32_t parts;   // of a token's row
  uint32_t steps;   // of a row: what a warp copies at once

  static constexpr uint32_t kAtOnce = 4;
  static constexpr uint32_t kStepBytes = kAtOnce * kRowUnit;

  __device__ TokenParts(const EpGeometry& g, uint32_t tokens_)
      : tokens(tokens_), steps((g.wire_row + kStepBytes - 1) / kStepBytes) {
    const uint32_t warps = gridDim.x * kEpWarps;
    parts = min(max(warps / max(tokens, 1u), 1u), steps);
  }
};

// A row as its source sent it; index null: it did not.
struct SentRow {
  const std::byte* row;
  const std::byte* scales;
  const uint32_t* index;
};
__device__ inline SentRow sent_row(const DispatchArgs& a, uint32_t source, uint32_t token) {
  std::byte* block = source == a.g.sizes.rank ? a.memory.own : a.memory.window;
  const uint64_t at = a.token_row(source, token);
  return {block + a.g.token_rows + at * a.g.wire_row,
          block + a.g.token_scales + at * a.g.groups * a.g.scale_bytes, a.token_index(block, at)};
}

// Where the copies of one row go.
struct CopyPlaces {
  uint32_t at[kMaxEpTopK];
};

// By one warp: the places of a row of `source`, and who sent which entry there if this warp has the row's first part.
// Returns how many.
__device__ inline uint32_t list_places(const DispatchArgs& a, const uint32_t* index,
                                       uint32_t source, uint32_t token, bool tells, uint32_t lane,
                                       CopyPlaces* places) {
  const uint32_t top_k = a.g.sizes.top_k;
  const uint32_t first_place = a.g.sizes.rank * a.g.sizes.local_experts;
  uint32_t count = 0;
  for (uint32_t base = 0; base < top_k; base += kWarpThreads) {
    const uint32_t k = base + lane;
    const uint32_t told = k < top_k ? index[k] : kRowNotSent;
    const uint32_t expert = told / a.g.sizes.max_tokens - first_place;
    const uint32_t slot = told % a.g.sizes.max_tokens;
    int64_t range = 0;
    if (told != kRowNotSent && expert < a.g.sizes.local_experts) {
      range = a.local<int64_t>(a.g.layout_range)[expert * a.g.sizes.ranks + source];
    }
    const bool is_here = slot < static_cast<uint32_t>(range);  // what its counts announced
    const uint32_t here = __ballot_sync(0xffffffffu, is_here);
    if (is_here) {
      const uint64_t row = a.row_index(expert, a.first_row_of(expert, source) + slot);
      const uint32_t place = count + static_cast<uint32_t>(__popc(here & ((1u << lane) - 1)));
      places->at[place] = static_cast<uint32_t>(row);
      if (tells) {
        reinterpret_cast<uint32_t*>(a.memory.own + a.g.entries)[row] = token * top_k + k;
        reinterpret_cast<uint32_t*>(a.memory.own + a.g.src_info)[row] = token;
        if (a.src_info != nullptr) a.src_info[row] = static_cast<int32_t>(token);
      }
    }
    count += static_cast<uint32_t>(__popc(here));
  }
  __syncwarp();
  return count;
}

// Steps [begin, end) of a row to all of its places.
__device__ inline void copy_to_places(std::byte* rows, uint32_t row_bytes, const std::byte* from,
                                      const CopyPlaces& places, uint32_t count, uint32_t begin,
                                      uint32_t end, uint32_t lane) {
  if (count == 0) return;
  for (uint32_t step = begin; step < end; ++step) {
    const uint32_t first = step * TokenParts::kStepBytes + lane * 16;
    uint4 bits[TokenParts::kAtOnce];
#pragma unroll
    for (uint32_t i = 0; i < TokenParts::kAtOnce; ++i) {
      const uint32_t at = first + i * kRowUnit;
      if (at < row_bytes) bits[i] = load_once(from + at);
    }
    for (uint32_t place = 0; place < count; ++place) {
      std::byte* to = rows + uint64_t{places.at[place]} * row_bytes;
#pragma unroll
      for (uint32_t i = 0; i < TokenParts::kAtOnce; ++i) {
        const uint32_t at = first + i * kRowUnit;
        if (at < row_bytes) *reinterpret_cast<uint4*>(to + at) = bits[i];
      }
    }
  }
}

template <class Args>
static __global__ void __launch_bounds__(kEpThreads, 2)
    copy_tokens_kernel(const __grid_constant__ Args a) {
  __shared__ uint32_t first_token[kMaxRanks];
  __shared__ CopyPlaces lists[kEpWarps];
  const uint32_t ranks = a.g.sizes.ranks;
  const uint32_t* tokens_of = a.template local<uint32_t>(a.g.tokens_of);
  const uint32_t total = add_up(
      ranks, [&](uint32_t source) { return tokens_of[source]; },
      [&](uint32_t source, uint32_t sum) { first_token[source] = sum; });
  const RowCopy to(a, a.state()->rows_refused != 0);
  __syncthreads();
  const uint32_t lane = threadIdx.x % kWarpThreads;
  CopyPlaces& places = lists[threadIdx.x / kWarpThreads];
  const TokenParts split(a.g, total);
  const uint32_t warp = threadIdx.x / kWarpThreads * gridDim.x + blockIdx.x;
  for (uint32_t at = warp; at < total * split.parts; at += gridDim.x * kEpWarps) {
    const uint32_t number = at / split.parts;
    const uint32_t part = at - number * split.parts;
    uint32_t source = 0;
    while (source + 1 < ranks && first_token[source + 1] <= number) ++source;
    const uint32_t token = number - first_token[source];
    const SentRow sent = sent_row(a, source, token);
    if (sent.index == nullptr) continue;
    const uint32_t count = list_places(a, sent.index, source, token, part == 0, lane, &places);
    copy_to_places(to.x, a.g.wire_row, sent.row, places, count, split.steps * part / split.parts,
                   split.steps * (part + 1) / split.parts, lane);
    for (uint32_t i = 0; i < count && part == 0 && to.scales != nullptr; ++i) {
      const uint32_t group = places.at[i] / a.g.rows_per_expert;
      const uint32_t row = places.at[i] - group * a.g.rows_per_expert;
      copy_scales(a.g, to.scales + group * to.scale_expert_step + row * to.scale_row_step,
                  a.g.scale_group_step, sent.scales, a.g.scale_bytes, lane);
    }
    __syncwarp();
  }
}

}  // namespace mep::device

// A pushed combine writes terms that do not lie where the token's rank reads them, and values that go back with rows, to
// that rank.
#pragma once

#include "kernels/cuda/ep/common.cuh"

namespace mep::device {

// The caller's values of a row, to the token's rank.
__device__ inline void return_weights(const CombineArgs& a, uint32_t target, uint32_t entry,
                                      uint64_t row, uint32_t lane) {
  const uint32_t top_k = a.g.sizes.top_k;
  auto* to = reinterpret_cast<float*>(a.peer(target) + a.g.weights_in) + uint64_t{entry} * top_k;
  for (uint32_t k = lane; k < top_k; k += kWarpThreads) {
    to[k] = a.returned_weights[row * top_k + k];
  }
}

// How the warps of all CTAs share the rows of terms: with few rows, several warps a row.
struct TermPieces {
  uint32_t count;  // of a row
  uint32_t bytes;  // of a piece; the last may be shorter

  __device__ TermPieces(uint32_t rows, uint32_t row_bytes) {
    constexpr uint32_t kLeastBytes = 4 * kRowUnit;  // that copy_row() has under way
    const uint32_t most = (row_bytes + kLeastBytes - 1) / kLeastBytes;
    count = min(max(gridDim.x * kEpWarps / max(rows, 1u), 1u), most);
    bytes = (row_bytes + count * kRowUnit - 1) / (count * kRowUnit) * kRowUnit;
  }
  __device__ uint32_t begin(uint32_t piece) const { return piece * bytes; }
  __device__ uint32_t length(uint32_t piece, uint32_t row_bytes) const {
    return begin(piece) < row_bytes ? min(bytes, row_bytes - begin(piece)) : 0;
  }
};

// Every term for a token of another rank to its place there, and what goes back with it; warps take pieces of rows in turns.
// first_rows: range_bytes().
template <bool kThroughput>
__device__ inline void push_outputs(const CombineArgs& a, uint32_t* first_rows) {
  const uint32_t lane = threadIdx.x % kWarpThreads;
  const uint32_t* entries = a.entries();
  const uint32_t entry_count = a.g.sizes.max_tokens * a.g.row_k;
  const RowRanges rows(a, first_rows);
  const TermPieces pieces(rows.total, a.g.combine_row);
  bool first = true;
  rows.for_each_piece(pieces.count, [&](const RowOfRange& row, uint32_t piece) {
    const uint32_t target = row.range % a.g.sizes.ranks;
    if (!in_mask(peer_table().complete, target) || !a.is_live(target)) return;
    if (first) test_delay_warp(a, 11);
    first = false;
    const uint64_t index = a.row_index(row.range / a.g.sizes.ranks, row.row);
    const uint32_t entry = entries[index];
    if (entry >= entry_count) return;  // not what a peer of this library writes
    const uint32_t begin = pieces.begin(piece);
    const uint32_t length = pieces.length(piece, a.g.combine_row);
    const std::byte* term = a.y + index * a.g.combine_row + begin;
    if (target == a.g.sizes.rank) {
      if (a.own_copy != nullptr) {
        copy_row(a.own_copy + index * a.g.combine_row + begin, term, length, lane);
      }
    } else if (!kThroughput || a.push != 0) {
      copy_row(a.peer(target) + a.g.combine_in + uint64_t{entry} * a.g.combine_row + begin, term,
               length, lane);
    }
    if constexpr (kThroughput) {
      if (a.returned_weights != nullptr && piece == 0) {
        return_weights(a, target, entry, index, lane);
      }
    }
  });
}

}  // namespace mep::device

// Pushed combine, its first launch: terms that do not lie where the token's rank reads them, and values that go back
// with rows, are written to that rank. Then it is told, as in a pulled combine.
#pragma once

#include "kernels/cuda/ep/combine.cuh"

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

// Every term for a token of another rank to its place there, and what goes back with it; warps take rows in turns.
// first_rows: range_bytes().
template <bool kThroughput>
__device__ inline void push_outputs(const CombineArgs& a, uint32_t* first_rows) {
  const uint32_t lane = threadIdx.x % kWarpThreads;
  const uint32_t* entries = a.entries();
  const uint32_t entry_count = a.g.sizes.max_tokens * a.g.row_k;
  bool first = true;
  RowRanges(a, first_rows).for_each([&](const RowOfRange& row) {
    const uint32_t target = row.range % a.g.sizes.ranks;
    if (!in_mask(peer_table().complete, target) || !a.is_live(target)) return;
    if (first) test_delay_warp(a, 11);
    first = false;
    const uint64_t index = a.row_index(row.range / a.g.sizes.ranks, row.row);
    const uint32_t entry = entries[index];
    if (entry >= entry_count) return;  // not what a peer of this library writes
    const std::byte* term = a.y + index * a.g.combine_row;
    if (target == a.g.sizes.rank) {
      if (a.own_copy != nullptr) {
        copy_row(a.own_copy + index * a.g.combine_row, term, a.g.combine_row, lane);
      }
    } else if (!kThroughput || a.push != 0) {
      copy_row(a.peer(target) + a.g.combine_in + uint64_t{entry} * a.g.combine_row, term,
               a.g.combine_row, lane);
    }
    if constexpr (kThroughput) {
      if (a.returned_weights != nullptr) return_weights(a, target, entry, index, lane);
    }
  });
}

template <bool kThroughput>
static __global__ void __launch_bounds__(kEpThreads, 2)
    push_terms_kernel(const __grid_constant__ CombineArgs a) {
  auto* const first_rows = launched_shared<uint32_t>();
  __shared__ uint32_t shared_last;
  DeviceChannel& channel = a.state()->channel;
  a.read_peers();
  read_dispatch(a);
  const uint64_t epoch = a.memory.control->epoch;
  const bool failed = __syncthreads_or(has_failed(&channel, epoch) ? 1 : 0) != 0;
  test_delay(a, 7);
  if (!failed) push_outputs<kThroughput>(a, first_rows);
  test_delay(a, 8);
  if (is_last_cta(&channel.ticket[0], &shared_last)) {
    announce_outputs<kThroughput>(a, epoch, failed);
  }
}

}  // namespace mep::device

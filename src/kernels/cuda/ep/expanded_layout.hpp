// The expanded layout of high throughput on a GPU: where it keeps what it needs. Plain C++; the rank's own memory, no
// peer writes any of it.
//
//   local     row_slots   [R * M][K] the expanded row of each received row and k, -1: none
//             masks       [chunks][E_local] which rows of a chunk name an expert; a chunk is 32 received rows
//             before      [chunks][E_local] how many rows of earlier chunks do
//             group_first [E_local + 1] first expanded row of each expert, then their number
//             values      [R * M][K] values that go back with the rows
//   expanded  a block: x, scales, weights, tokens, y of X rows, see mep_ep_view_t; ranges [E_local][R]
//             scales: row-major [X][groups], column-major [groups][X rounded up to 16 bytes]
#pragma once

#include <cstdint>

namespace mep::device {

struct EpExpandedLayout {
  uint64_t rows;    // X; 0: the layout is another
  uint32_t chunks;  // of R * M rows
  // Local.
  uint64_t row_slots, masks, before, group_first, values;
  // Expanded.
  uint64_t scale_row_step, scale_group_step;  // bytes
  uint64_t x, scales, weights, tokens, y, ranges, bytes;
};

}  // namespace mep::device

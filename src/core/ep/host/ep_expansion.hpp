// The expanded layout of what a rank received in high throughput: each row once for each of its local experts.
//
//   received row   --- spread --->  expanded rows, one for each k that names a local expert
//   its output     <--- fold -----  float32 sum of theirs in ascending k, rounded once
//
// The groups of the experts follow each other, each rounded up to expert_alignment by rows of zeros; the rows of a
// group keep the order in which they were received. The memory is this rank's own and no part of a window; pages are
// taken as rows are written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/ep/ep_config.hpp"
#include "mep.h"

namespace mep {

// Received rows, of which the first `count` are there.
struct EpReceivedRows {
  int64_t count;
  const int32_t* local;             // [count][K] local experts, kNoExpert for none
  const int32_t* tokens;            // [count] on their sources
  const mep_range_t* layout_range;  // [R] of the sources
  const int32_t* rounded_counts;    // [E_local] how often `local` names each, rounded up
};

class EpExpansion {
 public:
  // Takes no memory where the shape is not expanded.
  explicit EpExpansion(const EpShape& shape);
  [[nodiscard]] mep_result_t allocate();
  // Bytes of the memory for rows; 0 where the shape is not expanded.
  static uint64_t row_memory(const EpShape& shape);

  // Gives all rows their places.
  void place(const EpReceivedRows& rows);
  int64_t total() const { return total_; }  // with padding

  // Rows of `bytes` from `rows` to their places in `out`, rows of which are `stride` apart; padding becomes zeros.
  void spread(const std::byte* rows, size_t bytes, std::byte* out, size_t stride);
  // weights: [received][K].
  void spread_weights(const float* weights);

  // The sum of the expanded rows in y of received row `row`.
  void fold(uint64_t row, const std::byte* y, std::byte* out) const;
  // Brings the values of `count` received rows, from `first` on, back into their order; values: [total].
  void fold_values(uint64_t first, uint64_t count, const float* values);
  const float* folded_values() const { return folded_values_.data(); }  // [R * M][K]

  // Each has X rows, see mep_ep_view_t. x, scales and y: where the shape has memory for rows.
  std::byte* x() const { return memory_.get(); }
  std::byte* scales() const { return memory_.get() + scales_at_; }
  float* weights() const { return reinterpret_cast<float*>(memory_.get() + weights_at_); }
  int32_t* tokens() const { return reinterpret_cast<int32_t*>(memory_.get() + tokens_at_); }
  std::byte* y() const { return memory_.get() + y_at_; }
  const int32_t* slots() const { return slots_.data(); }  // [R * M][K] the expanded row, -1: none
  const std::vector<mep_range_t>& layout_range() const { return layout_range_; }  // [E_local][R]

 private:
  struct Unmap {
    size_t bytes;
    void operator()(std::byte* memory) const;
  };

  // The rows of x() or scales() that are not zeros; null: `out` is memory of the caller.
  uint8_t* written_of(const std::byte* out);
  // For each row that pads a group.
  template <typename Each>
  void for_padding(Each&& each) const;

  const EpShape shape_;
  uint64_t scales_at_ = 0, weights_at_ = 0, tokens_at_ = 0, y_at_ = 0;
  std::unique_ptr<std::byte, Unmap> memory_;
  int64_t received_ = 0, placed_ = 0, total_ = 0;    // rows; expanded ones; with padding
  std::vector<uint8_t> x_written_, scales_written_;  // [X] 0: the row is zeros
  std::vector<int32_t> slots_;
  std::vector<int64_t> rows_end_;          // [E_local] of each group, before its padding
  std::vector<int64_t> group_end_;         // [E_local] with padding
  std::vector<mep_range_t> layout_range_;  // [E_local][R]
  std::vector<float> folded_values_;       // [R * M][K]
};

}  // namespace mep

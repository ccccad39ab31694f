#include "core/ep/host/ep_expansion.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/status.hpp"
#include "core/ep/routing.hpp"
#include "kernels/host/kernels.hpp"

namespace mep {
namespace {

// Where each array lies in the memory for rows, on pages.
struct RowMemory {
  uint64_t scales, weights, tokens, y, bytes;

  explicit RowMemory(const EpShape& shape) {
    const uint64_t rows = shape.expanded_rows();
    const uint64_t kept = shape.has_row_memory() ? rows : 0;
    const auto behind = [](uint64_t begin, uint64_t count) {
      constexpr uint64_t kPage = 4096;
      return begin + (count + kPage - 1) / kPage * kPage;
    };
    scales = behind(0, kept * shape.wire_row_bytes());
    weights = behind(scales, kept * shape.scale_row_bytes());
    tokens = behind(weights, rows * sizeof(float));
    y = behind(tokens, rows * sizeof(int32_t));
    bytes = behind(y, kept * shape.combine_row_bytes());
  }
};

}  // namespace

uint64_t EpExpansion::row_memory(const EpShape& shape) {
  return shape.expanded() ? RowMemory(shape).bytes : 0;
}

void EpExpansion::Unmap::operator()(std::byte* memory) const {
  munmap(memory, bytes);
}

EpExpansion::EpExpansion(const EpShape& shape) : shape_(shape) {
  if (!shape.expanded()) return;
  slots_.resize(shape.rows() * shape.top_k);
  rows_end_.resize(shape.local_experts);
  group_end_.resize(shape.local_experts);
  layout_range_.resize(size_t{shape.local_experts} * shape.ranks);
  folded_values_.resize(shape.rows() * shape.top_k);
  if (!shape.has_row_memory()) return;
  x_written_.resize(shape.expanded_rows());
  scales_written_.resize(shape.has_scales() ? shape.expanded_rows() : 0);
}

mep_result_t EpExpansion::allocate() {
  if (!shape_.expanded()) return MEP_SUCCESS;
  const RowMemory at(shape_);
  void* memory = mmap(nullptr, at.bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return fail(MEP_ERR_NO_MEMORY,
                "there is no room for %llu bytes of expanded rows (MEP_EP_EXPANDED): lower "
                "max_tokens_per_rank, hidden, experts_per_rank or expert_alignment",
                static_cast<unsigned long long>(at.bytes));
  }
  memory_ = {static_cast<std::byte*>(memory), Unmap{at.bytes}};
  scales_at_ = at.scales;
  weights_at_ = at.weights;
  tokens_at_ = at.tokens;
  y_at_ = at.y;
  return MEP_SUCCESS;
}

template <typename Each>
void EpExpansion::for_padding(Each&& each) const {
  for (size_t expert = 0; expert < rows_end_.size(); ++expert) {
    for (int64_t row = rows_end_[expert]; row < group_end_[expert]; ++row) each(row);
  }
}

void EpExpansion::place(const EpReceivedRows& rows) {
  received_ = rows.count;
  total_ = placed_ = 0;
  for (size_t expert = 0; expert < rows_end_.size(); ++expert) {
    rows_end_[expert] = total_;
    total_ += rows.rounded_counts[expert];
    group_end_[expert] = total_;
  }
  std::fill(layout_range_.begin(), layout_range_.end(), mep_range_t{});
  const uint32_t top_k = shape_.top_k;
  for (uint32_t source = 0; source < shape_.ranks; ++source) {
    const auto of_source = [&](size_t expert) -> mep_range_t& {
      return layout_range_[expert * shape_.ranks + source];
    };
    for (size_t expert = 0; expert < rows_end_.size(); ++expert)
      of_source(expert) = {0, static_cast<int32_t>(rows_end_[expert])};
    const Rows range(rows.layout_range[source]);
    for (uint64_t row = range.begin; row < range.begin + range.count; ++row) {
      for (uint32_t k = 0; k < top_k; ++k) {
        const int32_t expert = rows.local[row * top_k + k];
        int32_t& slot = slots_[row * top_k + k];
        slot = -1;
        if (expert == kNoExpert) continue;
        slot = static_cast<int32_t>(rows_end_[static_cast<size_t>(expert)]++);
        tokens()[slot] = rows.tokens[row];
        ++placed_;
        ++of_source(static_cast<size_t>(expert)).count;
      }
    }
  }
  for_padding([&](int64_t row) {
    tokens()[row] = -1;
    weights()[row] = 0;
  });
}

uint8_t* EpExpansion::written_of(const std::byte* out) {
  if (!shape_.has_row_memory()) return nullptr;
  if (out == x()) return x_written_.data();
  return out == scales() ? scales_written_.data() : nullptr;
}

void EpExpansion::spread(const std::byte* rows, size_t bytes, std::byte* out, size_t stride) {
  uint8_t* const written = written_of(out);
  const bool non_temporal = static_cast<uint64_t>(placed_) * bytes >= kNonTemporalBytes;
  const uint32_t top_k = shape_.top_k;
  for (int64_t row = 0; row < received_; ++row) {
    const int32_t* const slots = slots_.data() + row * top_k;
    for (uint32_t k = 0; k < top_k; ++k) {
      if (slots[k] < 0) continue;
      copy_row(out + static_cast<size_t>(slots[k]) * stride,
               rows + static_cast<size_t>(row) * bytes, bytes, non_temporal);
      if (written != nullptr) written[slots[k]] = 1;
    }
  }
  for_padding([&](int64_t row) {
    if (written != nullptr && written[row] == 0) return;
    std::memset(out + static_cast<size_t>(row) * stride, 0, bytes);
    if (written != nullptr) written[row] = 0;
  });
}

void EpExpansion::spread_weights(const float* values) {
  const auto count = static_cast<size_t>(received_) * shape_.top_k;
  for (size_t at = 0; at < count; ++at) {
    if (slots_[at] >= 0) weights()[slots_[at]] = values[at];
  }
}

void EpExpansion::fold(uint64_t row, const std::byte* y, std::byte* out) const {
  const size_t bytes = shape_.combine_row_bytes();
  const void* rows[MEP_MAX_TOP_K];
  float ones[MEP_MAX_TOP_K];
  uint32_t count = 0;
  for (uint32_t k = 0; k < shape_.top_k; ++k) {
    const int32_t slot = slots_[row * shape_.top_k + k];
    if (slot < 0) continue;
    rows[count] = y + static_cast<size_t>(slot) * bytes;
    ones[count++] = 1;
  }
  combine_rows(shape_.combine_type, out, rows, ones, count, shape_.hidden, false);
}

void EpExpansion::fold_values(uint64_t first, uint64_t count, const float* values) {
  for (uint64_t at = first * shape_.top_k; at < (first + count) * shape_.top_k; ++at) {
    folded_values_[at] = slots_[at] < 0 ? 0 : values[slots_[at]];
  }
}

}  // namespace mep

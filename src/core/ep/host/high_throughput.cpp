// High throughput: a token goes once to each rank that has experts of it, and comes back as one sum of each.
//
// Rows, their places and the combine are those of low latency with a rank in the place of an expert. A row brings the
// local experts and the weights of its token besides. A replay sends other rows by the routing of an earlier dispatch,
// to the same places; it waits for no counts, but like a slotted dispatch for the combine word of the use before.
#include <algorithm>
#include <cstring>

#include "base/status.hpp"
#include "core/ep/host/ep_drive.hpp"

namespace mep {

// Rows of a rank follow each other, so the first entry says where they begin.
void EpBuffer::find_first_rows() {
  const std::vector<RouteEntry>& entries = use_.handle->routing.entries;
  for (uint32_t target = 0; target < shape_.ranks; ++target) {
    const bool any = sent_.router.counts()[target] != 0;
    sent_.first_row[target] = any ? entries[sent_.router.entries_of(target)[0]].row : 0;
  }
}

// Each target has a place of its own in what is sent: that of lower ranks may still be on its way.
mep_result_t EpBuffer::put_topk(uint32_t target) {
  const Routing& routing = use_.handle->routing;
  const uint32_t count = sent_.router.counts()[target];
  if (count == 0) return MEP_SUCCESS;
  const uint32_t* entries = sent_.router.entries_of(target);
  const uint32_t top_k = shape_.top_k;
  const size_t first = sent_.router.rows_before(target);
  int32_t* const local = sent_.topk_idx.data() + first * top_k;
  float* const weights = sent_.topk_weights.data() + first * top_k;
  const auto begin = static_cast<int32_t>(target * shape_.local_experts);
  const int32_t end = begin + static_cast<int32_t>(shape_.local_experts);
  for (uint32_t i = 0; i < count; ++i) {
    const size_t chosen = size_t{entries[i] / shape_.row_k} * top_k;
    for (uint32_t k = 0; k < top_k; ++k) {
      const int32_t expert = routing.experts[chosen + k];
      const bool is_there = expert >= begin && expert < end;
      const float weight = routing.has_weights ? routing.weights[chosen + k] : 1;
      local[size_t{i} * top_k + k] = is_there ? expert - begin : kNoExpert;
      weights[size_t{i} * top_k + k] = is_there ? weight : 0;
    }
  }
  const size_t bytes = size_t{count} * top_k * sizeof(uint32_t);
  const uint64_t row = layout_.row(0, sent_.first_row[target]);
  MEP_TRY(windows_[target].put(layout_.topk_idx(row), local, bytes));
  return windows_[target].put(layout_.topk_weights(row), weights, bytes);
}

// Written by a peer: read once, checked, and kept.
mep_result_t EpBuffer::read_topk(uint64_t row, uint32_t count, uint32_t source) {
  if (count == 0) return MEP_SUCCESS;
  int32_t* const kept = received_.topk_idx.data() + row * shape_.top_k;
  const size_t values = size_t{count} * shape_.top_k;
  std::memcpy(kept, windows_.data() + layout_.topk_idx(row), values * sizeof(int32_t));
  const uint32_t most = std::min(shape_.top_k, shape_.local_experts);
  uint32_t named = 0;  // by the row
  for (size_t i = 0; i < values; ++i) {
    if (i % shape_.top_k == 0) named = 0;
    if (kept[i] == kNoExpert) continue;
    if (kept[i] < 0 || static_cast<uint32_t>(kept[i]) >= shape_.local_experts) {
      return fail(MEP_ERR_MISMATCH, "rank %u sent a row for local expert %d; there are %u", source,
                  kept[i], shape_.local_experts);
    }
    if (++named > most) {
      return fail(MEP_ERR_MISMATCH, "rank %u sent a row that names a local expert twice", source);
    }
    ++received_.expert_rows[static_cast<size_t>(kept[i])];
  }
  return MEP_SUCCESS;
}

void EpBuffer::count_experts() {
  const int64_t unit = shape_.expert_alignment;
  for (size_t expert = 0; expert < received_.expert_rows.size(); ++expert) {
    const int64_t rounded = (received_.expert_rows[expert] + unit - 1) / unit * unit;
    received_.count[expert] = static_cast<int32_t>(std::min<int64_t>(rounded, INT32_MAX));
  }
}

void EpBuffer::copy_topk(const DispatchOutput& outputs) const {
  const auto values = static_cast<size_t>(received_.total) * shape_.top_k;
  if (outputs.recv_topk_idx != nullptr) {
    std::copy_n(received_.topk_idx.data(), values, outputs.recv_topk_idx);
  }
  if (outputs.recv_topk_weights != nullptr && values != 0) {
    std::memcpy(outputs.recv_topk_weights, windows_.data() + layout_.topk_weights(0),
                values * sizeof(float));
  }
}

// Places for the expanded rows of what was received.
void EpBuffer::expand() {
  received_.expansion.place({received_.total, received_.topk_idx.data(), received_.src_info.data(),
                             received_.layout_range.data(), received_.count.data()});
}

// Rows and scales go from where they arrived straight to the caller's memory, where it gives any.
void EpBuffer::copy_expanded(const DispatchOutput& outputs) {
  const std::byte* base = windows_.data();
  const size_t row_bytes = shape_.wire_row_bytes();
  const size_t scale_bytes = shape_.scale_row_bytes();
  const auto total = static_cast<size_t>(received_.expansion.total());
  auto* const x = static_cast<std::byte*>(outputs.recv_x);
  if (op_.has_rows) {
    received_.expansion.spread(base + layout_.recv_x(0), row_bytes,
                               x != nullptr ? x : received_.expansion.x(), row_bytes);
  }
  if (op_.has_rows && scale_bytes != 0) {
    auto* const scales = static_cast<std::byte*>(outputs.recv_scales);
    const size_t stride = outputs.recv_scales_token_stride_bytes;
    received_.expansion.spread(base + layout_.scales(0), scale_bytes,
                               scales != nullptr ? scales : received_.expansion.scales(),
                               scales != nullptr && stride != 0 ? stride : scale_bytes);
  }
  received_.expansion.spread_weights(
      reinterpret_cast<const float*>(base + layout_.topk_weights(0)));
  if (outputs.recv_topk_weights != nullptr) {
    std::copy_n(received_.expansion.weights(), total, outputs.recv_topk_weights);
  }
  if (outputs.src_info != nullptr)
    std::copy_n(received_.expansion.tokens(), total, outputs.src_info);
}

// Sums the outputs for the rows of `target` into combine_out, where it reads them or they are sent from. False: not
// all, as nothing may be written to peers now.
bool EpBuffer::fold_rows(uint32_t target, const CombineInput& input, const PostingScope& posting) {
  const auto* const y = static_cast<const std::byte*>(input.y);
  const auto [first, count] = Rows(received_.layout_range[target]);
  for (uint64_t row = first; row < first + count; ++row) {
    if (!posting.allowed()) return false;
    received_.expansion.fold(row, y, combine_out() + row * shape_.combine_row_bytes());
  }
  if (input.topk_weights != nullptr)
    received_.expansion.fold_values(first, count, input.topk_weights);
  return true;
}

// Values for the rows of `target`, in their order there. The mark behind them says that they are of this use; it comes
// before the combine word.
mep_result_t EpBuffer::put_weights(uint32_t target, const float* weights) const {
  const auto [begin, count] = Rows(received_.layout_range[target]);
  if (count == 0) return MEP_SUCCESS;
  const Remote& remote = windows_[target];
  const uint64_t bytes = count * shape_.top_k * sizeof(float);
  MEP_TRY(remote.put(layout_.weights_in(shape_.rank), weights + begin * shape_.top_k, bytes));
  return remote.put(layout_.weights_in_mark(shape_.rank), &use_.handle->mark,
                    sizeof use_.handle->mark);
}

void EpBuffer::sum_weights(float* out) {
  const Routing& routing = use_.handle->routing;
  const uint32_t top_k = shape_.top_k;
  std::fill_n(out, size_t{routing.tokens} * top_k, 0.0f);
  sent_.router.count(routing);
  for (uint32_t owner = 0; owner < shape_.ranks; ++owner) {
    const uint32_t count = sent_.router.counts()[owner];
    uint32_t mark = 0;
    std::memcpy(&mark, windows_.data() + layout_.weights_in_mark(owner), sizeof mark);
    if (count == 0 || sums_.outputs[owner] == CombineWord::kNone || mark != use_.handle->mark)
      continue;
    const uint32_t* entries = sent_.router.entries_of(owner);
    const std::byte* values = windows_.data() + layout_.weights_in(owner);
    for (uint32_t i = 0; i < count; ++i) {
      float* sums = out + size_t{entries[i] / shape_.row_k} * top_k;
      for (uint32_t k = 0; k < top_k; ++k) {
        float value = 0;
        std::memcpy(&value, values + (size_t{i} * top_k + k) * sizeof value, sizeof value);
        sums[k] += value;
      }
    }
  }
}

}  // namespace mep

// Dispatch, the receiver's side: what arrived, in which order it lies, and the caller's outputs.
//
// Counts and entries were written by peers: they are read once, checked, and kept here; what follows
// uses only the kept ones.
#include <algorithm>
#include <cstring>

#include "base/status.hpp"
#include "core/ep/host/ep_drive.hpp"

namespace mep {
namespace {

unsigned long long number(uint64_t value) {
  return value;
}

// A counter that is full wraps around.
template <typename Counter>
void add_rows(Counter* counter, int64_t rows) {
  *counter = static_cast<Counter>(static_cast<uint64_t>(*counter) + static_cast<uint64_t>(rows));
}

}  // namespace

Step EpBuffer::step_receive() {
  if (!arrived_from_all(EpWord::kRowsReady, use_.number)) return Step::kPending;
  std::copy(is_member_.begin(), is_member_.end(), received_.complete.begin());
  const mep_result_t arranged = arrange(nullptr);
  if (arranged != MEP_SUCCESS) return hard_failure(arranged);
  if (!engine_.complete(op_.epoch, op_.seq)) return Step::kPending;  // the view decides
  op_.finished = true;
  note_complete();
  leave_peers_alone();
  return Step::kDone;
}

// Fills received_ from the sources that are complete.
// kept_counts: [R][G] of this use, copied out when the epoch ended; null: they lie in the window.
// Packed, the rows of an incomplete source leave a hole, which is closed: the rows behind it move up.
mep_result_t EpBuffer::arrange(const uint32_t* kept_counts) {
  const uint32_t first_column = shape_.rank * shape_.row_groups;
  received_.compacted = false;
  received_.total = 0;
  std::fill(received_.expert_rows.begin(), received_.expert_rows.end(), 0);
  for (uint32_t group = 0; group < shape_.row_groups; ++group) {
    uint64_t from = 0;
    uint64_t to = 0;
    uint64_t total = 0;
    for (uint32_t source = 0; source < shape_.ranks; ++source) {
      if (shape_.slotted()) from = to = uint64_t{source} * shape_.max_tokens;
      uint32_t count = 0;
      if (is_member_[source] != 0 && kept_counts != nullptr) {
        count = kept_counts[size_t{source} * shape_.row_groups + group];
      } else if (is_member_[source] != 0) {
        std::memcpy(&count,
                    windows_.data() + layout_.counts(use_.number, source, first_column + group),
                    sizeof count);
      }
      mep_range_t& range = received_.layout_range[size_t{group} * shape_.ranks + source];
      range = {0, static_cast<int32_t>(to)};
      if (received_.complete[source] == 0) {
        from += count;
        continue;
      }
      // Never below `to`; counts of incomplete sources are in it.
      if (count > shape_.max_tokens || from + count > shape_.rows_per_expert()) {
        return fail(MEP_ERR_MISMATCH,
                    "rank %u announced %u rows for one expert; at most %u tokens "
                    "are possible",
                    source, count, shape_.max_tokens);
      }
      if (from != to) move_rows(group, from, to, count);
      MEP_TRY(read_entries(group, to, count, source));
      if (shape_.high_throughput()) MEP_TRY(read_topk(layout_.row(group, to), count, source));
      range.count = static_cast<int32_t>(count);
      from += count;
      to += count;
      total += count;
    }
    if (!shape_.high_throughput()) received_.count[group] = static_cast<int32_t>(total);
    received_.total += static_cast<int64_t>(total);
  }
  if (shape_.high_throughput()) count_experts();
  if (shape_.expanded()) expand();
  return MEP_SUCCESS;
}

void EpBuffer::receive_nothing() {
  std::fill(received_.complete.begin(), received_.complete.end(), 0);
  std::fill(received_.count.begin(), received_.count.end(), 0);
  std::fill(received_.layout_range.begin(), received_.layout_range.end(), mep_range_t{});
  std::fill(received_.expert_rows.begin(), received_.expert_rows.end(), 0);
  received_.total = 0;
  if (shape_.expanded()) expand();
}

mep_result_t EpBuffer::read_entries(uint32_t local_expert, uint64_t begin, uint32_t count,
                                    uint32_t source) {
  const uint64_t row = layout_.row(local_expert, begin);
  uint32_t* entries = received_.row_entry.data() + row;
  if (count != 0) {
    std::memcpy(entries, windows_.data() + layout_.entry(row), count * sizeof(uint32_t));
  }
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t token = entries[i] / shape_.row_k;
    if (token >= shape_.max_tokens) {
      return fail(MEP_ERR_MISMATCH, "rank %u sent a row of token %u; max_tokens_per_rank is %u",
                  source, token, shape_.max_tokens);
    }
    received_.src_info[row + i] = static_cast<int32_t>(token);
  }
  return MEP_SUCCESS;
}

// Down, over a hole. From then on the senders do not know where their rows lie, see step_combine_send.
void EpBuffer::move_rows(uint32_t local_expert, uint64_t from, uint64_t to, uint32_t count) {
  received_.compacted = true;
  if (count == 0) return;
  const uint64_t source = layout_.row(local_expert, from);
  const uint64_t target = layout_.row(local_expert, to);
  std::byte* base = windows_.data();
  std::memmove(base + layout_.entry(target), base + layout_.entry(source),
               count * sizeof(uint32_t));
  std::memmove(base + layout_.recv_x(target), base + layout_.recv_x(source),
               count * shape_.wire_row_bytes());
  if (shape_.has_scales()) {
    std::memmove(base + layout_.scales(target), base + layout_.scales(source),
                 count * shape_.scale_row_bytes());
  }
  if (shape_.high_throughput()) {
    const size_t bytes = size_t{count} * shape_.top_k * sizeof(uint32_t);
    std::memmove(base + layout_.topk_idx(target), base + layout_.topk_idx(source), bytes);
    std::memmove(base + layout_.topk_weights(target), base + layout_.topk_weights(source), bytes);
  }
}

// --- Outputs --------------------------------------------------------------------------------------

mep_result_t EpBuffer::deliver(const DispatchOutput& outputs) {
  // The operation is over, but not received: the caller may ask again with more room.
  MEP_TRY(check_capacity(outputs));
  if (shape_.expanded()) {
    copy_expanded(outputs);
  } else {
    copy_rows(outputs);
    if (shape_.high_throughput()) copy_topk(outputs);
  }
  tell_counts(outputs);
  const size_t experts = shape_.local_experts;
  if (outputs.layout_range != nullptr) {
    const std::vector<mep_range_t>& ranges =
        shape_.expanded() ? received_.expansion.layout_range() : received_.layout_range;
    std::copy(ranges.begin(), ranges.end(), outputs.layout_range);
  }
  for (size_t local = 0; outputs.statistics != nullptr && local < experts; ++local) {
    const int64_t rows =
        shape_.high_throughput() ? received_.expert_rows[local] : received_.count[local];
    if (outputs.statistics_type == MEP_INT32) {
      add_rows(static_cast<int32_t*>(outputs.statistics) + local, rows);
    } else {
      add_rows(static_cast<int64_t*>(outputs.statistics) + local, rows);
    }
  }
  use_.stage = Stage::kReceived;  // also where memory runs out in what follows
  begin_y(*use_.handle);
  agree_on_result();
  note_record(received_.complete);
  tell_status(outputs.op_status, outputs.op_status_bytes);
  return result_of_operation();
}

void EpBuffer::tell_counts(const DispatchOutput& outputs) const {
  for (int32_t* counts : {outputs.recv_count, outputs.recv_count_host}) {
    if (counts != nullptr) std::copy(received_.count.begin(), received_.count.end(), counts);
  }
  if (outputs.token_range != nullptr) {
    std::copy(received_.layout_range.begin(), received_.layout_range.end(), outputs.token_range);
  }
  if (outputs.recv_total != nullptr) {
    *outputs.recv_total = shape_.expanded() ? received_.expansion.total() : received_.total;
  }
}

mep_result_t EpBuffer::check_capacity(const DispatchOutput& outputs) const {
  if (outputs.recv_x == nullptr || outputs.recv_capacity == 0) return MEP_SUCCESS;
  auto rows = static_cast<uint64_t>(shape_.expanded() ? received_.expansion.total() : 0);
  for (uint32_t local = 0; !shape_.expanded() && local < shape_.row_groups; ++local) {
    for (uint32_t source = 0; source < shape_.ranks; ++source) {
      const Rows range(received_.layout_range[size_t{local} * shape_.ranks + source]);
      if (range.count != 0) rows = std::max(rows, layout_.row(local, range.begin + range.count));
    }
  }
  const uint64_t bytes = rows * shape_.wire_row_bytes();
  if (bytes <= outputs.recv_capacity) return MEP_SUCCESS;
  return fail(MEP_ERR_CAPACITY,
              "recv_capacity is %llu bytes, the rows that arrived need %llu; receive again "
              "with more",
              number(outputs.recv_capacity), number(bytes));
}

// Into the caller's memory, which has the form of the library's; only rows that arrived.
void EpBuffer::copy_rows(const DispatchOutput& outputs) const {
  const std::byte* base = windows_.data();
  auto* x = static_cast<std::byte*>(outputs.recv_x);
  auto* scales = static_cast<std::byte*>(outputs.recv_scales);
  int32_t* info = outputs.src_info;
  if (x == nullptr && scales == nullptr && info == nullptr) return;
  const size_t row_bytes = shape_.wire_row_bytes();
  const size_t scale_bytes = shape_.scale_row_bytes();
  const size_t token_stride = outputs.recv_scales_token_stride_bytes != 0
                                  ? outputs.recv_scales_token_stride_bytes
                                  : scale_bytes;
  const size_t group_stride = outputs.recv_scales_group_stride_bytes != 0
                                  ? outputs.recv_scales_group_stride_bytes
                                  : token_stride * shape_.rows_per_expert();
  for (uint32_t local = 0; local < shape_.row_groups; ++local) {
    for (uint32_t source = 0; source < shape_.ranks; ++source) {
      const auto [begin, count] =
          Rows(received_.layout_range[size_t{local} * shape_.ranks + source]);
      if (count == 0) continue;
      const uint64_t row = layout_.row(local, begin);
      if (x != nullptr) {
        std::memcpy(x + row * row_bytes, base + layout_.recv_x(row), count * row_bytes);
      }
      if (info != nullptr) std::copy_n(received_.src_info.data() + row, count, info + row);
      for (uint64_t i = 0; scales != nullptr && i < count; ++i) {
        std::memcpy(scales + local * group_stride + (begin + i) * token_stride,
                    base + layout_.scales(row + i), scale_bytes);
      }
    }
  }
}

}  // namespace mep

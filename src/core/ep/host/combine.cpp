// Combine: every rank says that its experts' terms are ready and gives back the rows it had received;
// then each sums its tokens' terms in ascending k. Terms are read where they lie if the reader has
// them mapped and they are in the library's memory, else they were put to the reader: the same bits
// are added in the same order either way.
#include <algorithm>
#include <cstring>
#include <span>

#include "base/peer_memory.hpp"
#include "base/status.hpp"
#include "base/test_delay.hpp"
#include "core/ep/ep_arguments.hpp"
#include "core/ep/host/ep_drive.hpp"
#include "kernels/host/kernels.hpp"

namespace mep {

mep_result_t EpBuffer::combine(EpHandle& handle, const CombineInput* send,
                               const CombineOutput* receive) {
  MEP_TRY(check_combine(handle, send, receive));
  const TimeLimit time = limit(receive != nullptr ? receive->timeout_ms : send->timeout_ms);
  const Deadline deadline = Deadline::after_ms(time.ms);
  const SourceRelease release(this, send != nullptr);
  do {
    if (send != nullptr) {
      const auto* y = static_cast<const std::byte*>(send->y);
      MEP_TRY(begin_combine(handle, y, receive != nullptr));
    }
    op_.limit = time;
    op_.waits.begin(receive != nullptr ? receive->wait_ns : nullptr);
    if (send != nullptr) drive(deadline, [&] { return step_combine_send(*send); });
  } while (op_.overtaken);
  if (receive == nullptr) return result_of_operation();
  drive(deadline, [&] { return step_combine_receive(); });
  op_.waits.end(shape_.rank);
  return finish_combine(*receive);
}

mep_result_t EpBuffer::check_combine(const EpHandle& handle, const CombineInput* send,
                                     const CombineOutput* receive) const {
  if (send == nullptr && (use_.stage != Stage::kCombining || use_.handle != &handle)) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "there is no combine of this handle to receive; send one first");
  }
  MEP_TRY(check_combine_halves(shape_, send != nullptr, receive != nullptr));
  if (send != nullptr) MEP_TRY(check_combine_input(shape_, *send));
  if (receive == nullptr) return MEP_SUCCESS;
  // Before anything is written to `out`: a caller that thinks of another dispatch has made it too small.
  if (use_.handle == &handle && receive->num_tokens != 0 &&
      receive->num_tokens != handle.routing.tokens) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "num_tokens is %u; the handle's dispatch had %u tokens",
                receive->num_tokens, handle.routing.tokens);
  }
  mep_ep_view_t view{};
  fill_view(&view);
  return check_combine_output(shape_, view, handle.routing.tokens, *receive);
}

mep_result_t EpBuffer::begin_combine(EpHandle& handle, const std::byte* y, bool receives) {
  if (use_.handle != &handle) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "the buffer holds no dispatch of this handle: there was "
                "none, it was combined, or the buffer was used again");
  }
  if (use_.stage != Stage::kReceived) {
    return fail(MEP_ERR_BUSY, "the handle's last %s was not received",
                use_.stage == Stage::kDispatching ? "dispatch" : "combine");
  }
  Reports::Report told;
  const mep_result_t caught = catch_up(&told);
  if (caught != MEP_SUCCESS)
    return uniform() ? begin_report(Stage::kCombining, &handle, caught, std::move(told)) : caught;
  begin_operation(Stage::kCombining, &handle);
  std::fill(sums_.outputs.begin(), sums_.outputs.end(), CombineWord::kNone);
  sums_.missing_place = kNoExpert;
  // The own experts' terms need no copy if they stay where they are until this call has read them.
  sums_.own_terms = shape_.expanded() ? combine_out() : y;
  const bool stays = sums_.own_terms == combine_out() || receives;
  if (!stays || received_.compacted) sums_.own_terms = nullptr;
  return MEP_SUCCESS;
}

Step EpBuffer::step_combine_send(const CombineInput& input) {
  const auto* y = shape_.expanded() ? combine_out() : static_cast<const std::byte*>(input.y);
  const float* weights =
      shape_.expanded() ? received_.expansion.folded_values() : input.topk_weights;
  // Each rank begins with itself, so that not all send to the same one first.
  const auto first = static_cast<size_t>(
      std::lower_bound(members_.begin(), members_.end(), shape_.rank) - members_.begin());
  const PostingScope posting = engine_.posting();
  // If the caller made y by stores past the caches, the scope's locked increment has drained them.
  for (; op_.cursor < members_.size(); ++op_.cursor) {
    if (!posting.allowed()) return Step::kPending;
    const uint32_t target = members_[(first + op_.cursor) % members_.size()];
    CombineWord kind = CombineWord::kNone;
    if (received_.complete[target] != 0) {
      if (shape_.expanded() && !fold_rows(target, input, posting)) return Step::kPending;
      // After a move the reader does not know the rows' places.
      const bool in_place = y == combine_out() && pulls_[target] != 0 && !received_.compacted;
      const bool own = target == shape_.rank && sums_.own_terms != nullptr;
      kind = in_place || own ? CombineWord::kPull : CombineWord::kPushed;
    }
    if (kind == CombineWord::kPushed) {
      bool finished = false;
      const mep_result_t pushed = push_rows(target, y, posting, &finished);
      if (pushed != MEP_SUCCESS) return posting_failure(pushed);
      if (!finished) return Step::kPending;
    }
    if (input.topk_weights != nullptr && received_.complete[target] != 0) {
      const mep_result_t put = put_weights(target, weights);
      if (put != MEP_SUCCESS) return posting_failure(put);
    }
    MEP_TEST_DELAY_POINT("ep combine ready");
    const mep_result_t sent = signal(EpWord::kCombineReady, use_.number, target,
                                     combine_payload(kind, use_.handle->mark));
    if (sent != MEP_SUCCESS) return posting_failure(sent);
  }
  use_.given_back = true;
  op_.cursor = 0;
  op_.sent = true;
  return Step::kDone;
}

// Every term for a token of `target` to its place there.
mep_result_t EpBuffer::push_rows(uint32_t target, const std::byte* y, const PostingScope& posting,
                                 bool* finished) {
  const size_t bytes = shape_.combine_row_bytes();
  const bool non_temporal = static_cast<uint64_t>(received_.total) * bytes >= kNonTemporalBytes;
  const Remote& remote = windows_[target];
  for (uint32_t local = 0; local < shape_.row_groups; ++local) {
    const Rows range(received_.layout_range[size_t{local} * shape_.ranks + target]);
    const uint64_t first = layout_.row(local, range.begin);
    const uint64_t end = first + range.count;
    for (uint64_t row = first; row < end; ++row) {
      if (!posting.allowed()) return MEP_SUCCESS;
      const uint64_t offset = layout_.combine_in(received_.row_entry[row]);
      if (remote.mapped != nullptr) {
        copy_row(remote.mapped + offset, y + row * bytes, bytes, non_temporal);
      } else {
        MEP_TRY(remote.put(offset, y + row * bytes, bytes));
      }
    }
  }
  *finished = true;
  return MEP_SUCCESS;
}

// --- The receiver's side --------------------------------------------------------------------------

Step EpBuffer::step_combine_receive() {
  if (!arrived_from_all(EpWord::kCombineReady, use_.number)) return Step::kPending;
  for (const uint32_t source : members_) {
    uint32_t payload = 0;
    const bool came = arrived(EpWord::kCombineReady, use_.number, source, &payload);
    note_outputs(source, came, payload);
  }
  if (!engine_.complete(op_.epoch, op_.seq)) return Step::kPending;  // the view decides
  op_.finished = true;
  note_complete();
  judge_outputs(carried_text());
  return Step::kDone;
}

void EpBuffer::note_outputs(uint32_t source, bool word_arrived, uint32_t payload) {
  CombineWord kind = word_arrived ? combine_kind(payload) : CombineWord::kNone;
  if (payload != combine_payload(kind, use_.handle->mark)) kind = CombineWord::kNone;
  if (kind != CombineWord::kPull && kind != CombineWord::kPushed) kind = CombineWord::kNone;
  if (kind == CombineWord::kPull && windows_[source].mapped == nullptr) kind = CombineWord::kNone;
  sums_.outputs[source] = kind;
}

// All words have come. Terms of a member that has none for this rank's tokens are an error; those of
// absent ranks were known to be missing when the tokens were sent, or their rank has failed since. `change`: how a change
// of the view explains a member's; null: there was none.
void EpBuffer::judge_outputs(const char* change) {
  const Routing& routing = use_.handle->routing;
  const size_t entries = size_t{routing.tokens} * shape_.row_k;
  uint32_t silent_member = UINT32_MAX;
  for (size_t at = 0; at < entries; ++at) {
    const RouteEntry& entry = routing.entries[at];
    if (entry.place < 0) continue;
    const uint32_t owner = static_cast<uint32_t>(entry.place) / shape_.row_groups;
    if (entry.row != kNotSent && sums_.outputs[owner] != CombineWord::kNone) continue;
    sums_.missing_place = entry.place;
    if (is_member_[owner] != 0) silent_member = owner;
  }
  if (sums_.missing_place == kNoExpert) return;
  if (silent_member != UINT32_MAX) {
    op_.result = change != nullptr ? fail(MEP_ERR_PEER_FAILED,
                                          "the terms of rank %u's experts are left out: it %s",
                                          silent_member, change)
                                   : fail(MEP_ERR_MISMATCH,
                                          "rank %u began its next dispatch on the buffer without "
                                          "a combine",
                                          silent_member);
  } else if (shape_.allows_partial()) {
    op_.result = MEP_PARTIAL;
  } else {
    op_.result =
        fail(MEP_ERR_PEER_FAILED,
             "the expert at place %d is on rank %u, which is absent; its terms are left out. "
             "mep_ep_set_expert_map can route around it, MEP_EP_LOSS_PARTIAL allows it",
             sums_.missing_place, static_cast<uint32_t>(sums_.missing_place) / shape_.row_groups);
  }
  if (is_error(op_.result)) op_.text = last_error_text();
}

// Where the term of an entry lies; null: it is missing.
const std::byte* EpBuffer::term(const RouteEntry& entry, size_t at) const {
  if (entry.row == kNotSent) return nullptr;
  const auto place = static_cast<uint32_t>(entry.place);
  const uint32_t owner = place / shape_.row_groups;
  if (sums_.outputs[owner] == CombineWord::kPushed) return windows_.data() + layout_.combine_in(at);
  if (sums_.outputs[owner] == CombineWord::kNone) return nullptr;
  const uint64_t row = layout_.row(place % shape_.row_groups, entry.row);
  if (owner == shape_.rank) return sums_.own_terms + row * shape_.combine_row_bytes();
  return windows_[owner].mapped + layout_.combine_out(row);
}

// The terms of a token that are there, with their weights; returns how many.
uint32_t EpBuffer::gather_outputs(uint32_t token, const float* weights, bool renormalizes,
                                  const void** rows, float* row_weights) {
  const size_t first = size_t{token} * shape_.row_k;
  uint32_t count = 0;
  float all = 0;
  float present = 0;
  bool missing = false;
  for (uint32_t k = 0; k < shape_.row_k; ++k) {
    const RouteEntry& entry = use_.handle->routing.entries[first + k];
    if (entry.place < 0) continue;
    const float weight = weights != nullptr ? weights[first + k] : 1;
    all += weight;
    const std::byte* row = term(entry, first + k);
    if (row == nullptr) {
      missing = true;
      continue;
    }
    present += weight;
    rows[count] = row;
    row_weights[count++] = weight;
  }
  if (missing && renormalizes && present != 0) {
    const float factor = all / present;
    for (uint32_t i = 0; i < count; ++i) row_weights[i] *= factor;
  }
  return count;
}

// --- While peers read this rank's terms in place ---------------------------------------------------

// The dispatch was received: its caller may write combine_out from now on.
void EpBuffer::begin_y(const EpHandle& handle) {
  auto* const word = reinterpret_cast<std::atomic<uint64_t>*>(windows_.data() + layout_.y_of());
  // Sequentially consistent: it is with the peers that read combine_out before any byte that the caller writes there,
  // by stores past the caches too.
  word->store(handle.mark, std::memory_order_seq_cst);
}

// Whether a token of this rank is with an expert of `owner`.
bool EpBuffer::needs(uint32_t owner) const {
  const Routing& routing = use_.handle->routing;
  const std::span entries(routing.entries.data(), size_t{routing.tokens} * shape_.row_k);
  return std::any_of(entries.begin(), entries.end(), [&](const RouteEntry& entry) {
    return entry.place >= 0 && static_cast<uint32_t>(entry.place) / shape_.row_groups == owner;
  });
}

// After they were read: whether terms may have been written anew by then. They are left out, so the sums are to be made
// again.
bool EpBuffer::withdraw_overwritten() {
  full_fence();  // the terms were read before the words are
  bool any = false;
  for (uint32_t owner = 0; owner < shape_.ranks; ++owner) {
    if (sums_.outputs[owner] != CombineWord::kPull || owner == shape_.rank) continue;
    // The window is that of the process which sent the word: no joiner comes in before this rank leaves its peers alone.
    if (load_signal(windows_[owner].mapped, layout_.y_of()) == use_.handle->mark) continue;
    if (!needs(owner)) continue;
    sums_.outputs[owner] = CombineWord::kNone;
    any = true;
  }
  if (any && !is_error(op_.result)) {
    judge_outputs(
        "has received its next dispatch, which a change of the view ended, before this rank had "
        "read them");
  }
  return any;
}

// --- Sums -----------------------------------------------------------------------------------------

void EpBuffer::sum_terms(const CombineOutput& sums) {
  const Routing& routing = use_.handle->routing;
  const float* weights = sums.weights;
  // In high throughput the rows are weighted sums already.
  const bool weighs = !shape_.high_throughput() && routing.has_weights;
  if (weights == nullptr && weighs) weights = routing.weights.data();
  const size_t stride =
      sums.out_stride_bytes != 0 ? sums.out_stride_bytes : shape_.combine_row_bytes();
  const bool renormalizes = (sums.flags & MEP_COMBINE_RENORMALIZE) != 0;
  const void* rows[MEP_MAX_TOP_K + 3];
  float row_weights[MEP_MAX_TOP_K + 3];
  for (uint32_t token = 0; token < routing.tokens; ++token) {
    MEP_TEST_DELAY_POINT("ep sum");
    uint32_t count = 0;
    for (const void* bias : {sums.token_bias, sums.token_bias2}) {
      if (bias == nullptr) continue;
      rows[count] = static_cast<const std::byte*>(bias) + token * shape_.combine_row_bytes();
      row_weights[count++] = 1;
    }
    count += gather_outputs(token, weights, renormalizes, rows + count, row_weights + count);
    if (sums.bias != nullptr) {
      rows[count] = sums.bias;
      row_weights[count++] = 1;
    }
    combine_rows(shape_.combine_type, static_cast<std::byte*>(sums.out) + token * stride, rows,
                 row_weights, count, shape_.hidden, false);
  }
}

mep_result_t EpBuffer::finish_combine(const CombineOutput& sums) {
  do {
    sum_terms(sums);
  } while (withdraw_overwritten());
  if (sums.recv_topk_weights != nullptr) sum_weights(sums.recv_topk_weights);
  leave_peers_alone();
  agree_on_result();
  use_.stage = Stage::kIdle;  // also where memory runs out in what follows
  use_.handle = nullptr;
  std::vector<uint8_t> contributed(shape_.ranks, 0);
  for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
    contributed[rank] = sums_.outputs[rank] != CombineWord::kNone;
  }
  note_record(contributed);
  tell_status(sums.op_status, sums.op_status_bytes);
  return result_of_operation();
}

}  // namespace mep

// Dispatch, the sender's side: from the call to the bytes leaving this rank.
//   Packed   counts go to everybody first; with all counts every sender knows each row's final place.
//   Slotted  places are known without; counts follow the rows.
//   Replayed places are those of the dispatch that is replayed; counts follow the rows.
// Each row is then written straight to its place at its expert's rank, and the ready word follows to
// every rank, also with no rows.
#include <algorithm>
#include <cstring>

#include "base/status.hpp"
#include "base/test_delay.hpp"
#include "core/ep/ep_arguments.hpp"
#include "core/ep/host/ep_drive.hpp"
#include "kernels/host/kernels.hpp"

namespace mep {
namespace {

enum Phase : uint32_t { kGiveBack, kAwaitFree, kPostCounts, kAwaitCounts, kRows };

}  // namespace

mep_result_t EpBuffer::dispatch(EpHandle& handle, const DispatchInput* send,
                                const DispatchOutput* receive, const ExpertMap* map) {
  MEP_TRY(check_dispatch(handle, send, receive));
  const TimeLimit time = limit(receive != nullptr ? receive->timeout_ms : send->timeout_ms);
  const Deadline deadline = Deadline::after_ms(time.ms);
  const SourceRelease release(this, send != nullptr);
  do {
    if (send != nullptr) MEP_TRY(begin_dispatch(handle, *send, map));
    op_.limit = time;
    op_.waits.begin(receive != nullptr ? receive->wait_ns : nullptr);
    if (send != nullptr) drive(deadline, [&] { return step_send(*send); });
  } while (op_.overtaken);
  if (receive == nullptr) return result_of_operation();
  drive(deadline, [&] { return step_receive(); });
  op_.waits.end(shape_.rank);
  if (receive->counts_only) {
    tell_counts(*receive);
    return MEP_SUCCESS;
  }
  return deliver(*receive);
}

mep_result_t EpBuffer::check_dispatch(const EpHandle& handle, const DispatchInput* send,
                                      const DispatchOutput* receive) const {
  if (receive != nullptr) {
    mep_ep_view_t view{};
    fill_view(&view);
    MEP_TRY(check_dispatch_output(shape_, view, send, *receive));
  }
  if (send != nullptr) return check_dispatch_input(shape_, *send);
  if (use_.stage == Stage::kDispatching && use_.handle == &handle) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT,
              "there is no dispatch of this handle to receive; send one first");
}

// Refuses, or makes the handle's routing this dispatch's and enters the channel.
mep_result_t EpBuffer::begin_dispatch(EpHandle& handle, const DispatchInput& input,
                                      const ExpertMap* map) {
  if (in_flight()) {
    const char* const what = use_.stage == Stage::kDispatching ? "dispatch" : "combine";
    return fail(MEP_ERR_BUSY,
                "the buffer's last %s was not received: call mep_%s_receive with its handle first",
                what, what);
  }
  Reports::Report told;
  const mep_result_t caught = catch_up(&told);
  if (caught != MEP_SUCCESS) {
    return uniform() ? begin_report(Stage::kDispatching, &handle, caught, std::move(told)) : caught;
  }
  const bool replays = input.replays;
  const Routing& routing = handle.routing;
  MEP_TRY(replays ? check_replay(routing.epoch, routing.tokens, engine_.adopted().epoch,
                                 input.num_tokens)
                  : sent_.router.read(input, map, is_member_, &sent_.draft));
  sent_.router.count(replays ? handle.routing : sent_.draft);
  begin_operation(Stage::kDispatching, &handle);
  op_.replays = replays;
  op_.has_rows = input.has_rows;
  if (!replays) std::swap(handle.routing, sent_.draft);
  ++use_.number;
  handle.mark = dispatch_mark(op_.epoch, use_.number);
  use_.dispatch_epoch = op_.epoch;
  return MEP_SUCCESS;
}

Step EpBuffer::step_send(const DispatchInput& input) {
  const PostingScope posting = engine_.posting();
  if (!posting.allowed()) return Step::kPending;
  if (op_.phase == kGiveBack) {
    const mep_result_t given = give_back_unused();
    if (given != MEP_SUCCESS) return posting_failure(given);
    use_.given_back = false;  // of this use from now on
    op_.phase = knows_places() ? kAwaitFree : kPostCounts;
  }
  if (op_.phase == kAwaitFree) {
    if (follows_a_use() && !arrived_from_all(EpWord::kCombineReady, use_.number - 1))
      return Step::kPending;
    if (op_.replays) {
      find_first_rows();
    } else {
      std::fill(sent_.first_row.begin(), sent_.first_row.end(), shape_.rank * shape_.max_tokens);
      sent_.router.set_rows(sent_.first_row, &use_.handle->routing);
    }
    op_.phase = kRows;
  }
  if (op_.phase == kPostCounts) {
    const mep_result_t posted = post_counts();
    if (posted != MEP_SUCCESS) return posting_failure(posted);
    op_.phase = kAwaitCounts;
  }
  if (op_.phase == kAwaitCounts) {
    if (!arrived_from_all(EpWord::kCountsReady, use_.number)) return Step::kPending;
    const mep_result_t placed = place_rows();
    if (placed != MEP_SUCCESS) return hard_failure(placed);
    op_.phase = kRows;
  }
  for (; input.has_rows && op_.cursor < use_.handle->routing.tokens; ++op_.cursor) {
    if (sent_.staged != 0 && sent_.staged == sent_.staging_rows) release_sources();
    if (!posting.allowed()) return Step::kPending;
    MEP_TEST_DELAY_POINT("ep token");
    const mep_result_t sent = send_token(input, op_.cursor);
    if (sent != MEP_SUCCESS) return posting_failure(sent);
  }
  const mep_result_t announced = announce_rows();
  if (announced != MEP_SUCCESS) return posting_failure(announced);
  op_.cursor = 0;
  op_.sent = true;
  return Step::kDone;
}

mep_result_t EpBuffer::post_counts() {
  const std::vector<uint32_t>& counts = sent_.router.counts();
  for (const uint32_t target : members_) {
    MEP_TRY(windows_[target].put(layout_.counts(use_.number, shape_.rank, 0), counts.data(),
                                 counts.size() * sizeof(uint32_t)));
    MEP_TEST_DELAY_POINT("ep counts");
    MEP_TRY(signal(EpWord::kCountsReady, use_.number, target));
  }
  windows_.flush_puts();
  return MEP_SUCCESS;
}

// Packed: this rank's rows come after those of all lower ranks.
mep_result_t EpBuffer::place_rows() {
  std::fill(sent_.first_row.begin(), sent_.first_row.end(), 0);
  for (const uint32_t source : members_) {
    if (source >= shape_.rank) break;
    for (uint32_t column = 0; column < shape_.columns(); ++column) {
      uint32_t count = 0;  // read once
      std::memcpy(&count, windows_.data() + layout_.counts(use_.number, source, column),
                  sizeof count);
      if (count > shape_.max_tokens) {
        return fail(MEP_ERR_MISMATCH,
                    "rank %u announced %u rows for one expert; at most %u tokens "
                    "are possible",
                    source, count, shape_.max_tokens);
      }
      sent_.first_row[column] += count;
    }
  }
  sent_.router.set_rows(sent_.first_row, &use_.handle->routing);
  use_.handle->routing.epoch = op_.epoch;
  return MEP_SUCCESS;
}

mep_result_t EpBuffer::send_token(const DispatchInput& input, uint32_t token) {
  const size_t row_bytes = shape_.wire_row_bytes();
  const size_t scale_bytes = shape_.scale_row_bytes();
  const RouteEntry* entries = use_.handle->routing.entries.data() + size_t{token} * shape_.row_k;
  const size_t stride = input.x_stride_bytes != 0 ? input.x_stride_bytes : shape_.input_row_bytes();
  const std::byte* row = static_cast<const std::byte*>(input.x) + token * stride;
  const std::byte* scales = nullptr;
  if (input.x_scales != nullptr) {
    const size_t scales_stride =
        input.x_scales_stride_bytes != 0 ? input.x_scales_stride_bytes : scale_bytes;
    scales = static_cast<const std::byte*>(input.x_scales) + token * scales_stride;
  } else if (shape_.quantizes()) {
    // Once for all experts of the token; the copies below find it in the nearest cache.
    std::byte* quantised = sent_.staging.get() + sent_.staged * (row_bytes + scale_bytes);
    ++sent_.staged;
    quantize_row(shape_.wire(), shape_.input_type, row, shape_.hidden, quantised,
                 quantised + row_bytes, false);
    row = quantised;
    scales = quantised + row_bytes;
  }
  const bool non_temporal =
      use_.handle->routing.tokens * size_t{shape_.row_k} * row_bytes >= kNonTemporalBytes;
  for (uint32_t k = 0; k < shape_.row_k; ++k) {
    if (entries[k].row == kNotSent) continue;
    const auto place = static_cast<uint32_t>(entries[k].place);
    const Remote& remote = windows_[place / shape_.row_groups];
    const uint64_t at = layout_.row(place % shape_.row_groups, entries[k].row);
    if (remote.mapped != nullptr) {
      copy_row(remote.mapped + layout_.recv_x(at), row, row_bytes, non_temporal);
    } else {
      MEP_TRY(remote.put(layout_.recv_x(at), row, row_bytes));
    }
    if (scales != nullptr && scale_bytes != 0) {
      MEP_TRY(remote.put(layout_.scales(at), scales, scale_bytes));
    }
  }
  return MEP_SUCCESS;
}

// Tells each rank which rows came: their tokens, their counts if it has them not yet, and the word after them.
mep_result_t EpBuffer::announce_rows() {
  const std::vector<uint32_t>& counts = sent_.router.counts();
  for (const uint32_t target : members_) {
    const Remote& remote = windows_[target];
    const uint32_t first = target * shape_.row_groups;
    for (uint32_t group = 0; group < shape_.row_groups; ++group) {
      const uint32_t column = first + group;
      if (counts[column] == 0) continue;
      MEP_TRY(remote.put(layout_.entry(layout_.row(group, sent_.first_row[column])),
                         sent_.router.entries_of(column), counts[column] * sizeof(uint32_t)));
    }
    if (shape_.high_throughput()) MEP_TRY(put_topk(target));
    if (knows_places()) {
      MEP_TRY(remote.put(layout_.counts(use_.number, shape_.rank, first), counts.data() + first,
                         shape_.row_groups * sizeof(uint32_t)));
    }
    MEP_TEST_DELAY_POINT("ep rows ready");
    MEP_TRY(signal(EpWord::kRowsReady, use_.number, target));
  }
  return MEP_SUCCESS;
}

}  // namespace mep

// View changes of an EP buffer. Dispatch and combine are personal operations: the one in
// flight ends by what had arrived here when all ranks had stopped.
#include <algorithm>
#include <string_view>

#include "base/status.hpp"
#include "core/ep/host/ep_drive.hpp"

namespace mep {

// --- The control thread ---------------------------------------------------------------------------

membership::ChannelState EpBuffer::freeze() {
  const Channel::Frozen frozen = engine_.freeze();
  const std::lock_guard lock(engine_.mutex());
  prepared_.reset();
  return {comm_.id(), engine_.id(), frozen.done, frozen.entered};
}

// All ranks have stopped. All that arrived is copied out, then the words are zeroed for the next epoch. A
// change may be prepared more than once: what is zero by now was copied before.
void EpBuffer::prepare() {
  const std::lock_guard lock(engine_.mutex());
  if (!prepared_.has_value()) {
    prepared_ = Arrived{};
    prepared_->words.assign(layout_.words(), 0);
  }
  std::byte* base = windows_.data();
  for (uint32_t i = 0; i < layout_.words(); ++i) {
    auto* word = reinterpret_cast<std::atomic<uint64_t>*>(base + layout_.word_at(i));
    // Acquire: as the reader of the word. The zero orders nothing: nobody posts before the install.
    const uint64_t value = word->exchange(0, std::memory_order_acquire);
    if (value != 0) prepared_->words[i] = value;
  }
  prepared_->counts.clear();
  for (uint64_t parity = 0; parity < 2; ++parity) {
    for (uint32_t source = 0; source < shape_.ranks; ++source) {
      const auto* counts = reinterpret_cast<const uint32_t*>(
          base + layout_.counts(parity, source, shape_.rank * shape_.row_groups));
      prepared_->counts.insert(prepared_->counts.end(), counts, counts + shape_.row_groups);
    }
  }
}

void EpBuffer::install(const std::shared_ptr<const CommChange>& change,
                       const membership::Proposal* committed) {
  const std::lock_guard lock(engine_.mutex());
  if (change == nullptr) {
    // The epoch goes on: the words too. A peer that went on earlier may have posted a newer one.
    for (uint32_t i = 0; prepared_.has_value() && i < layout_.words(); ++i) {
      auto* word = reinterpret_cast<std::atomic<uint64_t>*>(windows_.data() + layout_.word_at(i));
      uint64_t nothing = 0;
      // Release: to the reader of the word, what prepare() acquired.
      if (prepared_->words[i] != 0) {
        word->compare_exchange_strong(nothing, prepared_->words[i], std::memory_order_release,
                                      std::memory_order_relaxed);
      }
    }
    prepared_.reset();
    engine_.resume();
    return;
  }
  if (engine_.is_adopted()) arrived_ = std::move(prepared_);
  prepared_.reset();
  if (uniform() && change->is_reported) reports_.push(change);
  engine_.install(engine_.decision_by(change, *committed));
}

// --- The user's thread ----------------------------------------------------------------------------

// Before a call begins: adopts what has changed, and reports it if no operation has; *told is the change then.
mep_result_t EpBuffer::catch_up(Reports::Report* told) {
  MEP_TRY(engine_.catch_up());
  if (!reports().any() || in_step()) [[likely]]
    return MEP_SUCCESS;
  const Reports::Report report = reports().take();
  if (report == nullptr) return MEP_SUCCESS;
  note_report(*report);
  *told = report;
  return fail(report->result, "%s", report->text.c_str());
}

mep_result_t EpBuffer::adopt(const Decision& decision) {
  // A replaced rank has the same object, made before it came into the view.
  MEP_TRY(windows_.reach_joiners(*decision.change->view, Deadline::after_ms(limit(0).ms),
                                 "an EP object",
                                 [this](uint32_t rank) { set_pulls(rank, windows_.maps(rank)); }));
  engine_.adopt(decision, [this] { arrived_.reset(); });
  use_.number = 0;
  use_.first = 1;
  use_.carries = true;
  use_.given_back = false;
  note_members();
  return MEP_SUCCESS;
}

bool EpBuffer::in_flight() {
  if (!has_operation()) return false;
  if (!op_.finished) return !engine_.look(&op_, [] { return false; });
  // Its rows have come and were not received.
  return !is_error(op_.result) && engine_.in_epoch(op_.epoch) &&
         comm_.world().terminal_result() == MEP_SUCCESS;
}

// The world has ended for this rank.
void EpBuffer::end(EpOperation& operation, mep_result_t result) {
  operation.finished = true;
  operation.result = result;
  operation.text = last_error_text();
  if (use_.stage == Stage::kDispatching) {
    receive_nothing();
    leave_peers_alone();
  }
}

// Nothing if the operation began after the others had stopped.
EpBuffer::Arrived EpBuffer::take_arrived() {
  const std::lock_guard lock(engine_.mutex());
  Arrived arrived = std::move(arrived_).value_or(Arrived{});
  arrived.words.resize(layout_.words(), 0);
  arrived.counts.resize(size_t{2} * shape_.ranks * shape_.row_groups, 0);
  return arrived;
}

// The buffer is as it was before the call, which is still in its first drive.
void EpBuffer::begin_again(EpOperation& operation) {
  operation.finished = true;
  operation.overtaken = true;
  use_.stage = use_.stage == Stage::kDispatching ? Stage::kIdle : Stage::kReceived;
  leave_peers_alone();
  comm_.identity().flight().end(operation.flight, MEP_ERR_PEER_FAILED);
}

void EpBuffer::settle(EpOperation& operation, const Decision& decision) {
  const Arrived arrived = take_arrived();
  operation.finished = true;
  if (use_.stage == Stage::kDispatching) {
    settle_dispatch(arrived, *decision.change);
    leave_peers_alone();
  } else {
    settle_combine(arrived, *decision.change);
  }
  if (operation.result == decision.change->result) operation.ended_by = decision.change;
}

void EpBuffer::settle_dispatch(const Arrived& arrived, const CommChange& change) {
  const uint64_t tag = signal_tag(op_.epoch, use_.number);
  bool counts_known = true;  // of all lower ranks: then the place of the rows is
  bool survivors_served = op_.sent;
  bool all_complete = op_.sent;
  std::fill(received_.complete.begin(), received_.complete.end(), 0);
  for (const uint32_t source : members_) {
    const auto came = [&](EpWord kind) {
      return signal_matches(arrived.words[layout_.word_index(kind, use_.number, source)], tag);
    };
    counts_known = counts_known && (knows_places() || came(EpWord::kCountsReady));
    received_.complete[source] = counts_known && came(EpWord::kRowsReady) ? 1 : 0;
    if (received_.complete[source] != 0) continue;
    all_complete = false;
    survivors_served = survivors_served && !change.view->is_live(source);
  }
  const size_t columns = size_t{shape_.ranks} * shape_.row_groups;
  const mep_result_t arranged = arrange(arrived.counts.data() + use_.number % 2 * columns);
  if (arranged != MEP_SUCCESS) {
    op_.result = arranged;
    op_.text = last_error_text();
    receive_nothing();
    if (!uniform()) return;
  }
  conclude(change, all_complete, survivors_served);
}

void EpBuffer::settle_combine(const Arrived& arrived, const CommChange& change) {
  const uint64_t tag = signal_tag(op_.epoch, use_.number);
  bool all_complete = op_.sent;
  bool survivors_served = op_.sent;
  for (const uint32_t source : members_) {
    const uint64_t word =
        arrived.words[layout_.word_index(EpWord::kCombineReady, use_.number, source)];
    const bool came = signal_matches(word, tag);
    note_outputs(source, came, signal_payload(word));
    if (came) continue;
    all_complete = false;
    survivors_served = survivors_served && !change.view->is_live(source);
  }
  judge_outputs(carried_text());
  // Else judged by what the words said, as if the view had not changed.
  if (!all_complete || uniform()) conclude(change, all_complete, survivors_served);
}

// Complete: all that this rank needed had arrived, and all that others need had left. Else partial, if
// that is allowed and nothing is missing but ranks that are out; else what the view says. That is always
// so where all ranks must return the same: an agreement that was cut has succeeded nowhere.
void EpBuffer::conclude(const CommChange& change, bool complete, bool survivors_served) {
  const bool partial =
      survivors_served && change.result != MEP_ERR_TIMEOUT && shape_.allows_partial();
  if (complete && !uniform()) {
    op_.result = MEP_SUCCESS;
    return;
  }
  reports().drop_up_to(change.epoch);
  op_.result = partial ? mep_result_t{MEP_PARTIAL} : change.result;
  tell_change(change, comm_.identity(), use_.stage == Stage::kDispatching ? "dispatch" : "combine",
              op_.seq, op_.limit);
  const std::string_view told = last_error_text();
  op_.text.assign(told.substr(0, op_.text.capacity()));
}

}  // namespace mep

// What a view change means for an EP buffer. Dispatch and combine are personal operations: the one in
// flight ends by what had arrived here when all ranks had stopped.
#include <sched.h>

#include <algorithm>

#include "base/log.hpp"
#include "base/status.hpp"
#include "core/ep/ep_drive.hpp"

namespace mep {

// --- The control thread ---------------------------------------------------------------------------

void EpBuffer::wedge() {
  frozen_ = channel_.wedge();
  const std::lock_guard lock(mutex_);
  prepared_.reset();
}

void EpBuffer::wait_for_posters() const {
  const Deadline limit = Deadline::after_ms(10'000);
  while (posting_.load(std::memory_order_seq_cst) != 0) {
    if (limit.expired()) {
      log(LogLevel::kError, "comm %s: a thread is stuck in a dispatch or combine",
          comm_.name().c_str());
      return;
    }
    sched_yield();
  }
}

// All ranks have stopped. What arrived is copied out, then the words are zeroed for the next epoch. A
// change may be prepared more than once: what is zero by now was copied before.
void EpBuffer::prepare() {
  const std::lock_guard lock(mutex_);
  if (!prepared_.has_value()) {
    prepared_ = EpochEnd{};
    prepared_->words.assign(layout_.words(), 0);
  }
  std::byte* base = window_->data();
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
          base + layout_.counts(parity, source, shape_.rank * shape_.local_experts));
      prepared_->counts.insert(prepared_->counts.end(), counts, counts + shape_.local_experts);
    }
  }
}

void EpBuffer::install(const Verdict* verdict, const membership::Proposal* decision) {
  const std::lock_guard lock(mutex_);
  if (verdict == nullptr) {
    // The epoch goes on: the words too. A peer that went on earlier may have posted a newer one.
    for (uint32_t i = 0; prepared_.has_value() && i < layout_.words(); ++i) {
      auto* word = reinterpret_cast<std::atomic<uint64_t>*>(window_->data() + layout_.word_at(i));
      uint64_t nothing = 0;
      // Release: to the reader of the word, what prepare() acquired.
      if (prepared_->words[i] != 0) {
        word->compare_exchange_strong(nothing, prepared_->words[i], std::memory_order_release,
                                      std::memory_order_relaxed);
      }
    }
    prepared_.reset();
    channel_.unwedge();
    return;
  }
  latest_next_ = channel_.done() + 1;
  if (const auto* decided = decision->verdict(comm_.id(), id_)) latest_next_ = decided->next;
  latest_view_ = verdict->view;
  if (!ended_.has_value()) {
    ended_ = prepared_.has_value() ? std::move(*prepared_) : EpochEnd{};
    ended_->epoch = verdict->epoch;
    ended_->result = verdict->result;
    ended_->text = verdict->text;
    ended_->view = verdict->view;
  }
  if (uniform() && verdict->is_reported) {
    reports_.push_back(std::make_shared<const Verdict>(*verdict));
    report_count_.store(reports_.size(), std::memory_order_relaxed);
  }
  prepared_.reset();
  channel_.restart(verdict->view->epoch, latest_next_ - 1);
}

// --- The user's thread ----------------------------------------------------------------------------

// Before a call begins: adopts what has changed, and reports it if no operation has.
mep_result_t EpBuffer::catch_up() {
  World& world = comm_.world();
  const auto terminal = [&] { return world.terminal_result(); };
  if (channel_.undisturbed(adopted_->epoch) && !has_report() && terminal() == MEP_SUCCESS)
      [[likely]] {
    return MEP_SUCCESS;
  }
  constexpr uint64_t kVerdictGraceMs = 60'000;
  const Deadline limit = Deadline::after_ms(kVerdictGraceMs + comm_.timeout_ms());
  const bool settled = wait_until(world.wait_policy(), world.doorbell(), limit,
                                  [&] { return !channel_.wedged() || terminal() != MEP_SUCCESS; });
  if (terminal() != MEP_SUCCESS) {
    return fail(terminal(), "the world of comm %s has ended for this rank", comm_.name().c_str());
  }
  if (!settled) {
    return fail(MEP_ERR_INTERNAL, "the view of comm %s did not settle; please report this",
                comm_.name().c_str());
  }
  std::shared_ptr<const CommView> view;
  uint64_t next = 0;
  {
    const std::lock_guard lock(mutex_);
    if (ended_.has_value()) view = latest_view_;
    next = latest_next_;
    ended_.reset();
  }
  if (view != nullptr) adopt(std::move(view), next);
  return report_change();
}

bool EpBuffer::has_report() const {
  return uniform() ? report_count_.load(std::memory_order_relaxed) != 0
                   : comm_.has_personal_report();
}

std::shared_ptr<const Verdict> EpBuffer::take_report() {
  if (!uniform()) return comm_.take_personal_report();
  const std::lock_guard lock(mutex_);
  if (reports_.empty()) return nullptr;
  std::shared_ptr<const Verdict> report = std::move(reports_.front());
  reports_.pop_front();
  report_count_.store(reports_.size(), std::memory_order_relaxed);
  return report;
}

// An operation of this buffer reports it.
void EpBuffer::drop_report(uint64_t epoch) {
  if (!uniform()) return comm_.drop_personal_reports(epoch);
  const std::lock_guard lock(mutex_);
  std::erase_if(reports_, [=](const auto& report) { return report->epoch <= epoch; });
  report_count_.store(reports_.size(), std::memory_order_relaxed);
}

mep_result_t EpBuffer::report_change() {
  const std::shared_ptr<const Verdict> report = take_report();
  if (report == nullptr) return MEP_SUCCESS;
  return fail(report->result, "%s", report->text.c_str());
}

void EpBuffer::adopt(std::shared_ptr<const CommView> view, uint64_t next) {
  reach_newcomers(*view);
  adopted_ = std::move(view);
  seq_ = next - 1;
  use_ = 0;
  first_use_ = 1;
  carries_ = true;
  given_back_ = false;
  note_members();
}

bool EpBuffer::in_flight() {
  if (!has_operation() || op_.over) return false;
  const bool undisturbed =
      channel_.undisturbed(op_.epoch) && comm_.world().terminal_result() == MEP_SUCCESS;
  return undisturbed || !settle();
}

// The operation in flight met a wedge, or an epoch that is not its own. True: it is over.
bool EpBuffer::settle() {
  const mep_result_t terminal = comm_.world().terminal_result();
  if (terminal != MEP_SUCCESS) {
    op_.over = true;
    op_.result =
        fail(terminal, "the world of comm %s has ended for this rank", comm_.name().c_str());
    op_.text = last_error_text();
    if (stage_ == Stage::kDispatching) {
      arrange_nothing();
      leave_peers_alone();
    }
    return true;
  }
  EpochEnd end;
  std::shared_ptr<const CommView> view;
  uint64_t next = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!ended_.has_value() || channel_.wedged()) return false;  // still deciding
    // None if it began after the others had stopped. Nothing fails from here on.
    ended_->words.resize(layout_.words(), 0);
    ended_->counts.resize(size_t{2} * shape_.ranks * shape_.local_experts, 0);
    end = std::move(*ended_);
    ended_.reset();
    view = latest_view_;
    next = latest_next_;
  }
  op_.over = true;
  if (stage_ == Stage::kDispatching) {
    settle_dispatch(end);
    leave_peers_alone();
  } else {
    settle_combine(end);
  }
  adopt(std::move(view), next);
  return true;
}

void EpBuffer::settle_dispatch(const EpochEnd& end) {
  const uint64_t tag = signal_tag(op_.epoch, use_);
  bool counts_known = true;  // of all lower ranks: then the place of the rows is
  bool survivors_served = op_.sent;
  bool all_complete = op_.sent;
  std::fill(complete_.begin(), complete_.end(), 0);
  for (const uint32_t source : members_) {
    const auto came = [&](EpWord kind) {
      return signal_matches(end.words[layout_.word_index(kind, use_, source)], tag);
    };
    counts_known = counts_known && (shape_.slotted || came(EpWord::kCountsReady));
    complete_[source] = counts_known && came(EpWord::kRowsReady) ? 1 : 0;
    if (complete_[source] != 0) continue;
    all_complete = false;
    survivors_served = survivors_served && !end.view->is_live(source);
  }
  const size_t columns = size_t{shape_.ranks} * shape_.local_experts;
  const mep_result_t arranged = arrange(end.counts.data() + use_ % 2 * columns);
  if (arranged != MEP_SUCCESS) {
    op_.result = arranged;
    op_.text = last_error_text();
    arrange_nothing();
    if (!uniform()) return;
  }
  conclude(end, all_complete, survivors_served);
}

void EpBuffer::settle_combine(const EpochEnd& end) {
  const uint64_t tag = signal_tag(op_.epoch, use_);
  bool all_complete = op_.sent;
  bool survivors_served = op_.sent;
  for (const uint32_t source : members_) {
    const uint64_t word = end.words[layout_.word_index(EpWord::kCombineReady, use_, source)];
    const bool came = signal_matches(word, tag);
    note_terms(source, came, signal_payload(word));
    if (came) continue;
    all_complete = false;
    survivors_served = survivors_served && !end.view->is_live(source);
  }
  judge_terms(op_.epoch != dispatch_epoch_);
  // Else judged by what the words said, as if the view had not changed.
  if (!all_complete || uniform()) conclude(end, all_complete, survivors_served);
}

// Complete: all that this rank needed had arrived, and all that others need had left. Else partial, if
// that is allowed and nothing is missing but ranks that are out; else what the view says. That is always
// so where all ranks must return the same: an agreement that was cut has succeeded nowhere.
void EpBuffer::conclude(const EpochEnd& end, bool complete, bool survivors_served) {
  const bool partial = !uniform() && survivors_served && end.result != MEP_ERR_TIMEOUT &&
                       (comm_.world().config().flags & MEP_COMM_PARTIAL) != 0;
  if (complete && !uniform()) {
    op_.result = MEP_SUCCESS;
    return;
  }
  drop_report(end.epoch);
  op_.result = partial ? mep_result_t{MEP_PARTIAL} : end.result;
  op_.text.assign(end.text, 0, op_.text.capacity());
}

}  // namespace mep

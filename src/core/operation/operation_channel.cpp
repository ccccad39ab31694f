#include "core/operation/operation_channel.hpp"

#include <algorithm>
#include <utility>

#include "base/status.hpp"

namespace mep {

void OperationChannel::start(std::shared_ptr<const CommView> view, uint64_t next) {
  adopted_ = std::move(view);
  seq_ = next - 1;
  word_.restart(adopted_->epoch, seq_);
}

void OperationChannel::correct_view(std::shared_ptr<const CommView> view) {
  adopted_ = std::move(view);
}

// --- The user's thread ----------------------------------------------------------------------------

mep_result_t OperationChannel::await_changes(const Deadline& deadline) const {
  const bool settled = wait(deadline, [this] { return changes_are_over(); });
  MEP_TRY(comm_.check_world());
  if (settled) return MEP_SUCCESS;
  return fail(MEP_ERR_INTERNAL, "the view of comm %s did not settle; please report this",
              comm_.name().c_str());
}

void OperationChannel::ask_verdict(uint64_t epoch, uint64_t seq) {
  if (asked_seq_ >= seq) return;
  try {
    comm_.world().report_deadline(comm_.id(), word_.id(), epoch);
    asked_seq_ = seq;
  } catch (const std::bad_alloc&) {
    // Asked again at the next look.
  }
}

mep_result_t OperationChannel::fail_without_verdict(uint64_t seq) const {
  return fail(MEP_ERR_INTERNAL, "operation %llu of comm %s got no verdict; please report this",
              static_cast<unsigned long long>(seq), comm_.name().c_str());
}

std::shared_ptr<const Verdict> OperationChannel::next_verdict() const {
  const std::lock_guard lock(mutex_);
  return verdicts_.empty() ? nullptr : verdicts_.front();
}

std::shared_ptr<const Verdict> OperationChannel::verdict_of(uint64_t epoch) const {
  const std::lock_guard lock(mutex_);
  const auto it = std::find_if(verdicts_.begin(), verdicts_.end(), [=](const auto& verdict) {
    return verdict->change->epoch == epoch;
  });
  return it == verdicts_.end() ? nullptr : *it;
}

std::shared_ptr<const CommView> OperationChannel::latest_view() const {
  const std::lock_guard lock(mutex_);
  return verdicts_.empty() ? adopted_ : verdicts_.back()->change->view;
}

bool OperationChannel::has_adopted_all() const {
  const std::lock_guard lock(mutex_);
  return verdicts_.empty();
}

// --- The control thread ---------------------------------------------------------------------------

std::shared_ptr<const Verdict> OperationChannel::verdict_by(
    const std::shared_ptr<const CommChange>& change, const membership::Proposal& decision) const {
  auto verdict = std::make_shared<Verdict>();
  verdict->change = change;
  verdict->n_star = word_.done();
  verdict->next = verdict->n_star + 2;
  if (const auto* decided = decision.verdict(comm_.id(), word_.id())) {
    verdict->n_star = decided->n_star;
    verdict->next = decided->next;
  }
  if (change->joined) verdict->n_star = 0;
  return verdict;
}

void OperationChannel::install(const std::shared_ptr<const Verdict>& verdict) {
  verdicts_.push_back(verdict);
  word_.restart(verdict->change->view->epoch, verdict->next - 1);
}

}  // namespace mep

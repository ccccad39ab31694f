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

void OperationChannel::ask_decision(uint64_t epoch, uint64_t seq) {
  if (asked_seq_ >= seq) return;
  comm_.world().report_deadline(comm_.id(), word_.id(), epoch);
  asked_seq_ = seq;
}

mep_result_t OperationChannel::fail_without_decision(uint64_t seq) const {
  return fail(MEP_ERR_INTERNAL, "operation %llu of comm %s got no decision; please report this",
              static_cast<unsigned long long>(seq), comm_.name().c_str());
}

std::shared_ptr<const Decision> OperationChannel::next_decision() const {
  const std::lock_guard lock(mutex_);
  return decisions_.empty() ? nullptr : decisions_.front();
}

std::shared_ptr<const Decision> OperationChannel::decision_of(uint64_t epoch) const {
  const std::lock_guard lock(mutex_);
  const auto it = std::find_if(decisions_.begin(), decisions_.end(), [=](const auto& decision) {
    return decision->change->epoch == epoch;
  });
  return it == decisions_.end() ? nullptr : *it;
}

std::shared_ptr<const CommView> OperationChannel::latest_view() const {
  const std::lock_guard lock(mutex_);
  return decisions_.empty() ? adopted_ : decisions_.back()->change->view;
}

bool OperationChannel::has_adopted_all() const {
  const std::lock_guard lock(mutex_);
  return decisions_.empty();
}

// --- The control thread ---------------------------------------------------------------------------

std::shared_ptr<const Decision> OperationChannel::decision_by(
    const std::shared_ptr<const CommChange>& change, const membership::Proposal& committed) const {
  auto decision = std::make_shared<Decision>();
  decision->change = change;
  decision->last_completed = word_.done();
  decision->next = decision->last_completed + 2;
  if (const auto* decided = committed.decision(comm_.id(), word_.id())) {
    decision->last_completed = decided->last_completed;
    decision->next = decided->next;
    decision->called = decided->called;
  }
  if (change->joined) decision->last_completed = decision->called = 0;
  return decision;
}

void OperationChannel::install(const std::shared_ptr<const Decision>& decision) {
  decisions_.push_back(decision);
  word_.restart(decision->change->view->epoch, decision->next - 1);
}

}  // namespace mep

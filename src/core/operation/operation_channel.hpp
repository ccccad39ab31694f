// A channel of operations: their numbers, the view that they are made in, and what view changes have
// decided of them.
//
// Two threads meet here: the user's (one at a time) and the world's control thread. The latter freezes the
// channel, and leaves decisions for the user's thread: that sees at its next look that the channel's word is
// not what it was, and adopts them, in their order, when nothing is left that they decide.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <new>

#include "base/clock.hpp"
#include "core/operation/channel.hpp"
#include "core/operation/comm_identity.hpp"
#include "core/operation/decision.hpp"
#include "core/operation/posting_gate.hpp"
#include "core/world/world.hpp"

namespace mep {

class OperationChannel {
 public:
  // `comm` outlives this object.
  OperationChannel(const CommIdentity& comm, uint64_t id) : comm_(comm), word_(id, 1) {}
  OperationChannel(const OperationChannel&) = delete;
  OperationChannel& operator=(const OperationChannel&) = delete;

  const CommIdentity& comm() const { return comm_; }
  uint64_t id() const { return word_.id(); }
  // Before the control thread knows the channel: the first call gets the number `next`.
  void start(std::shared_ptr<const CommView> view, uint64_t next);
  // While the comm is made: less members, in the same epoch.
  void correct_view(std::shared_ptr<const CommView> view);

  // --- The user's thread ---
  const CommView& adopted() const { return *adopted_; }
  // Nothing has changed: a call gets the next number.
  bool is_undisturbed() const {
    return word_.undisturbed(adopted_->epoch) && comm_.world().terminal_result() == MEP_SUCCESS;
  }
  // No view change is under way, or none will end any more.
  bool changes_are_over() const {
    return !word_.frozen() || comm_.world().terminal_result() != MEP_SUCCESS;
  }
  // Waits for that; an error where the world has ended.
  [[nodiscard]] mep_result_t await_changes(const Deadline& deadline) const;
  uint64_t last_number() const { return seq_; }
  // The number of a call that is made in the adopted view, before it posts anything.
  uint64_t take_number() {
    word_.enter(++seq_);
    return seq_;
  }
  // The number of a call that a decision decides.
  uint64_t take_decided_number() { return ++seq_; }
  // These numbers are given again: no decision has counted them.
  void take_back_numbers(uint64_t first) {
    if (first <= seq_) seq_ = first - 1;
  }
  bool undisturbed(uint64_t epoch) const { return word_.undisturbed(epoch); }
  // The same, frozen or not.
  bool in_epoch(uint64_t epoch) const { return word_.in_epoch(epoch); }
  bool has_moved() const { return word_.has_moved(); }
  // False: a view change decides of the operation.
  bool complete(uint64_t epoch, uint64_t seq) { return word_.complete(epoch, seq); }
  PostingScope posting() { return posting(adopted_->epoch); }
  // For who goes on with another view than the operations of this channel.
  PostingScope posting(uint64_t epoch) { return {gate_, word_, epoch}; }
  // Looks until `look` says that the operation has ended. False: the deadline has come.
  template <typename Look>
  bool wait(const Deadline& deadline, Look&& look) const {
    return wait_until(comm_.world().wait_policy(), comm_.world().doorbell(), deadline, look);
  }
  // The operation's time is over. The consequence is decided for all: a view change fixes which operations are
  // complete. Asked for once.
  void ask_decision(uint64_t epoch, uint64_t seq);
  // Asks for the decision and looks until it has ended the operation. Another change may come first. False:
  // none has come, which is a bug. The operation may get another number meanwhile.
  template <typename Op, typename Look>
  bool await_decision(const Op& operation, Look&& look) {
    return wait(comm_.change_deadline(), [&] {
      if (look()) return true;
      ask_decision(operation.epoch, operation.seq);
      return false;
    });
  }
  mep_result_t fail_without_decision(uint64_t seq) const;

  // The oldest that is not adopted, or that of the operations of an epoch; null: there is none.
  std::shared_ptr<const Decision> next_decision() const;
  std::shared_ptr<const Decision> decision_of(uint64_t epoch) const;
  // Goes on where the oldest one says. `restart` is called before, under the lock.
  template <typename Restart>
  void adopt(const Decision& decision, Restart&& restart) {
    const std::lock_guard lock(mutex_);
    restart();
    seq_ = decision.next - 1;
    asked_seq_ = 0;
    adopted_ = decision.change->view;
    decisions_.pop_front();
  }

  // --- Any thread ---
  // Guards the decisions, and what the client shares with the control thread.
  std::mutex& mutex() const { return mutex_; }
  std::shared_ptr<const CommView> latest_view() const;
  bool has_adopted_all() const;

  // --- The control thread ---
  uint64_t done() const { return word_.done(); }
  bool frozen() const { return word_.frozen(); }
  Channel::Frozen freeze() { return word_.freeze(); }
  // After freeze(): nobody posts any more.
  bool is_still() const { return gate_.is_empty(); }
  // For good: when it returns, nobody posts any more.
  void close() {
    (void)word_.freeze();
    gate_.close(comm_.name().c_str());
  }
  // The following functions are called under the lock.
  // The user's thread has seen the latest view.
  bool is_adopted() const { return decisions_.empty(); }
  const CommView& latest() const {
    return decisions_.empty() ? *adopted_ : *decisions_.back()->change->view;
  }
  // Nothing has changed.
  void resume() { word_.resume(); }
  // The decision must be in its place before the word shows it.
  void install(const std::shared_ptr<const Decision>& decision);
  // This channel's part of the decision.
  std::shared_ptr<const Decision> decision_by(const std::shared_ptr<const CommChange>& change,
                                              const membership::Proposal& committed) const;

 private:
  const CommIdentity& comm_;
  Channel word_;
  PostingGate gate_;

  // The user's thread. The view is changed under mutex_, for the control thread.
  std::shared_ptr<const CommView> adopted_;
  uint64_t seq_ = 0;        // of the last call
  uint64_t asked_seq_ = 0;  // up to where a decision was asked for, in the adopted epoch

  mutable std::mutex mutex_;
  std::deque<std::shared_ptr<const Decision>> decisions_;  // not adopted yet, oldest first
};

}  // namespace mep

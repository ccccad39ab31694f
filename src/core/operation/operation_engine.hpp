// The one way of an operation from its call to its end, whatever it does: it gets a number, or what a view
// change has decided of that number; it is stepped until it has ended, or until a change ends it; when its
// time is over, a change is asked for that settles it for all; it ends with the world.
//
// Two classes of operation:
//   replicated  The decision's numbers decide, the same on all ranks. A rank that has not called yet gets the same
//               when it does, and an operation that no decision counts begins anew in the next epoch.
//   personal    Each rank's own data decide: the operation in flight ends by what had arrived here when all
//               had stopped, and a call that comes later begins in the new epoch. Where the client keeps in step, the
//               decision says which calls a rank had made: one of them ends by the change also on a rank that
//               makes it later, and one that is not among them begins again in the new epoch on the rank that has begun it.
//
// A client supplies, for operations `Op` derived from OperationState:
//   kClass                      one of the two
//   note_number(op)             it has its number
//   in_step()                   personal: see above
//   begin_again(op)             replicated: forgets what it has done; personal, in step: the call begins it again, for it
//                               has posted nothing
//   step(op) or a step function  true: it has ended, or nothing is to be waited for
//   settle(op, decision)         ends it by what a change has decided, or by what has arrived
//   end(op, result)             ends it by an error of this rank
//   adopt(decision)              the user's thread goes on with the view after it: calls the engine's adopt()
#pragma once

#include <memory>
#include <new>

#include "base/status.hpp"
#include "core/operation/operation_channel.hpp"
#include "protocol/operations.hpp"

namespace mep {

// The outcome of a step.
enum class Step : uint8_t {
  kPending,  // nothing more can be done now
  kDone,     // this rank has what it waited for and has given all that others need
  kFailed,   // the operation's result says why; it concerns this call only
};

template <typename Op>
struct OperationState {
  uint64_t epoch = 0;
  uint64_t seq = 0;
  mep_result_t result = MEP_SUCCESS;
  bool finished = false;  // the result is final
  uint64_t flight = 0;    // its record, see FlightLog; 0: none
  Op* behind = nullptr;   // in the engine's queue
};

template <typename Client, typename Op>
class OperationEngine : public OperationChannel {
 public:
  OperationEngine(Client& client, const CommIdentity& comm, uint64_t id)
      : OperationChannel(comm, id), client_(client) {}

  // --- Beginning ---
  // Gives the operation its number. Where a change has decided of that number already, the operation has
  // ended afterwards; else it is queued.
  [[nodiscard]] mep_result_t begin(Op* operation) {
    if (is_undisturbed()) [[likely]] {
      give_number(operation);
    } else {
      MEP_TRY(with_memory([&]() -> mep_result_t {
        MEP_TRY(settle_changes());
        return place(operation);
      }));
    }
    if (!operation->finished) push_back(operation);
    return MEP_SUCCESS;
  }
  // The same in two steps and without the queue: a call of the new view may still be refused.
  [[nodiscard]] mep_result_t catch_up() {
    if (is_undisturbed()) [[likely]]
      return MEP_SUCCESS;
    return with_memory([&]() -> mep_result_t {
      MEP_TRY(settle_changes());
      return adopt_all();
    });
  }
  void give_number(Op* operation) {
    operation->epoch = adopted().epoch;
    operation->seq = take_number();
    client_.note_number(*operation);
  }

  // --- Driving ---
  // One look: a step, or what has become of the operation. Where memory runs out the operation ends, and with it this
  // rank's part of the world, for the others need what it would have given.
  template <typename StepFunction>
  bool look(Op* operation, StepFunction&& step) {
    try {
      if (undisturbed(operation->epoch)) [[likely]]
        return step();
      return settle(operation);
    } catch (const std::bad_alloc&) {
      client_.end(*operation, comm().world().run_out_of_memory());
      return true;
    }
  }
  // The channel was frozen, or is in a later epoch than the operation. True: it has ended.
  bool settle(Op* operation) {
    const std::shared_ptr<const Decision> decision = decision_of(operation->epoch);
    if (decision == nullptr || (kIsPersonal && frozen())) return settle_undecided(operation);
    if (kIsPersonal || operation->seq < decision->next) {
      if (is_uncounted(*operation, *decision)) {
        client_.begin_again(*operation);
      } else {
        client_.settle(*operation, *decision);
      }
      if constexpr (kIsPersonal) (void)adopt_all();
      return true;
    }
    replace_queue();
    return operation->finished;
  }
  // Looks until `look` says so; once the deadline has come, with a decision asked for. False: there came
  // none.
  template <typename Look>
  bool drive(const Op& operation, const Deadline& deadline, Look&& look) {
    return wait(deadline, look) || await_decision(operation, look);
  }

  // --- The queue: operations in the order of their calls, the first of which is stepped ---
  bool idle() const { return first_ == nullptr; }
  const Op* first() const { return first_; }
  // Steps all operations as far as they go now.
  void step_all() {
    if (last_ != nullptr) (void)test(last_);
  }
  // True once the operation has its final result. It may have been finished on behalf of a later one, and
  // others may wait behind it.
  bool test(Op* operation) {
    while (!operation->finished) {
      if (first_ == nullptr) return false;
      Op* const first = first_;
      if (!first->finished && !look(first, [&] { return client_.step(*first); })) return false;
      pop_front();
    }
    while (first_ != nullptr && first_->finished) pop_front();
    return true;
  }
  [[nodiscard]] bool wait_for(Op* operation, const Deadline& deadline) {
    return wait(deadline, [&] { return test(operation); });
  }
  // The operation's time is over: waits for the decision that ends it. False: there came none, and the queue
  // knows the operation no more.
  [[nodiscard]] bool wait_for_decision(Op* operation) {
    const auto look = [&] { return test(operation); };
    if (await_decision(*operation, look)) return true;
    drop(operation);
    return false;
  }

 private:
  static constexpr bool kIsPersonal = Client::kClass == OperationClass::kPersonal;

  // It got its number after the freeze had counted the calls, so all others make this call in the new epoch. Since it saw
  // the freeze before it could post, nobody has anything of it.
  bool is_uncounted(const Op& operation, const Decision& decision) const {
    if constexpr (kIsPersonal) {
      return client_.in_step() && operation.seq > decision.called;
    } else {
      return false;
    }
  }

  template <typename Body>
  mep_result_t with_memory(Body&& body) {
    mep_result_t result = MEP_SUCCESS;
    const bool had_memory = comm().world().attempt([&] { result = body(); });
    return had_memory ? result : comm().check_world();
  }

  // Before a call of a changed view: what is queued is answered, and no change is under way any more.
  mep_result_t settle_changes() {
    const Deadline deadline = comm().change_deadline();
    if constexpr (!kIsPersonal) {
      const bool goes_on = comm().world().terminal_result() == MEP_SUCCESS;
      if (last_ != nullptr && goes_on) (void)wait_for(last_, deadline);
    }
    return await_changes(deadline);
  }

  mep_result_t adopt_all() {
    while (const std::shared_ptr<const Decision> decision = next_decision()) {
      // Another rank had made this rank's next call, so that begins in the view before and ends by the change.
      if (client_.in_step() && decision->called > last_number()) break;
      MEP_TRY(client_.adopt(*decision));
    }
    return MEP_SUCCESS;
  }

  // Gives the operation the next number. Where a view change has decided of that number already, the
  // operation succeeds with what was retained for it, or fails like those of the other ranks.
  mep_result_t place(Op* operation) {
    while (const std::shared_ptr<const Decision> decision = next_decision()) {
      if (!kIsPersonal && decision->decides(last_number() + 1)) {
        operation->epoch = decision->change->epoch;
        operation->seq = take_decided_number();
        client_.note_number(*operation);
        client_.settle(*operation, *decision);
        return MEP_SUCCESS;
      }
      MEP_TRY(client_.adopt(*decision));
    }
    give_number(operation);
    return MEP_SUCCESS;
  }

  bool settle_undecided(Op* operation) {
    const mep_result_t ended = comm().check_world();
    if (ended != MEP_SUCCESS) {
      client_.end(*operation, ended);
      return true;
    }
    if (kIsPersonal || operation->epoch == adopted().epoch) return false;  // still deciding
    replace_queue();
    return operation->finished;
  }

  // The queued operations got their numbers just after the channel was frozen, so no decision counts them:
  // nobody else knows of them, and they take the next numbers instead.
  void replace_queue() {
    if constexpr (!kIsPersonal) {
      for (Op* each = first_; each != nullptr; each = each->behind) take_back_numbers(each->seq);
      for (Op* each = first_; each != nullptr; each = each->behind) {
        client_.begin_again(*each);
        const mep_result_t placed = place(each);
        if (placed != MEP_SUCCESS) client_.end(*each, placed);
      }
    }
  }

  void push_back(Op* operation) {
    operation->behind = nullptr;
    (last_ != nullptr ? last_->behind : first_) = operation;
    last_ = operation;
  }
  void pop_front() {
    first_ = first_->behind;
    if (first_ == nullptr) last_ = nullptr;
  }
  // Only where nothing better is left: the operation has no end.
  void drop(Op* operation) {
    Op* rest = first_;
    first_ = nullptr;
    last_ = nullptr;
    while (rest != nullptr) {
      Op* const each = rest;
      rest = rest->behind;
      if (each != operation) push_back(each);
    }
  }

  Client& client_;
  Op* first_ = nullptr;
  Op* last_ = nullptr;
};

}  // namespace mep

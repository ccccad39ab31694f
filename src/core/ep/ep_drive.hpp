// How a call on a buffer waits; included by the files that have step functions.
#pragma once

#include <new>

#include "base/status.hpp"
#include "core/ep/ep_buffer.hpp"
#include "core/world/wait.hpp"

namespace mep {

// Steps until `step` has nothing more to do or the operation is over. When the time is over the view
// settles what that means, and the call waits for the verdict.
template <typename StepFunction>
void EpBuffer::drive(const Deadline& deadline, StepFunction&& step) {
  // Beyond all that a view change may take.
  constexpr uint64_t kVerdictGraceMs = 60'000;
  World& world = comm_.world();
  // Whoever left by a verdict may have rows on their way that lie in the caller's memory.
  struct Release {
    ~Release() {
      if (settled) buffer.flush_puts();
    }
    const EpBuffer& buffer;
    bool settled = false;
  } release{*this};
  bool reports = false;  // the deadline is over, and membership does not know yet
  const auto look = [&] {
    if (reports) {
      world.report_deadline(comm_.id(), channel_.id(), op_.epoch);
      reports = false;  // it has come through
    }
    if (op_.over) return true;
    if (channel_.undisturbed(op_.epoch) && world.terminal_result() == MEP_SUCCESS) {
      return step() != Step::kPending;
    }
    release.settled = true;
    return settle();
  };
  // Whatever memory was not there for is done again at the next look.
  const auto poll = [&] {
    try {
      return look();
    } catch (const std::bad_alloc&) {
      return false;
    }
  };
  if (wait_until(world.wait_policy(), world.doorbell(), deadline, poll)) return;
  reports = true;
  const Deadline grace = Deadline::after_ms(kVerdictGraceMs + comm_.timeout_ms());
  if (wait_until(world.wait_policy(), world.doorbell(), grace, poll)) return;
  (void)hard_failure(fail(MEP_ERR_INTERNAL,
                          "operation %llu of an EP buffer got no verdict; please report this",
                          static_cast<unsigned long long>(op_.seq)));
}

}  // namespace mep

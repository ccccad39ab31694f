// How a call on a buffer waits; included by the files that have step functions.
#pragma once

#include "core/ep/host/ep_buffer.hpp"

namespace mep {

// Steps until `step` has nothing more to do or the operation is over. When the time is over the view
// settles what that means, and the call waits for the decision.
template <typename StepFunction>
void EpBuffer::drive(const Deadline& deadline, StepFunction&& step) {
  const auto look = [&] {
    return op_.finished || engine_.look(&op_, [&] { return step() != Step::kPending; });
  };
  if (!engine_.drive(op_, deadline, look)) {
    (void)hard_failure(engine_.fail_without_decision(op_.seq));
  }
}

}  // namespace mep

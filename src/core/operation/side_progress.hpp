// The part of a comm that is pending while one of its calls waits: its collectives for a message, and its messages
// for a collective. A peer may need it before it comes to what the call waits for.
#pragma once

namespace mep {

// The user's thread.
class SideProgress {
 public:
  virtual ~SideProgress() = default;
  virtual bool is_pending() const = 0;
  // Steps as far as it goes now; never waits.
  virtual void step_from_other() = 0;
};

}  // namespace mep

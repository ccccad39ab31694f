#include "core/world/wait.hpp"

#include <sched.h>

#include <algorithm>

namespace mep {

bool YieldGauge::yield(uint64_t now_ns) {
  if (is_dear(now_ns)) return false;
  sched_yield();
  note(now_ns, mep::now_ns());
  return true;
}

bool SlowWait::yield_once() {
  if (sleep_due_) return !deadline_.expired();
  sched_yield();
  // The clock costs about as much as all else that a rank does in an operation of a few bytes.
  if (++yields_ % kYieldsPerClock != 0) return true;
  const uint64_t now = now_ns();
  if (now >= deadline_.at_ns(now)) return false;
  if (yield_until_ns_ == 0) yield_until_ns_ = now + policy_.yield_ns;
  sleep_due_ = now >= yield_until_ns_;
  return true;
}

uint64_t SlowWait::sleep_ns() const {
  const uint64_t now = now_ns();
  if (now >= deadline_.at_ns()) return 0;
  return std::min(policy_.max_sleep_ns, deadline_.at_ns() - now);
}

}  // namespace mep

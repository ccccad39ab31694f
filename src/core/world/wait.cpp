#include "core/world/wait.hpp"

#include <sched.h>

#include <algorithm>

namespace mep {

uint64_t time_a_yield() {
  const uint64_t away_ns = now_ns();
  sched_yield();
  return now_ns() - away_ns;
}

bool SlowWait::yield_once() {
  if (sleep_due_) return !deadline_.expired();
  const uint64_t away_ns = is_timed_ ? now_ns() : 0;
  sched_yield();
  if (is_timed_ && policy_.gauge->note(away_ns, now_ns())) {
    sleep_due_ = true;
    return true;
  }
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

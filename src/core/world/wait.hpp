// How a call waits: it looks, spins, then yields, then sleeps on the rank's doorbell.
//
// How long each lasts depends on whether the ranks of this host outnumber the cores that they may use
// together: then spinning only keeps the awaited rank off its core, so the wait yields at once.
// Every wait ends: `poll` answers true for success and for a wedged channel alike, and the deadline is
// looked at in every round of yields.
#pragma once

#include <cstdint>

#include "base/clock.hpp"
#include "core/world/doorbell_delays.hpp"

namespace mep {

struct WaitPolicy {
  uint32_t spins = 2000;        // looks with a pause between them
  uint64_t yield_ns = 200'000;  // then sched_yield() for this long
  uint64_t max_sleep_ns =
      50'000'000;  // longest single sleep, a bound on what a lost wake could cost
};

inline void cpu_pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// What a round of waiting does after the spins; kept out of line, it is off the fast path.
class SlowWait {
 public:
  SlowWait(const WaitPolicy& policy, Doorbell* doorbell, const Deadline& deadline)
      : policy_(policy), doorbell_(doorbell), deadline_(deadline) {}
  // One yield, or (later) prepares one sleep. False: the deadline is over.
  // `still_waiting` is asked once more after the sleep was announced.
  template <typename Poll>
  bool round(Poll&& poll) {
    if (!yield_once()) return false;
    if (!sleep_due_) return true;
    WaitSleep sleep(doorbell_);
    if (!poll()) sleep.wait(sleep_ns());
    return true;
  }

 private:
  bool yield_once();
  uint64_t sleep_ns() const;

  const WaitPolicy& policy_;
  Doorbell* doorbell_;
  const Deadline& deadline_;
  uint64_t yield_until_ns_ = 0;
  bool sleep_due_ = false;
};

// Waits until poll() is true; false: the deadline came first.
template <typename Poll>
bool wait_until(const WaitPolicy& policy, Doorbell* doorbell, const Deadline& deadline,
                Poll&& poll) {
  for (uint32_t i = 0; i < policy.spins; ++i) {
    if (poll()) return true;
    cpu_pause();
  }
  SlowWait slow(policy, doorbell, deadline);
  while (!poll()) {
    if (!slow.round(poll)) return poll();
  }
  return true;
}

}  // namespace mep

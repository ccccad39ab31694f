#include "core/comm/call_gate.hpp"

#include <sched.h>
#include <time.h>

#include "base/test_delay.hpp"
#include "core/world/wait.hpp"

namespace mep {

bool CallGate::enter_after_look(uint32_t seen) {
  for (;;) {
    if ((seen & (kCall | kWaitingCall | kAwaited)) != 0) return false;
    // Acquire where it enters at once; the mark alone orders nothing.
    const uint32_t next = seen == 0 ? kCall : seen | kAwaited;
    if (!word_.compare_exchange_weak(seen, next, std::memory_order_acquire,
                                     std::memory_order_relaxed)) {
      continue;
    }
    if (next == kCall) return true;
    break;
  }
  MEP_TEST_DELAY_POINT("call awaits look");
  await_end_of_look();
  // From the mark on nobody else enters; a look may still be turned away. Acquire: what the look has left.
  word_.fetch_xor(kAwaited | kCall, std::memory_order_acquire);
  return true;
}

// A looking thread that is off its core needs the core of the waiting one, even where that has a higher priority.
void CallGate::await_end_of_look() const {
  constexpr uint32_t kPauses = 500;
  constexpr uint32_t kYields = 100;
  constexpr timespec kNap{0, 50'000};
  // Relaxed: who enters acquires.
  for (uint32_t round = 0; (word_.load(std::memory_order_relaxed) & kLook) != 0; ++round) {
    if (round < kPauses) {
      cpu_pause();
    } else if (round < kPauses + kYields) {
      sched_yield();
    } else {
      nanosleep(&kNap, nullptr);
    }
  }
}

bool CallGate::leave_to_looks() {
  uint32_t seen = kCall;
  if (word_.compare_exchange_strong(seen, 0, std::memory_order_release,
                                    std::memory_order_relaxed)) {
    return true;
  }
  // Acquire: what the progress thread had noted before it set the mark.
  word_.fetch_and(~kTurnedAway, std::memory_order_acquire);
  return false;
}

bool CallGate::enter_look() {
  uint32_t seen = 0;
  for (;;) {
    const uint32_t next = seen == 0 ? kLook : seen | kTurnedAway;
    // Release: with the mark, what this thread has noted of the comm.
    if (word_.compare_exchange_weak(seen, next, std::memory_order_acq_rel,
                                    std::memory_order_relaxed)) {
      return next == kLook;
    }
  }
}

}  // namespace mep

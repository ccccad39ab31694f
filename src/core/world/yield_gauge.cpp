#include "core/world/yield_gauge.hpp"

#include <algorithm>

namespace mep {

void YieldGauge::begin(uint32_t ranks, bool have_core_each) {
  ranks_ = ranks;
  turn(have_core_each);
}

void YieldGauge::turn(bool spins) {
  spins_.store(spins, std::memory_order_relaxed);
  in_a_row_.store(0, std::memory_order_relaxed);
  trials_paid_.store(0, std::memory_order_relaxed);
  trial_at_ns_.store(0, std::memory_order_relaxed);
}

// A wait that spins looked in vain, and something else wants its core.
void YieldGauge::note_vain() {
  const uint32_t in_a_row = in_a_row_.load(std::memory_order_relaxed) + 1;
  in_a_row_.store(in_a_row, std::memory_order_relaxed);
  if (in_a_row >= kShared) turn(false);
}

YieldGauge::Start YieldGauge::start(uint64_t now, bool adapts) {
  Start start;
  start.sleeps = now < sleep_until_ns_.load(std::memory_order_relaxed);
  if (!adapts) return start;
  if (spins()) {
    if (start.sleeps) note_vain();
    return start;
  }
  const uint64_t trial_at_ns = trial_at_ns_.load(std::memory_order_relaxed);
  start.tries = trial_at_ns != 0 && now >= trial_at_ns;
  if (start.tries || trial_at_ns == 0) {
    trial_at_ns_.store(now + kTrialNs, std::memory_order_relaxed);
  }
  return start;
}

void YieldGauge::note_trial(bool came) {
  const uint32_t paid = came ? trials_paid_.load(std::memory_order_relaxed) + 1 : 0;
  trials_paid_.store(paid, std::memory_order_relaxed);
  if (paid >= kPaid && !spins()) turn(true);
}

bool YieldGauge::asks_place() {
  const uint32_t waits = waits_.load(std::memory_order_relaxed);
  waits_.store(waits + 1, std::memory_order_relaxed);
  return waits % kPlaceWaits == 0;
}

void YieldGauge::note_place(uint64_t mask, uint32_t cores) {
  const uint64_t before = mask_.load(std::memory_order_relaxed);
  if (mask == before) return;
  mask_.store(mask, std::memory_order_relaxed);
  if (before == 0) return;
  turn(ranks_ <= cores);
  shift_.store(kMinShift, std::memory_order_relaxed);
  sleep_until_ns_.store(0, std::memory_order_relaxed);
}

bool YieldGauge::note_yield(uint64_t away_ns, uint64_t back_ns, bool is_first) {
  const uint64_t took_ns = back_ns - away_ns;
  if (is_first && spins()) {
    if (took_ns >= kSwitchNs) {
      note_vain();
    } else {
      in_a_row_.store(0, std::memory_order_relaxed);
    }
  } else if (is_first) {
    const uint32_t in_a_row =
        took_ns < kSwitchNs ? in_a_row_.load(std::memory_order_relaxed) + 1 : 0;
    in_a_row_.store(in_a_row, std::memory_order_relaxed);
    if (in_a_row >= kAlone) turn(true);
  }
  if (took_ns <= kDearNs) {
    const uint32_t cheap = cheap_.load(std::memory_order_relaxed) + 1;
    cheap_.store(cheap, std::memory_order_relaxed);
    if (cheap >= kCalm) shift_.store(kMinShift, std::memory_order_relaxed);
    return false;
  }
  const uint32_t shift = shift_.load(std::memory_order_relaxed);
  cheap_.store(0, std::memory_order_relaxed);
  shift_.store(std::min(shift + kShiftStep, kMaxShift), std::memory_order_relaxed);
  sleep_until_ns_.store(back_ns + (std::min(took_ns, kMaxDearNs) << shift),
                        std::memory_order_relaxed);
  return true;
}

}  // namespace mep

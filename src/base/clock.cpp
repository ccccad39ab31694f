#include "base/clock.hpp"

#include <atomic>
#include <ctime>

namespace mep {

namespace {

// Relaxed: it publishes nothing. 0: no control thread has run.
std::atomic<uint64_t> last_tick_ns{0};

}  // namespace

uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);  // cannot fail: the clock exists and `now` is ours
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

uint64_t tick_ns() {
  const uint64_t tick = last_tick_ns.load(std::memory_order_relaxed);
  return tick != 0 ? tick : now_ns();
}

void note_tick(uint64_t ns) {
  last_tick_ns.store(ns, std::memory_order_relaxed);
}

int Deadline::left_ms(int cap) const {
  const uint64_t now = now_ns();
  if (now >= at_ns(now) || cap <= 0) return 0;
  const uint64_t left_ns = at_ns_ - now;
  const uint64_t left_ms = left_ns / 1000000u + (left_ns % 1000000u != 0 ? 1 : 0);
  return left_ms < static_cast<uint64_t>(cap) ? static_cast<int>(left_ms) : cap;
}

}  // namespace mep

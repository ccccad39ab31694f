#include "core/world/wait.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace mep {

YieldGauge::Start start_slow_wait(const WaitPolicy& policy, uint64_t now) {
  YieldGauge& gauge = *policy.gauge;
  cpu_set_t set;
  // The process's first thread speaks for all: masks of threads may differ. Systems with more CPUs than the
  // set has are not asked.
  if (gauge.asks_place() && sched_getaffinity(getpid(), sizeof(set), &set) == 0) {
    std::array<uint64_t, sizeof(set) / sizeof(uint64_t)> words;
    std::memcpy(words.data(), &set, sizeof(set));
    uint64_t mask = 0;
    uint32_t cores = 0;
    for (const uint64_t word : words) {
      mask = (mask ^ word) * 0x9e3779b97f4a7c15;
      cores += static_cast<uint32_t>(std::popcount(word));
    }
    gauge.note_place(mask | 1, cores);
  }
  return gauge.start(now, policy.adapts);
}

SlowWait::SlowWait(const WaitPolicy& policy, Doorbell* doorbell, const Deadline& deadline)
    : policy_(policy), doorbell_(doorbell), deadline_(deadline), now_ns_(now_ns()) {
  yield_until_ns_ = now_ns_ + policy.yield_ns;
  if (policy.gauge != nullptr) start_ = start_slow_wait(policy, now_ns_);
}

bool SlowWait::yield_once() {
  if (!start_.sleeps) {
    sched_yield();
    const uint64_t away_ns = now_ns_;
    now_ns_ = now_ns();
    start_.sleeps = now_ns_ >= yield_until_ns_;
    if (policy_.gauge != nullptr &&
        policy_.gauge->note_yield(away_ns, now_ns_, is_first_ && policy_.adapts)) {
      start_.sleeps = true;
    }
    is_first_ = false;
  } else {
    now_ns_ = now_ns();
  }
  return now_ns_ < deadline_.at_ns(now_ns_);
}

uint64_t SlowWait::sleep_ns() const {
  const uint64_t now = now_ns();
  if (now >= deadline_.at_ns()) return 0;
  return std::min(policy_.max_sleep_ns, deadline_.at_ns() - now);
}

}  // namespace mep

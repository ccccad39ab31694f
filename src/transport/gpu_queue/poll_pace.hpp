// How long a thread that polls words of GPUs waits between two looks: it yields for 100 us after the last work, then it
// pauses, for longer each time, at most 50 us.
#pragma once

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <ctime>

#include "base/clock.hpp"

namespace mep::gpu_queue {

class PollPace {
 public:
  void note_work() {
    last_work_ns_ = now_ns();
    pauses_ = 0;
  }
  bool is_eager() const { return now_ns() - last_work_ns_ < kEagerNs; }
  void wait() {
    if (is_eager()) {
      sched_yield();
      return;
    }
    const timespec pause{0, std::min(kShortestPauseNs << std::min(pauses_, 16u), kLongestPauseNs)};
    ++pauses_;
    nanosleep(&pause, nullptr);
  }

 private:
  static constexpr uint64_t kEagerNs = 100'000;
  static constexpr uint32_t kShortestPauseNs = 1'000;
  static constexpr uint32_t kLongestPauseNs = 50'000;

  uint64_t last_work_ns_ = now_ns();
  uint32_t pauses_ = 0;
};

}  // namespace mep::gpu_queue

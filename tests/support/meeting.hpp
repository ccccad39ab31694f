// Where processes of a test wait for each other without the library.
//
// A rank that is to end right after an operation needs it: the others may not have seen its last signal yet,
// and if it ends before they do, it is that operation that tells them of its end, and no later one.
#pragma once

#include <atomic>

#include "base/clock.hpp"
#include "support/coll_ranks.hpp"
#include "support/shared_memory.hpp"

namespace mep_test {

// Made before the processes are forked. Each of `size` calls pass() equally often.
class Meeting {
 public:
  explicit Meeting(int size) : size_(size), arrived_(make_shared_memory<std::atomic<int>>()) {}

  // Returns when all have called it as often as this process.
  void pass(Report& report) {
    passed_ += 1;
    arrived_->fetch_add(1);
    const mep::Deadline limit = mep::Deadline::after_ms(100'000);
    while (arrived_->load() < passed_ * size_) {
      if (limit.expired()) {
        report.add("not all came to meeting %d of a test", passed_);
        return;
      }
      pause_us(200);
    }
  }

 private:
  const int size_;
  int passed_ = 0;  // by this process
  SharedMemory<std::atomic<int>> arrived_;
};

}  // namespace mep_test

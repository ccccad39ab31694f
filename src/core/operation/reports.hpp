// Changes that no call has reported yet, the oldest first: each is reported once. Any thread.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>

#include "core/operation/decision.hpp"

namespace mep {

class Reports {
 public:
  using Report = std::shared_ptr<const CommChange>;

  // Relaxed: a hint; the reports themselves are under the mutex.
  bool any() const { return count_.load(std::memory_order_relaxed) != 0; }
  void push(Report report);
  // Null: there is none.
  Report take();
  // Drops the reports of that epoch and before: a call has given them.
  void drop_up_to(uint64_t epoch);
  void clear();

 private:
  void note_count() { count_.store(reports_.size(), std::memory_order_relaxed); }

  std::mutex mutex_;
  std::deque<Report> reports_;
  std::atomic<size_t> count_{0};
};

}  // namespace mep

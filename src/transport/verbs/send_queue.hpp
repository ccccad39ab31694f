// The accounting of one send queue: how many work requests are in it, and which of them tell when they
// are done. A queue pair executes in order, so one completion stands for all requests before it.
//
// Invariants
//   - posted() - completed() never exceeds the depth if nothing is posted while full().
//   - A full queue always has a signalled request in it, so waiting for room ends.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mep::verbs {

class SendQueue {
 public:
  explicit SendQueue(uint32_t depth) : depth_(depth), interval_(std::max(depth / 4, 1u)) {}

  bool full() const { return posted_ - completed_ >= depth_; }
  bool idle() const { return posted_ == completed_; }
  uint64_t posted() const { return posted_; }
  uint64_t completed() const { return completed_; }
  // Whether the last request will tell of itself; if not, whoever waits for it needs another one.
  bool last_is_signalled() const { return signalled_ == posted_; }

  // Whether the next request must be signalled; post() gives its number.
  bool must_signal() const { return posted_ + 1 - signalled_ >= interval_; }
  uint64_t post(bool signalled) {
    ++posted_;
    if (signalled) signalled_ = posted_;
    return posted_;
  }
  // A number that was never posted, or is done already, changes nothing.
  void complete(uint64_t number) {
    if (number <= posted_) completed_ = std::max(completed_, number);
  }
  // The queue pair is gone: nothing is in the queue any more.
  void abandon() { completed_ = posted_; }

 private:
  uint32_t depth_;
  uint32_t interval_;
  uint64_t posted_ = 0;
  uint64_t completed_ = 0;
  uint64_t signalled_ = 0;  // number of the last signalled request
};

}  // namespace mep::verbs

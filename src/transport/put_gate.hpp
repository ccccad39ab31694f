// Counts the puts under way from one rank into the windows of another rank of the same process, and
// can be closed for good: then whoever is inside is waited for and nobody else comes in.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.hpp"

namespace mep {

class PutGate {
 public:
  // False: closed. Each true needs one leave().
  bool enter() {
    // Acquire: pairs with close(), so that a refused put touches nothing afterwards.
    if ((state_.fetch_add(1, std::memory_order_acq_rel) & kClosed) == 0) return true;
    state_.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  // Release: close() returns after the writes that this pass covered.
  void leave() { state_.fetch_sub(1, std::memory_order_release); }

  // False: somebody was still inside at the deadline (and nobody new comes in all the same).
  bool close(const Deadline& deadline);

 private:
  static constexpr uint32_t kClosed = 0x80000000;
  // Top bit: closed. The others: how many are inside or about to be refused.
  std::atomic<uint32_t> state_{0};
};

// One pass through a gate; no gate means always open.
class PutPass {
 public:
  explicit PutPass(PutGate* gate) : gate_(gate), open_(gate == nullptr || gate->enter()) {}
  ~PutPass() {
    if (gate_ != nullptr && open_) gate_->leave();
  }
  PutPass(const PutPass&) = delete;
  PutPass& operator=(const PutPass&) = delete;
  bool open() const { return open_; }

 private:
  PutGate* gate_;
  bool open_;
};

}  // namespace mep

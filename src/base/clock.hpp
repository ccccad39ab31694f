// Monotonic time. Every deadline of the library is a Deadline, so "every wait ends" has one form.
#pragma once

#include <cstdint>
#include <limits>

namespace mep {

// CLOCK_MONOTONIC in nanoseconds; comparable between the processes of a host.
uint64_t now_ns();
// The same clock when a control thread of this process last looked at it, up to a second ago: a call that has no time for
// the clock itself takes this one.
uint64_t tick_ns();
void note_tick(uint64_t ns);

class Deadline {
 public:
  static Deadline after_ms(uint64_t ms) { return Deadline(now_ns() + ms * 1000000u); }
  // The time begins when it is looked at first: a wait that ends before it looks needs no clock.
  static Deadline after_first_look_ms(uint64_t ms) { return Deadline(0, ms * 1000000u); }
  static Deadline never() { return Deadline(std::numeric_limits<uint64_t>::max()); }
  static Deadline at(uint64_t ns) { return Deadline(ns); }
  bool expired() const {
    const uint64_t now = now_ns();
    return now >= at_ns(now);
  }
  uint64_t at_ns() const { return waits_for_look_ns_ == 0 ? at_ns_ : at_ns(now_ns()); }
  // The same where the clock was just read.
  uint64_t at_ns(uint64_t now) const {
    if (waits_for_look_ns_ != 0) at_ns_ = now + waits_for_look_ns_;
    waits_for_look_ns_ = 0;
    return at_ns_;
  }
  // Milliseconds left, rounded up, 0 when expired, at most `cap`; for poll() and friends.
  int left_ms(int cap) const;

 private:
  explicit Deadline(uint64_t ns, uint64_t waits_for_look_ns = 0)
      : at_ns_(ns), waits_for_look_ns_(waits_for_look_ns) {}
  mutable uint64_t at_ns_;
  mutable uint64_t waits_for_look_ns_;  // its length until it is looked at, then 0
};

}  // namespace mep

// Monotonic time. Every deadline of the library is a Deadline, so "every wait ends" has one form.
#pragma once

#include <cstdint>
#include <limits>

namespace mep {

// CLOCK_MONOTONIC in nanoseconds; comparable between the processes of a host.
uint64_t now_ns();

class Deadline {
 public:
  static Deadline after_ms(uint64_t ms) { return Deadline(now_ns() + ms * 1000000u); }
  static Deadline never() { return Deadline(std::numeric_limits<uint64_t>::max()); }
  static Deadline at_ns(uint64_t ns) { return Deadline(ns); }
  bool expired() const { return now_ns() >= at_ns_; }
  uint64_t at_ns() const { return at_ns_; }
  // Milliseconds left, rounded up, 0 when expired, at most `cap`; for poll() and friends.
  int left_ms(int cap) const;

 private:
  explicit Deadline(uint64_t ns) : at_ns_(ns) {}
  uint64_t at_ns_;
};

}  // namespace mep

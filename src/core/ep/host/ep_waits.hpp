// How long a call on a buffer waits for each rank, for the caller's wait_ns. Used by the thread of the call.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.hpp"

namespace mep {

class EpWaits {
 public:
  // The last allocation.
  void reserve(uint32_t ranks) { awaited_.assign(ranks, 0); }

  // A call begins. out: [R] of the caller, added to until end(); null: nothing is measured.
  void begin(int64_t* out) {
    out_ = out;
    is_waiting_ = false;
  }
  bool measures() const { return out_ != nullptr; }

  // One look at a wait for `members`: whether all have arrived. The time of a wait begins with its first look.
  template <typename Arrived>
  bool look(const std::vector<uint32_t>& members, uint32_t own, Arrived&& arrived) {
    const uint64_t now = now_ns();
    if (!is_waiting_) {
      std::fill(awaited_.begin(), awaited_.end(), 0);
      for (const uint32_t rank : members) awaited_[rank] = 1;
      is_waiting_ = true;
      began_ns_ = now;
    }
    bool all = true;
    for (const uint32_t rank : members) {
      if (awaited_[rank] == 0) continue;
      if (!arrived(rank)) {
        all = false;
        continue;
      }
      awaited_[rank] = 0;
      if (rank != own) add(rank, now);
    }
    is_waiting_ = !all;
    return all;
  }

  // The call ends: those that have not arrived were awaited until now.
  void end(uint32_t own) {
    if (out_ != nullptr && is_waiting_) {
      const uint64_t now = now_ns();
      for (uint32_t rank = 0; rank < awaited_.size(); ++rank) {
        if (awaited_[rank] != 0 && rank != own) add(rank, now);
      }
    }
    begin(nullptr);
  }

 private:
  void add(uint32_t rank, uint64_t now) { out_[rank] += static_cast<int64_t>(now - began_ns_); }

  int64_t* out_ = nullptr;
  bool is_waiting_ = false;
  uint64_t began_ns_ = 0;
  std::vector<uint8_t> awaited_;  // by rank: it has not arrived yet
};

}  // namespace mep

// Counts of what happened on a comm since it was made, for mep_comm_stats and MEP_METRICS_FILE.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/status.hpp"
#include "mep.h"

namespace mep {

enum class CallKind : uint8_t { kCollective, kSend, kReceive, kDispatch, kCombine };
inline constexpr size_t kCallKinds = 5;

// The counters in the order of mep_comm_stats_t: calls by kind, bytes by kind, then these.
enum class Counter : uint8_t {
  kPartial = 2 * kCallKinds,
  kPeerFailed,
  kPeerLeft,
  kTimeout,
  kMismatch,
  kOtherError,
  kViewChanges,
  kRanksLost,
  kRanksAdmitted,
};
inline constexpr size_t kCounters = static_cast<size_t>(Counter::kRanksAdmitted) + 1;

// A counter's name and label in Prometheus' text format; `label` may be empty. Counters of one name follow each other.
struct CounterText {
  const char* name;
  const char* help;
  const char* label;
};
extern const std::array<CounterText, kCounters> kCounterTexts;

class CommCounters {
 public:
  // One thread at a time, inside a CallScope of the comm; of dispatch and combine any thread, for each buffer has its own.
  void begin(CallKind kind) { add(kind, index_of(kind), 1); }
  void end(CallKind kind, mep_result_t result, uint64_t bytes) {
    if (result != MEP_SUCCESS) [[unlikely]]
      note_result(result);
    if (!is_error(result) && bytes != 0) add(kind, kCallKinds + index_of(kind), bytes);
  }
  // A call ended otherwise than by success. Any thread.
  void note_result(mep_result_t result);
  // The control thread.
  void note_change(uint64_t lost, uint64_t admitted) {
    add(static_cast<size_t>(Counter::kViewChanges), 1);
    add(static_cast<size_t>(Counter::kRanksLost), lost);
    add(static_cast<size_t>(Counter::kRanksAdmitted), admitted);
  }
  // Any thread.
  void fill(mep_comm_stats_t* stats) const;
  uint64_t value(size_t counter) const { return values_[counter].load(std::memory_order_relaxed); }

 private:
  static size_t index_of(CallKind kind) { return static_cast<size_t>(kind); }
  // Relaxed, like all here: a count publishes nothing else. Writers that CallScope orders need no locked addition.
  void add(CallKind kind, size_t counter, uint64_t by) {
    if (kind >= CallKind::kDispatch) return add(counter, by);
    values_[counter].store(value(counter) + by, std::memory_order_relaxed);
  }
  void add(size_t counter, uint64_t by) {
    values_[counter].fetch_add(by, std::memory_order_relaxed);
  }

  // On a line of their own: the user's thread writes them in every call.
  alignas(64) std::array<std::atomic<uint64_t>, kCounters> values_{};
};

}  // namespace mep

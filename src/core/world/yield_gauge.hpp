// The waits of one rank find out here about its core: whether the awaited rank shares it, so that looking
// only keeps that rank off it, and whether another program has it, so that they sleep. Ranks that wait as
// well give a core back at once, but a program that computes keeps it for its time slice; a sleeper is woken
// up in the middle of that.
//
// It makes no system call and reads no clock: the waits say what they saw, in nanoseconds of their clock.
#pragma once

#include <atomic>
#include <cstdint>

namespace mep {

class YieldGauge {
 public:
  // More than a yield takes where nobody else wants the core, less than a change of process and back.
  static constexpr uint64_t kSwitchNs = 1'500;
  // Less than a time slice, more than ranks do in one go.
  static constexpr uint64_t kDearNs = 1'500'000;
  // After a dear yield waits sleep twice as long as it took, and after the next ones 16 and 128 times as long:
  // what such yields cost stays a small part of the time.
  static constexpr uint32_t kMinShift = 1;
  static constexpr uint32_t kMaxShift = 7;
  static constexpr uint32_t kShiftStep = 3;
  static constexpr uint64_t kMaxDearNs = 32'000'000;  // one that took longer counts as this
  static constexpr uint32_t kCalm = 64;               // cheap yields in a row that end the growth
  static constexpr uint32_t kShared = 3;  // waits in a row that looked in vain: looking ends
  static constexpr uint32_t kAlone = 8;   // yields in a row that change no process: it begins again
  static constexpr uint32_t kPaid = 2;    // trials in a row that bring the word: it begins again
  static constexpr uint64_t kTrialNs = 16'000'000;  // from one trial to the next
  static constexpr uint32_t kPlaceWaits = 16;  // one wait in so many looks where the rank may run

  struct Start {
    bool sleeps = false;  // it sleeps at once; else it gives its core away first
    bool tries = false;   // before that it looks once more as long as a wait that spins
  };

  // Before the first wait: `ranks` of this host, and whether they have a core each.
  void begin(uint32_t ranks, bool have_core_each);
  // Whether a wait that may spin does.
  bool spins() const { return spins_.load(std::memory_order_relaxed); }
  // Looking brought the word.
  void note_paid() {
    if (in_a_row_.load(std::memory_order_relaxed) != 0 && spins()) {
      in_a_row_.store(0, std::memory_order_relaxed);
    }
  }
  // A wait that has not found its words by looking. `adapts`: it looks only while spins().
  Start start(uint64_t now, bool adapts);
  // Whether start() is due to be told where the rank may run.
  bool asks_place();
  // The mask of this process's cores: a number that differs for different masks, and how many they are.
  void note_place(uint64_t mask, uint32_t cores);
  // A trial's end.
  void note_trial(bool came);
  // The core was given away and came back. `is_first`: for the first time in this wait. True: that was dear,
  // so that this wait sleeps too.
  bool note_yield(uint64_t away_ns, uint64_t back_ns, bool is_first);

 private:
  void note_vain();
  void turn(bool spins);

  // All relaxed: hints. Threads of one rank may overwrite each other's.
  std::atomic<bool> spins_{true};
  std::atomic<uint32_t> in_a_row_{0};  // what speaks against spins_
  std::atomic<uint32_t> trials_paid_{0};
  std::atomic<uint64_t> trial_at_ns_{0};
  std::atomic<uint64_t> sleep_until_ns_{0};
  std::atomic<uint32_t> shift_{kMinShift};
  std::atomic<uint32_t> cheap_{0};  // cheap yields in a row
  std::atomic<uint32_t> waits_{0};
  std::atomic<uint64_t> mask_{0};  // 0: not known yet
  uint32_t ranks_ = 1;             // written before the first wait
};

}  // namespace mep

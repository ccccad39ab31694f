// A channel orders its operations and decides, once for all, which of them are complete.
//
// One atomic word: frozen bit, low bits of the comm's epoch, and `done`, the highest completed seq. The
// user's thread completes seq n by compare-and-swap from (epoch, n - 1) to (epoch, n). The control
// thread sets the frozen bit and reads `done` in the same instant, so nothing completes after a freeze
// and nothing complete is missed by it.
#pragma once

#include <atomic>
#include <cstdint>

namespace mep {

class Channel {
 public:
  struct Frozen {
    uint64_t done;
    uint64_t entered;
  };

  Channel(uint64_t id, uint64_t epoch) : id_(id), word_(make_word(epoch, 0)) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  uint64_t id() const { return id_; }

  // --- The user's thread ---

  // Neither frozen nor in another epoch. A thread that sees a change goes on to read what changed under a
  // mutex. Acquire: what this thread signals to peers after a resume(), its acknowledgements above all,
  // comes after what the control thread has read of the eager slots.
  bool undisturbed(uint64_t epoch) const {
    return (word_.load(std::memory_order_acquire) >> kDoneBits) == (epoch & kEpochMask);
  }
  // The same, frozen or not: no change of this comm was installed since.
  bool in_epoch(uint64_t epoch) const {
    return ((word_.load(std::memory_order_acquire) >> kDoneBits) & kEpochMask) ==
           (epoch & kEpochMask);
  }
  // Something was completed since the epoch began.
  bool has_moved() const { return done() != start_.load(std::memory_order_relaxed); }
  // Before anything of seq is posted.
  void enter(uint64_t seq) {
    // Publishes to the control thread which calls exist; it reads it after setting the frozen bit.
    entered_.store(seq, std::memory_order_release);
  }
  // False: the channel is frozen, the view decides.
  bool complete(uint64_t epoch, uint64_t seq) {
    uint64_t expected = make_word(epoch, seq - 1);
    // Acquire-release: orders the operation's reads and writes of windows before its completion, and
    // publishes them to the control thread's freeze().
    return word_.compare_exchange_strong(expected, make_word(epoch, seq), std::memory_order_acq_rel,
                                         std::memory_order_relaxed);
  }
  uint64_t done() const { return word_.load(std::memory_order_acquire) & kDoneMask; }

  // --- The control thread ---

  Frozen freeze() {
    // Acquire: sees all that the user's thread did before its last completion.
    // Sequentially consistent: see PostingScope.
    const uint64_t before = word_.fetch_or(kFrozen, std::memory_order_seq_cst);
    const uint64_t done = before & kDoneMask;
    const uint64_t entered = entered_.load(std::memory_order_acquire);
    return {done, entered > done ? entered : done};
  }
  bool frozen() const { return (word_.load(std::memory_order_acquire) & kFrozen) != 0; }
  // Nothing has changed: on with the same word.
  void resume() { word_.fetch_and(~kFrozen, std::memory_order_acq_rel); }
  // Release: publishes the new view, stored before, to the user's thread.
  void restart(uint64_t epoch, uint64_t done) {
    entered_.store(done, std::memory_order_relaxed);
    start_.store(done, std::memory_order_relaxed);
    word_.store(make_word(epoch, done), std::memory_order_release);
  }

 private:
  static constexpr unsigned kDoneBits = 48;
  static constexpr uint64_t kDoneMask = (uint64_t{1} << kDoneBits) - 1;
  static constexpr uint64_t kEpochMask = 0x7fff;
  static constexpr uint64_t kFrozen = uint64_t{1} << 63;

  static constexpr uint64_t make_word(uint64_t epoch, uint64_t done) {
    return ((epoch & kEpochMask) << kDoneBits) | (done & kDoneMask);
  }

  const uint64_t id_;
  std::atomic<uint64_t> word_;
  std::atomic<uint64_t> entered_{0};
  // `done` at the restart; published with the word.
  std::atomic<uint64_t> start_{0};
};

}  // namespace mep

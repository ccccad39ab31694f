// Admits one user at a time to a comm: one thread of the user's in a call, or the progress thread in a look, never both.
//
// Two calls at one time are an error of the program, and the second is refused. A look is nothing that the
// program knows of: a call waits for its end, and looks that come meanwhile are turned away. A look ends soon, so
// the wait is short; and it is fair, for a call that waits goes before the next look.
//
// All is one word. Every way in acquires and every way out releases, so who is inside finds what the one before
// it has left, whichever thread that was: eager ring, queue, record, buffers.
#pragma once

#include <atomic>
#include <cstdint>

namespace mep {

class CallGate {
 public:
  // --- The user's thread ---

  // False: another thread of the user's is inside, or about to be.
  bool enter() {
    uint32_t seen = 0;
    if (word_.compare_exchange_strong(seen, kCall, std::memory_order_acquire,
                                      std::memory_order_relaxed)) [[likely]] {
      return true;
    }
    return enter_after_look(seen);
  }
  // Nothing is pending that the progress thread would have to be told of.
  void leave() { word_.store(0, std::memory_order_release); }
  // Operations are pending. False: still inside, and looks were turned away meanwhile; they are to be asked for
  // again before the next try.
  bool leave_to_looks();
  // Within a call: its thread uses no window for a while, and again.
  void begin_waiting() { word_.fetch_xor(kCall | kWaitingCall, std::memory_order_release); }
  void end_waiting() { word_.fetch_xor(kCall | kWaitingCall, std::memory_order_acquire); }

  // --- The progress thread ---

  // False: a call is inside, or about to be. It sees at its end that a look was turned away.
  bool enter_look();
  // The same for another thread of the user's that waits: who was inside need not know. Acquire: as every way in.
  bool try_look() {
    uint32_t seen = 0;
    return word_.compare_exchange_strong(seen, kLook, std::memory_order_acquire,
                                         std::memory_order_relaxed);
  }
  void leave_look() { word_.fetch_and(~kLook, std::memory_order_release); }

  // --- The control thread ---

  // Whether nobody inside may use windows. A write, so that it has its place among those of who enters: who
  // does is either before it and seen here, or after it and sees the new view, which was stored before. Acquire:
  // what the last one did is over. Release: publishes the new view to the next.
  bool uses_no_windows() {
    return (word_.fetch_add(0, std::memory_order_acq_rel) & (kCall | kLook)) == 0;
  }

 private:
  static constexpr uint32_t kCall = 1;         // one is inside
  static constexpr uint32_t kWaitingCall = 2;  // instead of kCall: one that uses no window now
  static constexpr uint32_t kLook = 4;         // the progress thread is inside
  static constexpr uint32_t kAwaited = 8;      // a call waits for the end of the look, and is next
  static constexpr uint32_t kTurnedAway = 16;  // a look came while a call was inside or awaited

  bool enter_after_look(uint32_t seen);
  void await_end_of_look() const;

  std::atomic<uint32_t> word_{0};
};

}  // namespace mep

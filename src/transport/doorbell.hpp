// How a rank that sleeps is woken by a peer on the same host.
//
// The doorbell is the first cache line of a rank's world window. Handshake (Dekker's pattern):
//
//   sleeper                                     signaller
//   S1 ticket = rings                           W1 write the signal word
//   S2 sleepers += 1                            W2 [order W1 before W3]
//   S3 [order S2 before S4]                     W3 if sleepers != 0: rings += 1, futex wake
//   S4 look at the signal words once more
//   S5 futex wait while rings == ticket
//
// Either W3 sees S2, or S4 sees W1. The two orders need a full fence on both sides. A fence in
// every signal would cost more than the signal, so where the kernel has it the sleeper pays for
// both: membarrier(GLOBAL_EXPEDITED) runs a fence on every CPU that runs a registered process, and
// W2 is only a compiler barrier. It takes two: a sleeper whose process may call it and a signaller
// whose process has registered. Each of them that cannot sets needs_fence (the owner in
// doorbell_open, the signaller in doorbell_join), and from then on signallers store with sequential
// consistency.
//
// A rank that waits for a network too sleeps in epoll and not on the futex, with an eventfd of its own
// among what it waits for. It says so once and for all in has_event, before S2, and gives a duplicate of
// that eventfd to every peer that maps the doorbell; W3 then also writes to it. The sleeper empties the
// eventfd when none of its threads is about to sleep (see TransportWait), so no ring is taken away from
// a thread that has announced itself.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/unique_fd.hpp"

namespace mep {

struct alignas(64) Doorbell {
  // Grows with every ring: the futex word. Publishes "something was signalled" to sleepers.
  std::atomic<uint32_t> rings;
  // Low 16 bits: how many threads of the owner sleep or are about to; tells signallers whether to
  // ring. High 16 bits: how often the pages were renewed, so that a sleeper which was counted on
  // earlier pages is not taken off the count of these.
  std::atomic<uint32_t> sleepers;
  // Never goes back to 0: signallers must fence (see above).
  std::atomic<uint32_t> needs_fence;
  // Never goes back to 0: who rings also writes to the owner's eventfd, see above.
  std::atomic<uint32_t> has_event;
};
static_assert(sizeof(Doorbell) == 64);
constexpr uint32_t kSleeperCountMask = 0xffff;

// The steps above, for tests that put delays before them in place of NoDelays. W2 has no code of its own.
enum class DoorbellStep { kS1, kS2, kS3, kS4, kS5, kW1, kW3 };
struct NoDelays {
  static void before(DoorbellStep /*step*/) {}
};

// Prepares the doorbell in this rank's own world window: registers for membarrier.
void doorbell_open(Doorbell* doorbell);

// Before this process signals through a peer's doorbell for the first time, and again after the
// peer renewed the window that it lies in.
void doorbell_join(Doorbell* doorbell);

// The owner's eventfd goes with `doorbell`, as this process has it mapped; replaces an earlier one.
// Anything but an eventfd is refused: a peer may have sent it.
void doorbell_bind_event(Doorbell* doorbell, UniqueFd event);
void doorbell_unbind_event(Doorbell* doorbell);
// The owner sleeps in epoll from now on, and its signallers fence: a network's sleepers sleep too often
// to pay for both sides.
void doorbell_sleeps_by_event(Doorbell* doorbell);

// Rings although nobody may sleep: for this process's own threads (abort, view change) and as W3.
void doorbell_ring(Doorbell* doorbell);
// W2 and W3 behind words that were written otherwise than by doorbell_signal().
void doorbell_ring_sleepers(Doorbell* doorbell);

// Window::renew() of the world window. First `fresh`, which nobody else has seen yet, takes over
// everything but the sleepers; then, when it has taken the old one's place, everybody who sleeps or
// is about to on either is sent round again.
void doorbell_prepare_renewed(const Doorbell* current, Doorbell* fresh);
void doorbell_renewed(Doorbell* doorbell, Doorbell* old_pages);

// The parts of the sleeper's side that need the kernel: S3 and S5.
void doorbell_order_sleep(Doorbell* doorbell, bool signallers_fence);
void doorbell_wait(Doorbell* doorbell, uint32_t ticket, uint64_t timeout_ns);

// W1 to W3: publishes `word` (release: all earlier writes of this thread are visible to who reads
// it with acquire) and wakes the owner if it sleeps.
template <typename Delays = NoDelays>
inline void doorbell_signal(Doorbell* doorbell, std::atomic<uint64_t>* target, uint64_t word) {
  Delays::before(DoorbellStep::kW1);
  // needs_fence and sleepers are read by every signaller and seldom written: the line stays shared.
  // Relaxed: the flag is set before this process learns of the doorbell, or by this process itself.
  if (doorbell->needs_fence.load(std::memory_order_relaxed) != 0) {
    target->store(word, std::memory_order_seq_cst);
  } else {
    target->store(word, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  Delays::before(DoorbellStep::kW3);
  // Sequentially consistent: after the store above, before or after S2 for everybody alike.
  const uint32_t sleepers = doorbell->sleepers.load(std::memory_order_seq_cst);
  if ((sleepers & kSleeperCountMask) != 0) doorbell_ring(doorbell);
}

// One sleep (S1 to S5), in three calls so that the caller looks at its words between them.
template <typename Delays>
class BasicDoorbellSleep {
 public:
  // S1 to S3. `signallers_fence`: doorbell_sleeps_by_event() was called, so a fence here is enough.
  explicit BasicDoorbellSleep(Doorbell* doorbell, bool signallers_fence = false)
      : doorbell_(doorbell) {
    Delays::before(DoorbellStep::kS1);
    // Acquire: the ring that follows this ticket is not taken for an earlier one.
    ticket_ = doorbell->rings.load(std::memory_order_acquire);
    Delays::before(DoorbellStep::kS2);
    // Sequentially consistent: tells signallers that somebody is about to sleep.
    counted_ = doorbell->sleepers.fetch_add(1, std::memory_order_seq_cst);
    Delays::before(DoorbellStep::kS3);
    doorbell_order_sleep(doorbell, signallers_fence);
    Delays::before(DoorbellStep::kS4);
  }

  ~BasicDoorbellSleep() {
    // Relaxed: a signaller that still sees the old count only rings once in vain.
    uint32_t seen = doorbell_->sleepers.load(std::memory_order_relaxed);
    while (((seen ^ counted_) & ~kSleeperCountMask) == 0 &&
           !doorbell_->sleepers.compare_exchange_weak(seen, seen - 1, std::memory_order_relaxed)) {
    }
  }

  BasicDoorbellSleep(const BasicDoorbellSleep&) = delete;
  BasicDoorbellSleep& operator=(const BasicDoorbellSleep&) = delete;

  // S5: returns when rung, after `timeout_ns`, or early for no reason.
  void wait(uint64_t timeout_ns) {
    Delays::before(DoorbellStep::kS5);
    doorbell_wait(doorbell_, ticket_, timeout_ns);
  }

 private:
  Doorbell* doorbell_;
  uint32_t ticket_;
  uint32_t counted_;
};

using DoorbellSleep = BasicDoorbellSleep<NoDelays>;

}  // namespace mep

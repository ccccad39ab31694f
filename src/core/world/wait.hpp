// How a call waits: it looks, spins, then yields, then sleeps on the rank's doorbell.
//
// How long each lasts depends on whether the awaited rank has a core of its own. Where the ranks of this host
// outnumber the cores that they may use together, or where waits find that ranks share one all the same,
// spinning only keeps the awaited rank off its core, so the wait yields at once.
// Every wait ends: `poll` answers true for success and for a frozen channel alike, and the deadline is
// looked at with every eighth yield.
//
// On a rank that reaches peers over a network nobody but its own threads takes what comes from there: a
// waiting thread makes progress between its looks, and sleeps in epoll, on all that can bring something,
// instead of on the futex. It yields for longer before it does: to be woken up by a socket costs more than a
// message. While other programs have the cores it sleeps at once.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "base/clock.hpp"
#include "core/world/doorbell_delays.hpp"

namespace mep {

// The waits of one rank find out here about its core: whether the awaited rank shares it, so that they
// yield at once, and whether another program has it, so that they sleep. Ranks that wait as well give a core
// back at once, but a program that computes keeps it for its time slice; a sleeper is woken up in the middle
// of that. Clocks cost as much as a small operation: only some waits are timed, and what was found holds for
// a number of waits.
class YieldGauge {
 public:
  // More than a yield takes where nobody else wants the core, less than a change of process and back.
  static constexpr uint64_t kSwitchNs = 1'500;
  // Less than a time slice, more than ranks do in one go.
  static constexpr uint64_t kDearNs = 1'500'000;
  static constexpr uint32_t kSleeps = 4096;
  static constexpr uint32_t kTimed = 4;  // one wait in so many
  static constexpr uint32_t kShared =
      3;  // first yields in a row that bring the word: spinning ends
  static constexpr uint32_t kAlone =
      8;  // timed ones in a row that change no process: spinning begins again

  // Whether a wait that may spin does.
  bool spins() const { return spins_.load(std::memory_order_relaxed); }
  // The first yield of a wait that may spin: how long it took, and whether the awaited word was there then.
  void note_first_yield(uint64_t took_ns, bool came) {
    const bool is_shared = came && took_ns >= kSwitchNs && took_ns <= kDearNs;
    const bool is_alone = took_ns < kSwitchNs || took_ns > kDearNs;
    const bool spins_now = spins();
    const bool contradicts = spins_now ? is_shared : is_alone;
    const uint32_t in_a_row = contradicts ? in_a_row_.load(std::memory_order_relaxed) + 1 : 0;
    const bool turns = in_a_row == (spins_now ? kShared : kAlone);
    if (turns) spins_.store(!spins_now, std::memory_order_relaxed);
    in_a_row_.store(turns ? 0 : in_a_row, std::memory_order_relaxed);
  }

  // Asked once in a wait: whether it sleeps at once.
  bool sleeps() {
    const uint32_t left = sleeps_left_.load(std::memory_order_relaxed);
    if (left != 0) sleeps_left_.store(left - 1, std::memory_order_relaxed);
    return left != 0;
  }
  // ... and whether it is one of those that time what giving the core away costs.
  bool times() {
    const uint32_t waits = waits_.load(std::memory_order_relaxed) + 1;
    waits_.store(waits, std::memory_order_relaxed);
    return waits % kTimed == 0;
  }
  // The core was given away and came back. Whether that was dear, so that this wait sleeps too.
  bool note(uint64_t away_ns, uint64_t back_ns) {
    if (back_ns - away_ns <= kDearNs) return false;
    sleeps_left_.store(kSleeps, std::memory_order_relaxed);
    return true;
  }

 private:
  // Relaxed: hints. Threads of one rank may overwrite each other's.
  std::atomic<bool> spins_{true};
  std::atomic<uint32_t> in_a_row_{0};  // first yields that speak against spins_
  std::atomic<uint32_t> sleeps_left_{0};
  std::atomic<uint32_t> waits_{0};
};

// A wait's work besides looking, while there are peers over a network.
class NetworkWait {
 public:
  virtual ~NetworkWait() = default;
  // Relaxed: becomes true, once, before such a peer takes part in anything.
  bool active() const { return active_.load(std::memory_order_relaxed); }
  // Around a whole wait: meanwhile the control thread leaves the progress to it.
  virtual void enter() = 0;
  virtual void leave() = 0;
  // Whether something happened.
  virtual bool progress() = 0;
  // Around a sleep and the last look before it.
  virtual void announce() = 0;
  virtual void sleep(uint64_t timeout_ns) = 0;
  virtual void withdraw() = 0;

 protected:
  std::atomic<bool> active_{false};
};

struct WaitPolicy {
  uint32_t spins = 2000;        // looks with a pause between them
  uint64_t yield_ns = 200'000;  // then sched_yield() for this long
  uint64_t max_sleep_ns =
      50'000'000;                  // longest single sleep, a bound on what a lost wake could cost
  NetworkWait* network = nullptr;  // null: no transport here is a network
  uint64_t network_spin_ns = 200'000;  // a wait that makes progress looks for this long
  YieldGauge* gauge = nullptr;         // null: waits find out nothing
  bool adapts = false;  // spins only while the gauge says so, and yields at once when it does not
  // A wait that makes progress and yields gives its core away for this long before it sleeps.
  uint64_t network_yield_ns = 0;

  bool yields_at_once() const { return gauge != nullptr && (!adapts || !gauge->spins()); }
};

// One sched_yield(), in nanoseconds.
uint64_t time_a_yield();

inline void cpu_pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// The rest of a round of waiting after the spins; kept out of line, it is off the fast path.
class SlowWait {
 public:
  SlowWait(const WaitPolicy& policy, Doorbell* doorbell, const Deadline& deadline)
      : policy_(policy), doorbell_(doorbell), deadline_(deadline) {
    notes_first_ = policy.adapts;
    if (!policy.yields_at_once()) return;
    sleep_due_ = policy.gauge->sleeps();
    is_timed_ = policy.gauge->times();
    notes_first_ = policy.adapts && is_timed_;
  }
  enum class Round : uint8_t { kAgain, kTrue, kOver };
  // One yield, or (later) one sleep. kTrue: poll() was, when it was asked once more after the first yield or
  // after the sleep had been announced; kOver: the deadline has come.
  template <typename Poll>
  Round round(Poll&& poll) {
    if (notes_first_) {
      notes_first_ = false;
      const uint64_t took_ns = time_a_yield();
      const bool came = poll();
      policy_.gauge->note_first_yield(took_ns, came);
      if (came) return Round::kTrue;
    }
    if (!yield_once()) return Round::kOver;
    if (!sleep_due_) return Round::kAgain;
    WaitSleep sleep(doorbell_);
    if (poll()) return Round::kTrue;
    sleep.wait(sleep_ns());
    return Round::kAgain;
  }

 private:
  bool yield_once();
  uint64_t sleep_ns() const;

  const WaitPolicy& policy_;
  Doorbell* doorbell_;
  const Deadline& deadline_;
  static constexpr uint32_t kYieldsPerClock = 8;
  uint32_t yields_ = 0;
  uint64_t yield_until_ns_ = 0;
  bool sleep_due_ = false;
  bool is_timed_ = false;
  bool notes_first_ = false;
};

// A sleep that a network ends too.
class NetworkSleep {
 public:
  NetworkSleep(NetworkWait& network, Doorbell* doorbell)
      : announced_(network), doorbell_sleep_(doorbell, true), network_(network) {}
  void wait(uint64_t timeout_ns) { network_.sleep(timeout_ns); }

 private:
  struct Announced {
    explicit Announced(NetworkWait& wait) : network(wait) { network.announce(); }
    ~Announced() { network.withdraw(); }
    Announced(const Announced&) = delete;
    Announced& operator=(const Announced&) = delete;
    NetworkWait& network;
  };
  Announced announced_;
  WaitSleep doorbell_sleep_;  // S1 to S3; it is counted as a sleeper
  NetworkWait& network_;
};

template <typename Poll>
bool wait_with_network(const WaitPolicy& policy, Doorbell* doorbell, const Deadline& deadline,
                       Poll&& poll) {
  struct Waiting {
    explicit Waiting(NetworkWait& wait) : network(wait) { network.enter(); }
    ~Waiting() { network.leave(); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    NetworkWait& network;
  };
  const Waiting waiting(*policy.network);
  bool yields = policy.yields_at_once() && !policy.gauge->sleeps();
  const uint64_t look_ns = policy.adapts && yields ? 0 : policy.network_spin_ns;
  bool notes_first = policy.adapts;
  uint64_t look_until_ns = 0;
  for (;;) {
    if (poll()) return true;
    if (policy.network->progress()) continue;
    const uint64_t now = now_ns();
    if (now >= deadline.at_ns()) return poll();
    if (look_until_ns == 0) look_until_ns = now + look_ns;
    if (now < look_until_ns) continue;
    if (notes_first) {
      notes_first = false;
      const uint64_t took_ns = time_a_yield();
      (void)policy.network->progress();
      const bool came = poll();
      policy.gauge->note_first_yield(took_ns, came);
      if (came) return true;
      continue;
    }
    if (yields && now < look_until_ns + policy.network_yield_ns) {
      sched_yield();
      yields = !policy.gauge->note(now, now_ns());
      continue;
    }
    NetworkSleep sleep(*policy.network, doorbell);
    if (poll()) return true;
    const uint64_t left_ns = deadline.at_ns() - now;
    sleep.wait(left_ns < policy.max_sleep_ns ? left_ns : policy.max_sleep_ns);
  }
}

// Waits until poll() is true, and does not ask again once it was; false: the deadline came first.
template <typename Poll>
bool wait_until(const WaitPolicy& policy, Doorbell* doorbell, const Deadline& deadline,
                Poll&& poll) {
  if (policy.network != nullptr && policy.network->active()) [[unlikely]] {
    return wait_with_network(policy, doorbell, deadline, poll);
  }
  const uint32_t spins = policy.adapts && !policy.gauge->spins() ? 0 : policy.spins;
  for (uint32_t i = 0; i < spins; ++i) {
    if (poll()) return true;
    cpu_pause();
  }
  SlowWait slow(policy, doorbell, deadline);
  while (!poll()) {
    switch (slow.round(poll)) {
      case SlowWait::Round::kTrue:
        return true;
      case SlowWait::Round::kOver:
        return poll();
      case SlowWait::Round::kAgain:
        break;
    }
  }
  return true;
}

}  // namespace mep

// How a call waits: it looks, spins, then yields, then sleeps on the rank's doorbell.
//
// How long each lasts depends on whether the ranks of this host outnumber the cores that they may use
// together: then spinning only keeps the awaited rank off its core, so the wait yields at once.
// Every wait ends: `poll` answers true for success and for a wedged channel alike, and the deadline is
// looked at with every eighth yield.
//
// On a rank that reaches peers over a network nobody but its own threads takes what comes from there: a
// waiting thread makes progress between its looks, and sleeps in epoll, on all that can bring something,
// instead of on the futex. It yields for longer before it does: to be woken up by a socket costs more than a
// message. While other programs have the cores it sleeps at once.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.hpp"
#include "core/world/doorbell_delays.hpp"

namespace mep {

// Whether giving the core away costs little. Ranks that wait as well give it back at once, but a program
// that computes keeps it for its time slice; then it is better to sleep, and be woken up.
class YieldGauge {
 public:
  // Less than a time slice, more than ranks do in one go.
  static constexpr uint64_t kDearNs = 1'500'000;
  static constexpr uint64_t kForgetNs = 200'000'000;

  // Gives the core away. False: it did not, since that took long just now.
  bool yield(uint64_t now_ns);
  // The core was given away and came back.
  void note(uint64_t away_ns, uint64_t back_ns) {
    if (back_ns - away_ns > kDearNs) {
      dear_until_ns_.store(back_ns + kForgetNs, std::memory_order_relaxed);
    }
  }
  bool is_dear(uint64_t now_ns) const {
    return now_ns < dear_until_ns_.load(std::memory_order_relaxed);
  }

 private:
  // Relaxed: a hint, which threads of one rank may overwrite for each other.
  std::atomic<uint64_t> dear_until_ns_{0};
};

// What a wait does besides looking while there are peers over a network.
class NetworkWait {
 public:
  virtual ~NetworkWait() = default;
  YieldGauge& gauge() { return gauge_; }
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

 private:
  YieldGauge gauge_;
};

struct WaitPolicy {
  uint32_t spins = 2000;        // looks with a pause between them
  uint64_t yield_ns = 200'000;  // then sched_yield() for this long
  uint64_t max_sleep_ns =
      50'000'000;                  // longest single sleep, a bound on what a lost wake could cost
  NetworkWait* network = nullptr;  // null: no transport here is a network
  uint64_t network_spin_ns = 200'000;     // a wait that makes progress looks for this long
  uint64_t network_yield_ns = 5'000'000;  // then it gives its core away between looks for this long
};

inline void cpu_pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// What a round of waiting does after the spins; kept out of line, it is off the fast path.
class SlowWait {
 public:
  SlowWait(const WaitPolicy& policy, Doorbell* doorbell, const Deadline& deadline)
      : policy_(policy), doorbell_(doorbell), deadline_(deadline) {}
  enum class Round : uint8_t { kAgain, kTrue, kOver };
  // One yield, or (later) one sleep. kTrue: poll() was, when it was asked once more after the sleep
  // had been announced; kOver: the deadline has come.
  template <typename Poll>
  Round round(Poll&& poll) {
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
  uint64_t look_until_ns = 0;
  for (;;) {
    if (poll()) return true;
    if (policy.network->progress()) continue;
    const uint64_t now = now_ns();
    if (now >= deadline.at_ns()) return poll();
    if (look_until_ns == 0) look_until_ns = now + policy.network_spin_ns;
    if (now < look_until_ns) continue;
    if (now < look_until_ns + policy.network_yield_ns && policy.network->gauge().yield(now)) {
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
  for (uint32_t i = 0; i < policy.spins; ++i) {
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

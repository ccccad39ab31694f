// How a call waits: it looks, spins, then yields, then sleeps on the rank's doorbell.
//
// How long each lasts depends on whether the awaited rank has a core of its own. Where the ranks of this host
// outnumber the cores that they may use together, or where waits find that ranks share one all the same,
// spinning only keeps the awaited rank off its core, so the wait yields at once.
// Every wait ends: `poll` answers true for success and for a frozen channel alike, and the deadline is
// looked at with every yield.
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
#include "core/world/yield_gauge.hpp"

namespace mep {

// All that a view change may take beyond the time of what waits for it; one that takes longer is a bug.
constexpr uint64_t kDecisionGraceMs = 60'000;

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
  bool adapts = false;                 // spins only while the gauge says so
  // A wait that makes progress and yields gives its core away for this long before it sleeps.
  uint64_t network_yield_ns = 0;

  bool spins_first() const { return !adapts || gauge->spins(); }
  bool yields_at_once() const { return gauge != nullptr && !gauge->spins(); }
};

inline void cpu_pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// A wait of `policy`, which has a gauge, has not found its words by looking.
YieldGauge::Start start_slow_wait(const WaitPolicy& policy, uint64_t now);

// The rest of a round of waiting after the spins; kept out of line, it is off the fast path.
class SlowWait {
 public:
  SlowWait(const WaitPolicy& policy, Doorbell* doorbell, const Deadline& deadline);
  enum class Round : uint8_t { kAgain, kTrue, kOver };
  // One yield, or (later) one sleep. kTrue: poll() was, when it was asked once more; kOver: the deadline has
  // come.
  template <typename Poll>
  Round round(Poll&& poll) {
    if (start_.tries) {
      start_.tries = false;
      bool came = false;
      for (uint32_t i = 0; i < policy_.spins && !came; ++i) {
        cpu_pause();
        came = poll();
      }
      policy_.gauge->note_trial(came);
      if (came) return Round::kTrue;
      // Woken up, it is placed on an idle core, if there is one; a yield stays on this one.
      start_.sleeps = true;
    }
    if (!yield_once()) return Round::kOver;
    if (!start_.sleeps) return Round::kAgain;
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
  YieldGauge::Start start_;
  uint64_t now_ns_;  // when it last looked at the clock: where the next yield begins
  uint64_t yield_until_ns_;
  bool is_first_ = true;
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
  const bool yields_long = policy.yields_at_once();
  const uint64_t look_ns = policy.spins_first() ? policy.network_spin_ns : 0;
  enum class Stage : uint8_t { kLook, kTry, kFirst, kGive } stage = Stage::kLook;
  bool yields = false;
  uint64_t look_until_ns = 0;
  for (;;) {
    if (poll()) {
      const bool looked = stage == Stage::kLook && look_until_ns != 0;
      if (looked && policy.adapts) policy.gauge->note_paid();
      if (stage == Stage::kTry) policy.gauge->note_trial(true);
      return true;
    }
    if (policy.network->progress()) {
      // The rest of a large transfer is on its way.
      if (look_ns != 0 && look_until_ns != 0 && stage != Stage::kTry) {
        look_until_ns = now_ns() + look_ns;
      }
      continue;
    }
    const uint64_t now = now_ns();
    if (now >= deadline.at_ns()) return poll();
    if (look_until_ns == 0) look_until_ns = now + look_ns;
    if (now < look_until_ns) continue;
    if (stage == Stage::kLook) {
      const YieldGauge::Start start = policy.gauge != nullptr ? start_slow_wait(policy, now)
                                                              : YieldGauge::Start{.sleeps = true};
      yields = !start.sleeps && (yields_long || policy.adapts);
      stage = start.tries ? Stage::kTry : Stage::kFirst;
      if (start.tries) {
        look_until_ns = now + policy.network_spin_ns;
        continue;
      }
    }
    if (stage == Stage::kTry) {
      policy.gauge->note_trial(false);
      stage = Stage::kFirst;
      yields = false;  // as in SlowWait::round()
    }
    const bool is_first = stage == Stage::kFirst;
    stage = Stage::kGive;
    if (yields && (is_first || now < look_until_ns + policy.network_yield_ns)) {
      sched_yield();
      yields = !policy.gauge->note_yield(now, now_ns(), is_first && policy.adapts) && yields_long;
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
  if (poll()) return true;
  const uint32_t spins = policy.spins_first() ? policy.spins : 0;
  for (uint32_t i = 0; i < spins; ++i) {
    cpu_pause();
    if (poll()) {
      if (policy.adapts) policy.gauge->note_paid();
      return true;
    }
  }
  SlowWait slow(policy, doorbell, deadline);
  for (;;) {
    switch (slow.round(poll)) {
      case SlowWait::Round::kTrue:
        return true;
      case SlowWait::Round::kOver:
        return poll();
      case SlowWait::Round::kAgain:
        if (poll()) return true;
        break;
    }
  }
}

}  // namespace mep

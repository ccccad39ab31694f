// How the threads of one rank make progress on its network transports, and sleep until one of them, or a
// peer on this host, has something.
//
// Invariants
//   - Transports are only ever added; whoever sees a new count sees the transport.
//   - The eventfd is emptied only while no thread has announced a sleep: a ring that one of them must
//     not miss stays in it until that thread has left.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>

#include "base/unique_fd.hpp"
#include "core/world/wait.hpp"
#include "mep.h"
#include "transport/transport.hpp"

namespace mep {

class TransportWait final : public NetworkWait {
 public:
  // `any_network`: whether some transport of this rank may need progress.
  [[nodiscard]] mep_result_t open(bool any_network);
  bool is_open() const { return epoll_.valid(); }
  // The eventfd that peers on this host write to when they ring.
  int event() const { return event_.get(); }
  // A peer is reached by `transport` from now on. Start-up, then the control thread.
  [[nodiscard]] mep_result_t add(Transport* transport, Doorbell* doorbell);
  uint32_t count() const { return count_.load(std::memory_order_acquire); }
  Transport* transport(uint32_t index) const { return transports_[index]; }
  // Whether a thread waits, and so makes progress. Relaxed: a hint.
  bool waited_for() const { return waiting_.load(std::memory_order_relaxed) != 0; }

  void enter() override { waiting_.fetch_add(1, std::memory_order_relaxed); }
  void leave() override {
    if (waiting_.fetch_sub(1) == 1) hand_over();
  }
  // The control thread sends what is left: no thread makes progress.
  void hand_over();
  bool progress() override;
  void announce() override;
  void sleep(uint64_t timeout_ns) override;
  void withdraw() override;

 private:
  static constexpr uint32_t kMaxTransports = 8;

  UniqueFd epoll_;
  UniqueFd event_;
  std::array<Transport*, kMaxTransports> transports_{};
  std::atomic<uint32_t> count_{0};
  std::atomic<uint32_t> waiting_{0};  // threads; see Transport::count_waits()
  std::atomic<int> sleep_on_{-1};     // the epoll to sleep on

  std::mutex mutex_;
  uint32_t announced_ = 0;         // threads that sleep or are about to
  std::atomic<bool> rung_{false};  // the eventfd was seen readable; relaxed: read under the mutex
};

}  // namespace mep

// A thread that writes to peers what a later epoch could mistake for its own is inside a PostingScope: a view change
// waits until nobody is, so no byte of an old epoch lands in memory that the next one uses.
//
// A thread inside copies at most one chunk, or one row, and then sees the freeze. Where a queue is full it leaves the
// scope while the change is under way (Poster::turn()): so a peer that takes nothing holds no change up.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/operation/channel.hpp"
#include "core/world/remote.hpp"

namespace mep {

class PostingGate {
 public:
  // The control thread, after it has frozen the channel. Sequentially consistent: see PostingScope.
  bool is_empty() const { return inside_.load(std::memory_order_seq_cst) == 0; }
  // The world has ended and the channel stays frozen: waits until nobody is inside, 10 s at most. `comm`: its name, for
  // the log.
  void close(const char* comm);

 private:
  friend class PostingScope;
  std::atomic<uint32_t> inside_{0};     // threads
  std::atomic<bool> is_closed_{false};  // relaxed: a thread that sees it late asks again
};

class PostingScope final : public Poster {
 public:
  PostingScope(PostingGate& gate, const Channel& channel, uint64_t epoch)
      : gate_(gate), channel_(channel), epoch_(epoch) {
    enter();
  }
  ~PostingScope() {
    if (is_inside_) leave();
  }
  // Asked before every chunk, or row: a freeze waits for one at most.
  bool allowed() const { return channel_.undisturbed(epoch_); }
  Turn turn() const override;

 private:
  // Sequentially consistent, as the freeze: either it sees this thread, or allowed() sees the freeze.
  void enter() const {
    gate_.inside_.fetch_add(1, std::memory_order_seq_cst);
    is_inside_ = true;
  }
  // Release: what was put is there before the control thread goes on.
  void leave() const {
    is_inside_ = false;
    gate_.inside_.fetch_sub(1, std::memory_order_release);
  }

  PostingGate& gate_;
  const Channel& channel_;
  const uint64_t epoch_;
  mutable bool is_inside_ = false;  // scopes are const where they stand
};

}  // namespace mep

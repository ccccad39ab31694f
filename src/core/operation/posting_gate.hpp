// A thread that writes to peers what a later epoch could mistake for its own is inside a PostingScope: a view change
// waits until nobody is, so no byte of an old epoch lands in memory that the next one uses.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/operation/channel.hpp"

namespace mep {

class PostingGate {
 public:
  // The control thread, after it has frozen the channel. A thread inside copies at most one chunk, or one row, and
  // then sees the freeze, so this ends. `comm`: its name, for the log.
  void await_empty(const char* comm) const;

 private:
  friend class PostingScope;
  std::atomic<uint32_t> inside_{0};  // threads
};

class PostingScope {
 public:
  PostingScope(PostingGate& gate, const Channel& channel, uint64_t epoch)
      : gate_(gate), channel_(channel), epoch_(epoch) {
    // Sequentially consistent, as the freeze: either it sees this thread, or allowed() sees the freeze.
    gate_.inside_.fetch_add(1, std::memory_order_seq_cst);
  }
  // Release: what was put is there before the control thread goes on.
  ~PostingScope() { gate_.inside_.fetch_sub(1, std::memory_order_release); }
  PostingScope(const PostingScope&) = delete;
  PostingScope& operator=(const PostingScope&) = delete;
  // Asked before every chunk, or row: a freeze waits for one at most.
  bool allowed() const { return channel_.undisturbed(epoch_); }

 private:
  PostingGate& gate_;
  const Channel& channel_;
  const uint64_t epoch_;
};

}  // namespace mep

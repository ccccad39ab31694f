#include "core/operation/posting_gate.hpp"

#include <sched.h>

#include "base/clock.hpp"
#include "base/log.hpp"

namespace mep {

void PostingGate::close(const char* comm) {
  is_closed_.store(true, std::memory_order_relaxed);
  const Deadline limit = Deadline::after_ms(10'000);
  while (!is_empty()) {
    if (limit.expired()) {
      log(LogLevel::kError, "comm %s: a thread is stuck in a copy", comm);
      return;
    }
    sched_yield();
  }
}

Poster::Turn PostingScope::turn() const {
  if (is_inside_ && allowed()) return Turn::kPost;
  if (is_inside_) leave();
  if (!channel_.in_epoch(epoch_) || gate_.is_closed_.load(std::memory_order_relaxed)) {
    return Turn::kOver;
  }
  if (!allowed()) return Turn::kWait;
  enter();
  if (allowed()) return Turn::kPost;
  leave();
  return Turn::kWait;
}

}  // namespace mep

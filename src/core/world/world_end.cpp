#include "core/world/world_end.hpp"

#include <chrono>

#include "base/status.hpp"

namespace mep {

mep_result_t WorldEnd::fail_as_ended() const {
  const mep_result_t ended = result();
  return fail(ended != MEP_SUCCESS ? ended : MEP_ERR_ABORTED, "the world has ended for this rank");
}

void WorldEnd::await_left(const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  while (!left_ && !deadline.expired() && result() == MEP_SUCCESS) {
    changed_.wait_for(lock, std::chrono::milliseconds(deadline.left_ms(100)));
  }
}

void WorldEnd::set(mep_result_t result) {
  // Relaxed: waiters see the wedge, then look here.
  mep_result_t expected = MEP_SUCCESS;
  result_.compare_exchange_strong(expected, result, std::memory_order_relaxed);
}

void WorldEnd::note_left() {
  const std::lock_guard lock(mutex_);
  left_ = true;
  changed_.notify_all();
}

}  // namespace mep

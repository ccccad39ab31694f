#include "core/world/world_end.hpp"

#include <chrono>

#include "base/status.hpp"

namespace mep {

namespace {

const char* text_of(mep_result_t ended) {
  switch (ended) {
    case MEP_ERR_EVICTED:
      return "the other ranks went on without this one: it did not answer in time "
             "(MEP_SUSPECT_MS), could not be "
             "reached, or a rank called mep_comm_evict; to come back, destroy the communicator and "
             "call "
             "mep_comm_join";
    case MEP_ERR_NO_QUORUM:
      return "this rank reaches too few others to go on (quorum): destroy the communicator; where "
             "the others go "
             "on, mep_comm_join comes back";
    case MEP_ERR_ABORTED:
      return "this rank called mep_comm_abort: only mep_comm_destroy is left";
    case MEP_ERR_NO_MEMORY:
      return "this rank ran out of memory or descriptors and gave up: destroy the communicator; "
             "mep_comm_join comes "
             "back";
    case MEP_ERR_SYSTEM:
      return "an adapter of this rank did not stop a queue pair to a lost rank, which might go on "
             "writing here (the log names both), and so this rank gave up: destroy the "
             "communicator; mep_comm_join comes back";
    default:
      return "it has ended for this rank: only mep_comm_destroy is left";
  }
}

}  // namespace

mep_result_t WorldEnd::fail_as_ended() const {
  const mep_result_t ended = result() != MEP_SUCCESS ? result() : MEP_ERR_ABORTED;
  return fail(ended, "the world has ended: %s", text_of(ended));
}

void WorldEnd::await_left(const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  while (!left_ && !deadline.expired() && result() == MEP_SUCCESS) {
    changed_.wait_for(lock, std::chrono::milliseconds(deadline.left_ms(100)));
  }
}

void WorldEnd::set(mep_result_t result) {
  // Relaxed: waiters see the freeze, then look here.
  mep_result_t expected = MEP_SUCCESS;
  result_.compare_exchange_strong(expected, result, std::memory_order_relaxed);
}

void WorldEnd::note_left() {
  const std::lock_guard lock(mutex_);
  left_ = true;
  changed_.notify_all();
}

}  // namespace mep

#include "core/world/remote.hpp"

#include <sched.h>

namespace mep {

// On all that this rank sleeps on: a peer that takes nothing may itself wait for what this rank takes from
// others.
void Remote::make_progress() const {
  if (network == nullptr || !network->progress()) sched_yield();
}

const Poster*& Poster::own() {
  constinit thread_local const Poster* poster = nullptr;
  return poster;
}

mep_result_t Remote::go_on(mep_result_t result, Batch* batch) const {
  const Poster* const poster = Poster::current();
  while (result == kWouldBlock) {
    make_progress();
    const Poster::Turn turn = poster == nullptr ? Poster::Turn::kPost : poster->turn();
    if (turn == Poster::Turn::kOver) return MEP_ERR_PEER_FAILED;
    if (turn == Poster::Turn::kPost) result = transport->post(slot, batch);
  }
  const bool is_lost = result == MEP_ERR_PEER_FAILED && !transport->traits().lands_at_once;
  return is_lost ? MEP_SUCCESS : result;
}

void Remote::flush() const {
  if (mapped != nullptr || transport == nullptr) return;
  Completion completion;
  if (transport->completion(slot, true, &completion) != MEP_SUCCESS) return;
  const Poster* const poster = Poster::current();
  const uint64_t wanted = completion.posted;
  while (completion.completed < wanted) {
    make_progress();
    if (poster != nullptr && poster->turn() == Poster::Turn::kOver) return;
    // Nothing is left to wait for once the peer is lost or the slot is gone.
    if (transport->completion(slot, true, &completion) != MEP_SUCCESS) return;
  }
}

}  // namespace mep

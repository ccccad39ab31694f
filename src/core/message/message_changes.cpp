// The effects of a view change on messages.
#include <algorithm>
#include <utility>

#include "base/status.hpp"
#include "base/test_delay.hpp"
#include "core/message/messages.hpp"

namespace mep {

using State = MessageOperation::State;

// --- The control thread ---------------------------------------------------------------------------

void Messages::install(std::shared_ptr<const CommChange> change) {
  const std::lock_guard lock(changes_.mutex);
  changes_.list.push_back(std::move(change));
}

// --- The user's thread ----------------------------------------------------------------------------

std::shared_ptr<const CommChange> Messages::next_change() const {
  const std::lock_guard lock(changes_.mutex);
  return changes_.list.empty() ? nullptr : changes_.list.front();
}

// All that is installed, also while the next change is under way: a call that follows may know of it, by another
// call of this comm. Done again at the next look where a joiner's window is not there. Whether something has
// changed.
bool Messages::adopt() {
  const KeepErrorText kept;
  bool has_changed = false;
  while (const std::shared_ptr<const CommChange> change = next_change()) {
    if (!adopt(*change)) break;
    has_changed = true;
    const std::lock_guard lock(changes_.mutex);
    changes_.list.pop_front();
  }
  return has_changed;
}

bool Messages::adopt(const CommChange& change) {
  MEP_TEST_DELAY_POINT("messages adopt");
  const CommView& view = *change.view;
  for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
    if (peers_[rank].incarnation != view.incarnations[rank]) lose(rank, view);
  }
  if (windows_.reach_joiners(view, Deadline::after_ms(comm_.timeout_ms())) != MEP_SUCCESS) {
    return false;
  }
  for (const uint32_t rank : view.live) {
    if (peers_[rank].incarnation == view.incarnations[rank]) continue;
    peers_[rank].incarnation = view.incarnations[rank];
    rings_.begin_pair(rank, comm_.world().identity().incarnation, view.incarnations[rank]);
  }
  epoch_ = view.epoch;
  if (change.result == MEP_ERR_REVOKED) {
    ++revocations_;
    end_all(change.result, change.text.c_str());
  }
  return true;
}

// The rank is gone, or another one in its place. Messages that came from it whole are there to be received, until
// another takes its place.
void Messages::lose(uint32_t rank, const CommView& view) {
  while (take_from(rank)) {
  }
  Peer& peer = peers_[rank];
  peer.incarnation = 0;
  peer.absence = has_rank(view.left_bits, rank) ? MEP_ERR_PEER_LEFT : MEP_ERR_PEER_FAILED;
  const bool is_replaced = view.incarnations[rank] != 0;
  arrived_.remove_if([&](const Arrived& each) {
    const bool is_whole = each.header.kind == CellKind::kEager;
    return each.source == static_cast<int32_t>(rank) && (is_replaced || !is_whole);
  });
  for_each_pending([&](MessageOperation* each) { end_lost(each, rank); });
  peer.verdicts.clear();
  peer.dropped.clear();
  peer.is_barred = false;
  peer.owes_leaving = false;
}

void Messages::end_lost(MessageOperation* operation, uint32_t rank) {
  const auto lost = static_cast<int32_t>(rank);
  if (operation->peer == lost) return end_absent(operation);
  const bool is_any = operation->peer == MEP_ANY_SOURCE;
  if (is_any && operation->state == State::kMoving && operation->message.source == lost) {
    return wait_again(operation);
  }
  if (is_any && operation->state == State::kWaiting && !can_move(*operation)) {
    end_absent(operation);
  }
}

}  // namespace mep

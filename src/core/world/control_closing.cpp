// Comms that are closed while their world goes on: what was done on one is asked of its other members
// before this rank forgets it (see Comm::close_after_changes).
#include <algorithm>

#include "base/status.hpp"
#include "core/world/control_thread.hpp"

namespace mep {

void ControlThread::ask_held(WorldParticipant* client, uint64_t channel, uint64_t done,
                             std::shared_ptr<std::atomic<bool>> held) {
  Closing closing;
  closing.token = next_closing_++;
  closing.client = client;
  closing.held = std::move(held);
  const std::vector<std::byte> payload =
      encode_closing({closing.token, client->comm_id(), channel, done});
  const membership::View& view = membership_->view();
  const membership::SlotSet others = view.members & client->member_slots();
  others.each([&](uint32_t slot) {
    if (slot == peers_.self_slot()) return;
    closing.awaited.emplace_back(slot, view.incarnation(slot));
    send(slot, kFrameClosing, payload);
  });
  closings_.push_back(std::move(closing));
}

// Members that have given up a comm say so by a view change, which may come before this rank has begun it. An
// id is used once, so what is kept too long does no harm; what is forgotten costs the time that it may take.
void ControlThread::note_refused(const membership::Proposal& committed) {
  constexpr size_t kMost = 256;
  const auto note = [this](uint64_t comm) {
    if (client(comm) == nullptr && !is_refused(comm)) refused_.push_back(comm);
  };
  for (const uint64_t comm : committed.revoked) note(comm);
  for (const membership::Settlement& settled : committed.settled) note(settled.comm);
  while (refused_.size() > kMost) refused_.pop_front();
}

bool ControlThread::is_refused(uint64_t comm) const {
  return std::find(refused_.begin(), refused_.end(), comm) != refused_.end();
}

// A member whose link broke is waited for while it is in the view: it may stay there, and lack something.
void ControlThread::check_closings() {
  if (closings_.empty()) return;
  const membership::View& view = membership_->view();
  std::erase_if(closings_, [&](Closing& closing) {
    std::erase_if(closing.awaited, [&](const auto& member) {
      return view.incarnation(member.first) != member.second ||
             membership_->confirmed_dead(member.first);
    });
    if (!closing.awaited.empty()) return false;
    // Release: what made it true is over for the thread that reads it.
    closing.held->store(true, std::memory_order_release);
    doorbell_ring(windows_.doorbell());
    return true;
  });
}

bool ControlThread::take_closing(uint32_t slot, const Frame& frame) {
  ClosingFrame closing;
  if (!decode_closing(frame.payload, &closing)) {
    (void)fail(MEP_ERR_DENIED, "a bad question about a communicator");
    return false;
  }
  closing_peers_.push_back({slot, closing.token, {closing.comm, closing.channel, closing.done, 0}});
  return true;
}

bool ControlThread::take_closing_held(uint32_t slot, const Frame& frame) {
  uint64_t token = 0;
  if (!decode_closing_held(frame.payload, &token)) {
    (void)fail(MEP_ERR_DENIED, "a bad answer about a communicator");
    return false;
  }
  const uint64_t incarnation = peers_[slot].identity.incarnation;
  for (Closing& closing : closings_) {
    if (closing.token == token) std::erase(closing.awaited, std::pair(slot, incarnation));
  }
  return true;
}

// A rank that has closed the comm itself holds all of it.
void ControlThread::answer_closings() {
  std::erase_if(closing_peers_, [this](const ClosingPeer& peer) {
    WorldParticipant* comm = client(peer.done.comm);
    if (comm != nullptr && !comm->holds(peer.done.channel, peer.done.done)) return false;
    send(peer.slot, kFrameClosingHeld, encode_closing_held(peer.token));
    return true;
  });
}

}  // namespace mep

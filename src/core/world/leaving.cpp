#include "core/world/leaving.hpp"

#include <algorithm>
#include <utility>

#include "base/failpoint.hpp"
#include "base/status.hpp"
#include "core/world/frames.hpp"

namespace mep {

void Leaving::start() {
  if (state_ != State::kNo) return;
  state_ = State::kAsking;
  MEP_FAILPOINT("leave");
  std::vector<membership::ChannelState> done;
  closed_.append_to(&done);
  for (const auto& [id, comm] : participants_) comm->describe(&done);
  const std::vector<std::byte> payload = encode_leaving(done);
  awaited_ = membership_.view().members;
  awaited_.remove(peers_.self_slot());
  awaited_.each([&](uint32_t slot) { links_.send(slot, kFrameLeaving, payload); });
}

bool Leaving::is_due() {
  if (state_ != State::kAsking) return false;
  awaited_ &= membership_.view().members;
  membership::SlotSet lost;
  membership::SlotSet others;
  membership_.view().members.each([&](uint32_t slot) {
    if (slot == peers_.self_slot() || membership_.stated_its_end(slot)) return;
    const bool is_lost = peers_[slot].link == nullptr || membership_.confirmed_dead(slot);
    (is_lost ? lost : others).add(slot);
  });
  awaited_ &= others;
  if (!awaited_.empty()) return false;
  // Those that go on may need this rank, as a witness or for the quorum, until the lost ones are out.
  if (!lost.empty() && !others.empty()) return false;
  state_ = State::kLeft;
  return true;
}

bool Leaving::take_leaving(uint32_t slot, const Frame& frame) {
  LeavingPeer peer;
  peer.slot = slot;
  if (!decode_leaving(frame.payload, &peer.done)) {
    (void)fail(MEP_ERR_DENIED, "a bad farewell");
    return false;
  }
  leaving_peers_.push_back(std::move(peer));
  return true;
}

void Leaving::answer_leaving() {
  std::erase_if(leaving_peers_, [this](LeavingPeer& peer) {
    participants_.drop_held(&peer.done);
    if (!peer.done.empty()) return false;
    links_.send(peer.slot, kFrameLeavingHeld, {});
    return true;
  });
}

void Leaving::note_closed(std::vector<membership::ChannelState> channels,
                          const membership::SlotSet& members) {
  // Nobody waits for anything of a channel on which nothing was done.
  std::erase_if(channels, [](const membership::ChannelState& state) { return state.done == 0; });
  membership::SlotSet peers = members & membership_.view().members;
  peers.remove(peers_.self_slot());
  membership::SlotSet gone;
  peers.each([&](uint32_t slot) {
    if (peers_[slot].link == nullptr) gone.add(slot);
  });
  peers -= gone;
  const ClosedFrame closed{closed_.add(channels, peers), std::move(channels)};
  if (closed.number == 0) return;
  const std::vector<std::byte> payload = encode_closed(closed);
  peers.each([&](uint32_t slot) { links_.send(slot, kFrameClosed, payload); });
}

bool Leaving::take_closed(uint32_t slot, const Frame& frame) {
  ClosedFrame closed;
  if (!decode_closed(frame.payload, &closed)) {
    (void)fail(MEP_ERR_DENIED, "a bad frame of closed channels");
    return false;
  }
  closed_by_peers_.push_back({slot, closed.number, std::move(closed.channels)});
  return true;
}

bool Leaving::take_closed_held(uint32_t slot, const Frame& frame) {
  uint64_t number = 0;
  if (!decode_closed_held(frame.payload, &number)) {
    (void)fail(MEP_ERR_DENIED, "a bad answer to closed channels");
    return false;
  }
  closed_.held(slot, number);
  return true;
}

void Leaving::answer_closed() {
  std::erase_if(closed_by_peers_, [this](ClosedByPeer& closed) {
    participants_.drop_held(&closed.channels);
    if (!closed.channels.empty()) return false;
    links_.send(closed.slot, kFrameClosedHeld, encode_closed_held(closed.number));
    return true;
  });
}

void Leaving::forget_peer(uint32_t slot) {
  std::erase_if(leaving_peers_, [slot](const LeavingPeer& peer) { return peer.slot == slot; });
  std::erase_if(closed_by_peers_, [slot](const ClosedByPeer& peer) { return peer.slot == slot; });
}

}  // namespace mep

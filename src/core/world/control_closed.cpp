// Channels that were closed, here and by peers: who still needs what was done on them.
//
// Not the question of control_closing.cpp, which comes before a comm is forgotten: there a thread waits, so
// answers are hurried (wait_ms) and a lost link does not end the wait. Here nobody waits, links that are gone are
// not asked, and what is not answered is told again when this rank leaves.
#include <algorithm>
#include <utility>

#include "base/status.hpp"
#include "core/world/control_thread.hpp"

namespace mep {

void ControlThread::note_closed(std::vector<membership::ChannelState> channels,
                                const membership::SlotSet& members) {
  // Nobody waits for anything of a channel on which nothing was done.
  std::erase_if(channels, [](const membership::ChannelState& state) { return state.done == 0; });
  membership::SlotSet peers = members & membership_->view().members;
  peers.remove(peers_.self_slot());
  membership::SlotSet gone;
  peers.each([&](uint32_t slot) {
    if (peers_[slot].link == nullptr) gone.add(slot);
  });
  peers -= gone;
  const ClosedFrame closed{closed_.add(channels, peers), std::move(channels)};
  if (closed.number == 0) return;
  const std::vector<std::byte> payload = encode_closed(closed);
  peers.each([&](uint32_t slot) { send(slot, kFrameClosed, payload); });
}

bool ControlThread::take_closed(uint32_t slot, const Frame& frame) {
  ClosedFrame closed;
  if (!decode_closed(frame.payload, &closed)) {
    (void)fail(MEP_ERR_DENIED, "a bad frame of closed channels");
    return false;
  }
  closed_by_peers_.push_back({slot, closed.number, std::move(closed.channels)});
  return true;
}

bool ControlThread::take_closed_held(uint32_t slot, const Frame& frame) {
  uint64_t number = 0;
  if (!decode_closed_held(frame.payload, &number)) {
    (void)fail(MEP_ERR_DENIED, "a bad answer to closed channels");
    return false;
  }
  closed_.held(slot, number);
  return true;
}

// Nobody waits for these answers, so they come when this thread wakes for something else.
void ControlThread::answer_closed() {
  std::erase_if(closed_by_peers_, [this](ClosedByPeer& closed) {
    drop_held(&closed.channels);
    if (!closed.channels.empty()) return false;
    send(closed.slot, kFrameClosedHeld, encode_closed_held(closed.number));
    return true;
  });
}

void ControlThread::drop_held(std::vector<membership::ChannelState>* channels) {
  std::erase_if(*channels, [this](const membership::ChannelState& state) {
    WorldParticipant* comm = client(state.comm);
    return comm == nullptr || comm->holds(state.channel, state.done);
  });
}

}  // namespace mep

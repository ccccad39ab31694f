// The control thread's frames: what comes from a peer, what goes to it, and its end.
#include <sys/epoll.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/failpoint.hpp"
#include "base/log.hpp"
#include "base/status.hpp"
#include "core/bootstrap/hello.hpp"
#include "core/world/control_thread.hpp"

namespace mep {

void ControlThread::read_link(uint32_t slot) {
  const std::shared_ptr<ControlLink> link = peers_[slot].link;
  if (link == nullptr) return;
  bool good = true;
  const mep_result_t result = link->receive([&](Frame& frame) {
    good = take_frame(slot, frame);
    return good && peers_[slot].link == link;
  });
  if (good && result == MEP_ERR_NO_MEMORY) {
    waiting_links_.add(slot);  // no event tells of what lies in the link already
    return;
  }
  if (!good || result == MEP_ERR_DENIED) {
    log(LogLevel::kWarn, "rank %u sent something that is no valid frame: %s", slot,
        last_error_text());
  }
  if (!good || result != MEP_SUCCESS) drop_link(slot);
}

bool ControlThread::take_frame(uint32_t slot, Frame& frame) {
  const PeerIdentity& peer = peers_[slot].identity;
  if (frame.type < kFirstWorldFrame) return take_last_words(slot, frame);
  switch (frame.type) {
    case kFrameWindow:
      return take_window(slot, frame);
    case kFrameWindowTaken:
      return take_window_taken(slot, frame);
    case kFrameRow: {
      std::string error;
      const auto* bytes = reinterpret_cast<const uint8_t*>(frame.payload.data());
      membership::RowPtr row =
          membership::decode_row({bytes, frame.payload.size()}, peers_.count(), &error);
      if (row == nullptr || row->slot != slot || row->incarnation != peer.incarnation) {
        (void)fail(MEP_ERR_DENIED, "a bad membership row: %s", error.c_str());
        return false;
      }
      membership_->on_row(std::move(row));
      return true;
    }
    case kFrameHeartbeat:
      membership_->on_heartbeat(slot, peer.incarnation);
      return true;
    case kFrameCatchUp:
      return take_catch_up(slot, frame);
    case kFrameCatchUpEnd:
      return take_catch_up_end(slot, frame);
    case kFrameLeaving:
      return take_leaving(slot, frame);
    case kFrameLeavingHeld:
      leave_awaited_.remove(slot);
      return true;
    case kFrameClosing:
      return take_closing(slot, frame);
    case kFrameClosingHeld:
      return take_closing_held(slot, frame);
    case kFrameView:
      return take_view(slot, frame);
    case kFrameComms:
      return true;  // those of the first welcome are used, before this thread starts
    case kFrameCommEpochs:
      return take_comm_epochs(frame);
    case kFramePeerStates:
      return take_peer_states(frame);
    case kFrameClosed:
      return take_closed(slot, frame);
    case kFrameClosedHeld:
      return take_closed_held(slot, frame);
    case kFrameReady:
      return take_ready(slot);
    case kFrameOffered:
      windows_.note_offered(slot);
      return true;
    default:  // a peer's number, not an enumerator: anything may come
      (void)fail(MEP_ERR_DENIED, "unknown frame type %u", static_cast<unsigned>(frame.type));
      return false;
  }
}

// Takes the text of a start or a join that failed there; the end of the stream follows.
bool ControlThread::take_last_words(uint32_t slot, const Frame& frame) {
  Abort abort;
  if (frame.type == kAbortFrame && !is_member(slot) && decode_abort(frame.payload, &abort)) {
    log(LogLevel::kWarn, "joiner for rank %u: %s", slot, abort.text.c_str());
    admissions_.note_refusal(slot, abort.text);
  }
  return true;
}

bool ControlThread::take_window(uint32_t slot, Frame& frame) {
  WindowFrame window;
  if (!decode_window_frame(frame.payload, &window) || frame.fds.size() > 2) {
    (void)fail(MEP_ERR_DENIED, "a bad window frame");
    return false;
  }
  const uint64_t id = window.id;
  WindowOffer offer;
  offer.incarnation = peers_[slot].identity.incarnation;
  offer.bytes = window.bytes;
  offer.generation = window.generation;
  offer.blob = std::move(window.blob);
  if (frame.lost_descriptors) {
    offer.result = MEP_ERR_NO_MEMORY;
    offer.text = "no descriptor was left for a window of rank " + std::to_string(slot) +
                 "; raise the limit of open files (ulimit -n)";
  }
  if (!frame.fds.empty()) offer.fd = std::move(frame.fds[0]);
  if (frame.fds.size() > 1) offer.event = std::move(frame.fds[1]);
  const uint32_t generation = offer.generation;
  // A window that is in use here was renewed; a joiner's is taken at once, too, also if this rank is one
  // itself: connections may begin with it, and whoever of the two is in first is waited for by the other. Others
  // wait until a user's thread wants them.
  const bool at_once = arrivals_.contains(slot) || !is_member(slot);
  const bool is_joining = membership_->phase() == membership::Phase::kJoining;
  if (windows_.take(slot, id, std::move(offer), at_once, is_joining) != MEP_SUCCESS) {
    // The old pages of a renewed window are read by nobody; whoever writes there is gone for its owner,
    // and a joiner that cannot be reached does not come in.
    if (!is_member(slot)) admissions_.note_refusal(slot, last_error_text());
    broken_links_.add(slot);
    return true;
  }
  if (generation > 0) {
    send(slot, kFrameWindowTaken, encode_window_taken({id, generation}));
  }
  return true;
}

bool ControlThread::take_window_taken(uint32_t slot, const Frame& frame) {
  WindowTakenFrame taken;
  if (!decode_window_taken(frame.payload, &taken)) {
    (void)fail(MEP_ERR_DENIED, "a bad answer to a window");
    return false;
  }
  for (Fence& fence : fences_) fence.awaited.erase({{slot, taken.id}, taken.generation});
  check_fences();
  const auto arrival = arrivals_.find(slot);
  if (arrival == arrivals_.end()) return true;
  arrival->second.untaken.erase({{slot, taken.id}, taken.generation});
  announce(slot, arrival->second);
  return true;
}

bool ControlThread::take_catch_up(uint32_t, const Frame& frame) {
  MEP_FAILPOINT("catch-up receive");
  CatchUpFrame flush;
  if (!decode_catch_up(frame.payload, &flush)) {
    (void)fail(MEP_ERR_DENIED, "a bad flush frame");
    return false;
  }
  WorldParticipant* target = client(flush.comm);
  if (target != nullptr && membership_->phase() == membership::Phase::kChanging) {
    target->take_catch_up(flush.channel, flush.seq, flush.source, flush.contribution);
  }
  return true;
}

bool ControlThread::take_catch_up_end(uint32_t, const Frame& frame) {
  CatchUpEndFrame end;
  if (!decode_catch_up_end(frame.payload, &end)) {
    (void)fail(MEP_ERR_DENIED, "a bad end of a flush");
    return false;
  }
  uint64_t& up_to = caught_up_[{end.comm, end.channel}];
  up_to = std::max(up_to, end.to_seq);
  check_catch_up();
  return true;
}

bool ControlThread::take_leaving(uint32_t slot, const Frame& frame) {
  LeavingPeer peer;
  peer.slot = slot;
  if (!decode_leaving(frame.payload, &peer.done)) {
    (void)fail(MEP_ERR_DENIED, "a bad farewell");
    return false;
  }
  leaving_peers_.push_back(std::move(peer));
  return true;
}

void ControlThread::send(uint32_t slot, uint16_t type, std::span<const std::byte> payload,
                         std::span<const int> fds) {
  const std::shared_ptr<ControlLink> link = peers_[slot].link;
  if (link == nullptr) return;
  // A link that broke swallows it; its end is seen when it is read. But who misses a frame for another
  // reason, because it reads too slowly perhaps, knows nothing of it: for this rank it is gone.
  const mep_result_t sent = link->send(type, payload, fds);
  if (sent == MEP_SUCCESS || sent == MEP_ERR_PEER_FAILED) return;
  log(LogLevel::kWarn, "rank %u cannot be written to any more: %s", slot, last_error_text());
  broken_links_.add(slot);
}

void ControlThread::tell_all(uint16_t type, std::span<const std::byte> payload) {
  for (uint32_t slot = 0; slot < peers_.count(); ++slot) send(slot, type, payload);
}

void ControlThread::drop_broken_links() {
  const membership::SlotSet broken = std::exchange(broken_links_, {});
  broken.each([this](uint32_t slot) { drop_link(slot); });
  if (!broken.empty()) again_ = true;
}

void ControlThread::flush_links() {
  for (uint32_t slot = 0; slot < peers_.count(); ++slot) {
    const std::shared_ptr<ControlLink> link = peers_[slot].link;
    if (link == nullptr) continue;
    if (link->has_queued_output()) (void)link->flush_output();
    epoll_event event{};
    event.events = EPOLLIN | (link->has_queued_output() ? uint32_t{EPOLLOUT} : 0u);
    event.data.u64 = (uint64_t{static_cast<uint32_t>(Source::kLink)} << 32) | slot;
    if (event.events != EPOLLIN || output_watched_.has(slot)) {
      epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, link->fd(), &event);
      if (event.events == EPOLLIN) {
        output_watched_.remove(slot);
      } else {
        output_watched_.add(slot);
      }
    }
  }
}

// Whatever the peer has asked is not answered any more: the next answer could go to another in its slot.
void ControlThread::end_link(uint32_t slot) {
  WorldPeer& peer = peers_[slot];
  std::erase_if(leaving_peers_, [slot](const LeavingPeer& other) { return other.slot == slot; });
  std::erase_if(closing_peers_, [slot](const ClosingPeer& other) { return other.slot == slot; });
  std::erase_if(closed_by_peers_, [slot](const ClosedByPeer& other) { return other.slot == slot; });
  if (peer.link == nullptr) return;
  unwatch(peer.link->fd());
  peer.link->shutdown();
  peer.link = nullptr;
  output_watched_.remove(slot);
}

void ControlThread::drop_link(uint32_t slot) {
  if (peers_[slot].link == nullptr) return;
  end_link(slot);
  if (is_member(slot)) {
    note_evidence();
    membership_->on_connection_lost(slot, peers_[slot].identity.incarnation);
  } else {
    joiner_ended(slot, false);
  }
  windows_.forget_offered(slot);
  windows_.wake();
}

// Its last statement (LEFT perhaps) comes first.
void ControlThread::process_ended(uint32_t slot) {
  WorldPeer& peer = peers_[slot];
  read_link(slot);
  unwatch(peer.pidfd.get());
  peer.pidfd.reset();
  if (is_member(slot)) {
    note_evidence();
    membership_->on_process_exit(slot, peer.identity.incarnation);
  } else {
    joiner_ended(slot, true);
  }
  windows_.wake();
}

}  // namespace mep

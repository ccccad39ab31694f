// Takes what comes from peers: frames, the ends of links and processes, and failures of transports.
#include <string>
#include <utility>

#include "base/log.hpp"
#include "base/status.hpp"
#include "core/bootstrap/hello.hpp"
#include "core/world/control_thread.hpp"
#include "core/world/frames.hpp"

namespace mep {

void ControlThread::read_link(uint32_t slot) {
  if (!links_.read(slot, [&](Frame& frame) { return take_frame(slot, frame); })) drop_link(slot);
}

bool ControlThread::take_frame(uint32_t slot, Frame& frame) {
  change_->dying().watch(slot);
  if (frame.type < kFirstWorldFrame) return take_last_words(slot, frame);
  switch (frame.type) {
    case kFrameWindow:
      return take_window(slot, frame);
    case kFrameWindowTaken:
      return take_window_taken(slot, frame);
    case kFrameRow:
      return take_row(slot, frame);
    case kFrameHeartbeat:
      membership_->on_heartbeat(slot, peers_[slot].identity.incarnation);
      return true;
    case kFrameCatchUp:
      return change_->take_catch_up(frame);
    case kFrameCatchUpEnd:
      return change_->take_catch_up_end(frame);
    case kFrameLeaving:
      return leaving_->take_leaving(slot, frame);
    case kFrameLeavingHeld:
      leaving_->take_leaving_held(slot);
      return true;
    case kFrameClosing:
      return closings_->take_question(slot, frame);
    case kFrameClosingHeld:
      return closings_->take_answer(slot, frame);
    case kFrameView:
      return joiners_->take_view(frame);
    case kFrameComms:
      return true;  // those of the first welcome are used, before this thread starts
    case kFrameCommEpochs:
      return joiners_->take_comm_epochs(frame);
    case kFramePeerStates:
      return joiners_->take_peer_states(frame);
    case kFrameClosed:
      return leaving_->take_closed(slot, frame);
    case kFrameClosedHeld:
      return leaving_->take_closed_held(slot, frame);
    case kFrameReady:
      joiners_->note_ready(slot);
      return true;
    case kFrameOffered:
      windows_.note_offered(slot);
      return true;
    default:  // a peer's number, not an enumerator: anything may come
      (void)fail(MEP_ERR_DENIED, "unknown frame type %u", static_cast<unsigned>(frame.type));
      return false;
  }
}

bool ControlThread::take_row(uint32_t slot, const Frame& frame) {
  std::string error;
  const auto* bytes = reinterpret_cast<const uint8_t*>(frame.payload.data());
  membership::RowPtr row =
      membership::decode_row({bytes, frame.payload.size()}, peers_.count(), &error);
  if (row == nullptr || row->slot != slot ||
      row->incarnation != peers_[slot].identity.incarnation) {
    (void)fail(MEP_ERR_DENIED, "a bad membership row: %s", error.c_str());
    return false;
  }
  membership_->on_row(std::move(row));
  return true;
}

// Takes the text of a start or a join that failed there; the end of the stream follows.
bool ControlThread::take_last_words(uint32_t slot, const Frame& frame) {
  Abort abort;
  if (frame.type == kAbortFrame && !peers_.is_in(membership_->view(), slot) &&
      decode_abort(frame.payload, &abort)) {
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
  offer.note = std::move(window.note);
  if (frame.lost_descriptors) {
    offer.result = MEP_ERR_NO_MEMORY;
    offer.text = "no descriptor was left for a window of rank " + std::to_string(slot) +
                 "; raise the limit of open files (ulimit -n)";
  }
  if (!frame.fds.empty()) offer.fd = std::move(frame.fds[0]);
  if (frame.fds.size() > 1) offer.event = std::move(frame.fds[1]);
  if (window.is_for_kernels) {
    windows_.file_memory(slot, id, std::move(offer));
    return true;
  }
  const uint32_t generation = offer.generation;
  // A window that is in use here was renewed; a joiner's is taken at once, too, also if this rank is one
  // itself: connections may begin with it, and whoever of the two is in first is waited for by the other. Others
  // wait until a user's thread wants them.
  const bool at_once = joiners_->is_connected(slot) || !peers_.is_in(membership_->view(), slot);
  const bool is_joining = membership_->phase() == membership::Phase::kJoining;
  if (windows_.take(slot, id, std::move(offer), at_once, is_joining) != MEP_SUCCESS) {
    // The old pages of a renewed window are read by nobody; whoever writes there is gone for its owner,
    // and a joiner that cannot be reached does not come in.
    if (!peers_.is_in(membership_->view(), slot)) admissions_.note_refusal(slot, last_error_text());
    links_.mark_broken(slot);
    return true;
  }
  if (generation > 0) {
    links_.send(slot, kFrameWindowTaken, encode_window_taken({id, generation}));
  }
  return true;
}

bool ControlThread::take_window_taken(uint32_t slot, const Frame& frame) {
  WindowTakenFrame taken;
  if (!decode_window_taken(frame.payload, &taken)) {
    (void)fail(MEP_ERR_DENIED, "a bad answer to a window");
    return false;
  }
  change_->note_taken(slot, taken.id, taken.generation);
  joiners_->note_taken(slot, taken.id, taken.generation);
  return true;
}

// Questions of the peer are not answered any more: the next answer could go to another in its slot.
void ControlThread::end_link(uint32_t slot) {
  leaving_->forget_peer(slot);
  closings_->forget_peer(slot);
  links_.end(slot);
}

void ControlThread::drop_link(uint32_t slot) {
  if (peers_[slot].link == nullptr) return;
  end_link(slot);
  if (peers_.is_in(membership_->view(), slot)) {
    change_->note_evidence();
    change_->dying().note_link_end(slot);
    membership_->on_connection_lost(slot, peers_[slot].identity.incarnation);
  } else {
    joiners_->note_ended(slot, false);
  }
  windows_.forget_offered(slot);
  windows_.wake();
}

void ControlThread::drop_broken_links() {
  const membership::SlotSet broken = links_.take_broken();
  broken.each([this](uint32_t slot) { drop_link(slot); });
  if (!broken.empty()) again_ = true;
}

// Its last statement (LEFT perhaps) comes first.
void ControlThread::process_ended(uint32_t slot, bool is_torn_down) {
  WorldPeer& peer = peers_[slot];
  read_link(slot);
  if (is_torn_down) {
    links_.unwatch_process(slot);
    peer.pidfd.reset();
  }
  if (peers_.is_in(membership_->view(), slot)) {
    change_->note_evidence();
    membership_->on_process_exit(slot, peer.identity.incarnation);
  } else {
    joiners_->note_ended(slot, is_torn_down);
    peers_.count_lingering(membership_->view());
  }
  windows_.wake();
}

void ControlThread::serve_transports() {
  TransportWait& network = peers_.network();
  if (!network.active()) return;
  for (uint32_t i = 0; i < network.count(); ++i) network.transport(i)->serve();
  // A thread that waits makes progress itself, and sooner. During a view change none may come.
  if (!network.waited_for() || membership_->phase() == membership::Phase::kChanging) {
    (void)network.progress();
    network.hand_over();
  }
  take_failures();
  change_->drain();
}

void ControlThread::take_failures() {
  TransportWait& network = peers_.network();
  PeerFailure failure;
  for (uint32_t i = 0; i < network.count(); ++i) {
    while (network.transport(i)->take_failure(&failure)) {
      const WorldPeer& peer = peers_[failure.slot];
      if (peer.identity.incarnation != failure.incarnation) continue;
      // Its last statement, LEFT perhaps, comes first.
      read_link(failure.slot);
      const bool member = peers_.is_in(membership_->view(), failure.slot);
      log(member && peer.link != nullptr ? LogLevel::kInfo : LogLevel::kDebug,
          "%s connection to rank %u: %s", network.transport(i)->name(), failure.slot,
          failure.reason.c_str());
      if (member) change_->note_evidence();
      membership_->on_connection_lost(failure.slot, failure.incarnation);
      windows_.wake();
    }
  }
}

}  // namespace mep

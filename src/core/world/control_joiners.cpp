// Joiners: from a knock at the door to "its links are tested".
//
// A joiner for a slot that is not in the view is connected once no user thread can still be inside a
// call of a view that had the slot's former rank. Then this rank gives it the view, the comms that it
// will be a member of, and its part of every window they share; when all of the joiner's windows are
// mapped here and it has said the same of this rank's, the membership state machine hears of it. Comms
// and EP objects may be made and destroyed meanwhile: neither side waits for a window that the other
// does not have.
#include <sys/epoll.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/failpoint.hpp"
#include "base/log.hpp"
#include "base/status.hpp"
#include "core/world/control_thread.hpp"

namespace mep {
namespace {

// So long a joiner waits for a member that it has no link to.
constexpr uint64_t kMissedMs = 500;

}  // namespace

bool ControlThread::is_member(uint32_t slot) const {
  const uint64_t incarnation = peers_[slot].identity.incarnation;
  return incarnation != 0 && membership_->view().incarnation(slot) == incarnation;
}

bool ControlThread::quiesced() const {
  return std::all_of(clients_.begin(), clients_.end(),
                     [](const auto& entry) { return entry.second->quiesced(); });
}

void ControlThread::serve_join_listener() {
  if (join_listener_ == nullptr) return;
  std::vector<PeerLink> arrived;
  try {
    if (join_listener_->progress(&arrived) != MEP_SUCCESS) {
      log(LogLevel::kWarn, "the door for joiners: %s", last_error_text());
    }
    for (PeerLink& joiner : arrived) {
      if (joiner.identity.slot >= peers_.count()) continue;
      arriving_joiners_.push_back(std::move(joiner));
    }
  } catch (const std::bad_alloc&) {
    log(LogLevel::kWarn, "no memory for a joiner; it is sent away");
  }
}

void ControlThread::advance_joiners() {
  const auto announced = std::count_if(arrivals_.begin(), arrivals_.end(),
                                       [](const auto& entry) { return entry.second.announced; });
  admissions_.note_ready_joiners(static_cast<uint32_t>(announced));
  std::erase_if(arriving_joiners_, [this](PeerLink& joiner) {
    const uint32_t slot = joiner.identity.slot;
    // Its former rank is still a member: the view change that removes it is under way.
    if (membership_->view().members.has(slot) || !quiesced()) return false;
    if (arrivals_.contains(slot)) drop_link(slot);
    WorldPeer& peer = peers_[slot];
    if (peer.pidfd.valid()) unwatch(peer.pidfd.get());
    windows_.forget_peer(slot);
    if (!take_joiner(&joiner)) {
      log(LogLevel::kWarn, "joiner for rank %u: %s", slot, last_error_text());
      peer.link = nullptr;
      arrivals_.erase(slot);
    }
    watch_transports();
    return true;
  });
}

bool ControlThread::take_joiner(PeerLink* joiner) {
  const uint32_t slot = joiner->identity.slot;
  WorldPeer& peer = peers_.take_in(joiner);
  try {
    return peers_.choose_transport(&peer, joiner->offer) == MEP_SUCCESS && connect_joiner(slot);
  } catch (const std::bad_alloc&) {
    (void)fail(MEP_ERR_NO_MEMORY, "there is no memory for it");
    return false;
  }
}

bool ControlThread::connect_joiner(uint32_t slot) {
  MEP_FAILPOINT("joiner connect");
  WorldPeer& peer = peers_[slot];
  peer.is_joiner = true;
  bool watched = watch(peer.link->fd(), Source::kLink, slot, EPOLLIN);
  if (peer.pidfd.valid()) {
    watched = watched && watch(peer.pidfd.get(), Source::kProcess, slot, EPOLLIN);
  }
  if (!watched) return false;
  const std::vector<uint8_t> view = membership::encode_view(membership_->view());
  send(slot, kFrameView, std::as_bytes(std::span(view)));
  std::vector<CommDescription> comms;
  for (const auto& [id, client] : clients_) {
    if (client->member_slots().has(slot)) comms.push_back(client->description());
  }
  // It is not a slow reader who has not read all of it at once.
  size_t bytes = 0;
  for (const CommDescription& comm : comms) {
    for (const std::vector<std::byte>& object : comm.objects) bytes += object.size();
  }
  peer.link->allow_output(bytes);
  encode_welcome(comms, [&](std::span<const std::byte> part) { send(slot, kFrameComms, part); });
  MEP_FAILPOINT("joiner welcomed");
  send_comm_epochs(slot);
  send_peer_states(slot);
  offer_windows_to(slot);
  // This rank may be a joiner itself, and that one may be in first.
  if (said_ready_) send(slot, kFrameReady, {});
  read_link(slot);
  return true;
}

// The view may change between the welcome and the admission, and comms with it.
void ControlThread::send_comm_epochs(uint32_t slot) {
  NumberPairs epochs;
  for (const auto& [id, client] : clients_) epochs.emplace_back(id, client->description().epoch);
  send(slot, kFrameCommEpochs, encode_pairs(epochs));
}

// A joiner was not there when these went.
void ControlThread::send_peer_states(uint32_t slot) {
  NumberPairs states;
  for (uint32_t other = 0; other < peers_.count(); ++other) {
    const uint32_t state = peers_.state(other);
    if (other != slot && state != MEP_PEER_ALIVE && !is_member(other))
      states.emplace_back(other, state);
  }
  send(slot, kFramePeerStates, encode_pairs(states));
}

bool ControlThread::take_peer_states(const Frame& frame) {
  NumberPairs told;
  if (!decode_pairs(frame.payload, &told)) {
    (void)fail(MEP_ERR_DENIED, "bad states of ranks");
    return false;
  }
  if (membership_->phase() != membership::Phase::kJoining) return true;
  for (const auto& [slot, state] : told) {
    if (slot >= peers_.count() || slot == peers_.self_slot() || state > MEP_PEER_EXCLUDED) continue;
    // Relaxed: see WorldPeer.
    peers_[static_cast<uint32_t>(slot)].state.store(static_cast<uint32_t>(state),
                                                    std::memory_order_relaxed);
  }
  return true;
}

bool ControlThread::take_comm_epochs(const Frame& frame) {
  if (membership_->phase() != membership::Phase::kJoining) return true;
  NumberPairs told;
  if (!decode_pairs(frame.payload, &told)) {
    (void)fail(MEP_ERR_DENIED, "bad epochs of communicators");
    return false;
  }
  for (const auto& [id, told_epoch] : told) {
    uint64_t& epoch = told_epochs_[id];
    epoch = std::max(epoch, told_epoch);
    const WorldParticipant* comm = client(id);
    if (comm == nullptr) continue;
    membership_->on_comm_created(id, std::max(epoch, membership_->comm_epoch(id)),
                                 comm->member_slots());
  }
  return true;
}

void ControlThread::offer_windows_to(uint32_t slot) {
  arrivals_[slot] = {};
  membership::SlotSet unreached;
  windows_.offer_all(slot, &unreached);
  if (!unreached.empty()) admissions_.note_refusal(slot, last_error_text());
  unreached.each([this](uint32_t each) { broken_links_.add(each); });
  // A rank that is joining says this by being ready instead, and may have more to offer until then.
  if (membership_->phase() != membership::Phase::kJoining) send(slot, kFrameOffered, {});
}

// Links keep the order: whatever windows the joiner has for this rank have come before. One that it
// does not have belongs to an object that was made, or is destroyed, while it came.
bool ControlThread::take_ready(uint32_t slot) {
  // For this rank, if it is a joiner itself: nobody waits for what the other has not.
  windows_.note_offered(slot);
  // Two joiners came at the same time: the one that is in first did not let the other in, but has it linked.
  if (is_member(slot)) return true;
  Arrival& arrival = arrivals_[slot];
  arrival.is_ready = true;
  announce(slot, arrival);
  return true;
}

// A joiner with old pages of a renewed window would write, as a member, where nobody reads.
void ControlThread::announce(uint32_t slot, Arrival& arrival) {
  if (arrival.announced || !arrival.is_ready || !arrival.untaken.empty()) return;
  arrival.announced = true;
  peers_[slot].is_joiner = true;
  const PeerIdentity& identity = peers_[slot].identity;
  // Release: see WorldWindows::has_offered_all().
  peers_[slot].ready_incarnation.store(identity.incarnation, std::memory_order_release);
  membership_->on_joiner_ready({slot, identity.incarnation, identity.host});
}

// A joiner may come again by another link; it has ended when its process has, if that can be seen.
void ControlThread::joiner_ended(uint32_t slot, bool confirmed) {
  WorldPeer& peer = peers_[slot];
  membership_->on_joiner_gone(slot, peer.identity.incarnation, confirmed);
  arrivals_.erase(slot);
  if (!peer.is_joiner || (!confirmed && peer.pidfd.valid())) return;
  peer.is_joiner = false;
  membership_->on_joiner_lost(slot);
}

bool ControlThread::take_view(uint32_t, const Frame& frame) {
  membership::View view;
  std::string error;
  const auto* bytes = reinterpret_cast<const uint8_t*>(frame.payload.data());
  if (!membership::decode_view({bytes, frame.payload.size()}, peers_.count(), &view, &error)) {
    (void)fail(MEP_ERR_DENIED, "a bad view: %s", error.c_str());
    return false;
  }
  membership_->on_view_snapshot(view);
  // To those too that came in meanwhile.
  if (said_ready_) say_ready();
  // Threads that wait for a member which is gone by now look again.
  publish_view();
  windows_.wake();
  return true;
}

// While this joiner asked around, a member answered too late, or came in by another way. Unless it
// leaves the view soon, this rank has to ask again: nobody admits whom a member does not reach. Asking in
// vain, because that member is dead and not removed yet, costs a few messages.
void ControlThread::look_for_missed_members() {
  if (membership_->phase() != membership::Phase::kJoining) return;
  const membership::View& view = membership_->view();
  uint32_t missed = membership::kNoSlot;
  view.members.each([&](uint32_t slot) {
    if (peers_[slot].identity.incarnation != view.incarnation(slot)) missed = slot;
  });
  if (missed == membership::kNoSlot) {
    missed_until_ = Deadline::never();
  } else if (missed_until_.at_ns() == Deadline::never().at_ns()) {
    missed_until_ = Deadline::after_ms(kMissedMs);
  } else if (missed_until_.expired() && end_.result() == MEP_SUCCESS) {
    log(LogLevel::kInfo, "rank %u has no link to this joiner, which asks again", missed);
    end_world(WorldEnd::kMissedMember);
  }
}

void ControlThread::say_ready() {
  said_ready_ = true;
  tell_all(kFrameReady, {});
}

}  // namespace mep

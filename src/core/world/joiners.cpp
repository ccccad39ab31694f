#include "core/world/joiners.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/failpoint.hpp"
#include "base/log.hpp"
#include "base/status.hpp"
#include "core/bootstrap/place_store.hpp"
#include "core/world/frames.hpp"

namespace mep {
namespace {

// So long a joiner waits for a rank that it has no link to.
constexpr uint64_t kMissedMs = 500;

}  // namespace

// --- The door -------------------------------------------------------------------------------------

mep_result_t Joiners::open_door(const ResolvedConfig& config, UniqueFd listener,
                                std::shared_ptr<Gate> gate) {
  listener_ = std::move(listener);
  gate_ = std::move(gate);
  if (!listener_.valid()) return MEP_SUCCESS;
  door_ = std::make_unique<JoinListener>(listener_.get(), config, peers_.self(), gate_);
  return links_.watch_door(door_->fd());
}

void Joiners::serve_door() {
  if (door_ == nullptr) return;
  std::vector<PeerLink> arrived;
  door_->progress(&arrived);
  for (PeerLink& joiner : arrived) {
    if (joiner.identity.slot >= peers_.count()) continue;
    knocked_.push_back(std::move(joiner));
  }
}

void Joiners::close_door() {
  door_.reset();
  knocked_.clear();
}

void Joiners::strike_out(uint32_t slot) {
  if (gate_ == nullptr) return;
  gate_->places->erase(slot, peers_[slot].identity.incarnation);
}

// --- Connecting -----------------------------------------------------------------------------------

void Joiners::connect(FunctionRef<void(uint32_t)> drop_link,
                      FunctionRef<void(uint32_t)> read_link) {
  const auto announced = std::count_if(arrivals_.begin(), arrivals_.end(),
                                       [](const auto& entry) { return entry.second.announced; });
  admissions_.note_ready_joiners(static_cast<uint32_t>(announced));
  // A rank that still starts would say that it has offered all, and has no windows yet. One that joins says it later.
  if (!has_begun_ && membership_.phase() != membership::Phase::kJoining) return;
  has_begun_ = true;
  std::erase_if(knocked_, [&](PeerLink& joiner) {
    const uint32_t slot = joiner.identity.slot;
    // Its former rank is still a member: the view change that removes it is under way.
    if (membership_.view().members.has(slot) || !participants_.quiesced()) return false;
    // The former rank's kernels write where the joiner's will.
    if (peers_.have_kernels() && peers_.lingers(membership_.view(), slot)) return false;
    if (arrivals_.contains(slot)) drop_link(slot);
    links_.unwatch_process(slot);
    windows_.forget_peer(slot);
    if (!take_joiner(&joiner, read_link)) {
      log(LogLevel::kWarn, "joiner for rank %u: %s", slot, last_error_text());
      links_.end(slot);
      arrivals_.erase(slot);
    }
    links_.watch_transports();
    return true;
  });
}

bool Joiners::take_joiner(PeerLink* joiner, FunctionRef<void(uint32_t)> read_link) {
  const uint32_t slot = joiner->identity.slot;
  WorldPeer& peer = peers_.take_in(joiner);
  if (peers_.choose_transport(&peer, joiner->offer) != MEP_SUCCESS || !welcome(slot)) return false;
  read_link(slot);
  return true;
}

bool Joiners::welcome(uint32_t slot) {
  MEP_FAILPOINT("joiner connect");
  WorldPeer& peer = peers_[slot];
  peer.is_joiner = true;
  if (links_.watch_peer(slot) != MEP_SUCCESS) return false;
  const std::vector<uint8_t> view = membership::encode_view(membership_.view());
  links_.send(slot, kFrameView, std::as_bytes(std::span(view)));
  std::vector<CommDescription> comms;
  // A joiner's own comms may not have their objects yet: the members tell of them.
  const bool is_member = membership_.phase() != membership::Phase::kJoining;
  for (const auto& [id, comm] : participants_) {
    if (is_member && comm->stands_alone() && comm->member_slots().has(slot) &&
        !participants_.is_outgrown(*comm)) {
      comms.push_back(comm->description());
    }
  }
  // It is not a slow reader who has not read all of it at once.
  size_t bytes = 0;
  for (const CommDescription& comm : comms) {
    for (const std::vector<std::byte>& object : comm.objects) bytes += object.size();
  }
  peer.link->allow_output(bytes);
  encode_welcome(comms,
                 [&](std::span<const std::byte> part) { links_.send(slot, kFrameComms, part); });
  MEP_FAILPOINT("joiner welcomed");
  send_comm_epochs(slot);
  send_peer_states(slot);
  offer_windows_to(slot);
  // This rank may be a joiner itself, and that one may be in first.
  if (said_ready_) links_.send(slot, kFrameReady, {});
  return true;
}

// The view may change between the welcome and the admission, and comms with it.
void Joiners::send_comm_epochs(uint32_t slot) {
  NumberPairs epochs;
  for (const auto& [id, comm] : participants_) epochs.emplace_back(id, comm->description().epoch);
  links_.send(slot, kFrameCommEpochs, encode_pairs(epochs));
}

// A joiner was not there when these went.
void Joiners::send_peer_states(uint32_t slot) {
  NumberPairs states;
  for (uint32_t other = 0; other < peers_.count(); ++other) {
    const uint32_t state = peers_.state(other);
    if (other != slot && state != MEP_PEER_ALIVE && !peers_.is_in(membership_.view(), other))
      states.emplace_back(other, state);
  }
  links_.send(slot, kFramePeerStates, encode_pairs(states));
}

void Joiners::offer_windows_to(uint32_t slot) {
  arrivals_[slot] = {};
  membership::SlotSet unreached;
  windows_.offer_all(slot, &unreached);
  if (!unreached.empty()) admissions_.note_refusal(slot, last_error_text());
  unreached.each([this](uint32_t each) { links_.mark_broken(each); });
  // A rank that is joining says this by being ready instead, and may have more to offer until then.
  if (membership_.phase() != membership::Phase::kJoining) links_.send(slot, kFrameOffered, {});
}

// --- Connected joiners ----------------------------------------------------------------------------

membership::SlotSet Joiners::connected() const {
  membership::SlotSet slots;
  for (const auto& [slot, arrival] : arrivals_) slots.add(slot);
  return slots;
}

// Links keep the order: whatever windows the joiner has for this rank have come before. One that it
// does not have belongs to an object that was made, or is destroyed, while it came.
void Joiners::note_ready(uint32_t slot) {
  // For this rank, if it is a joiner itself: nobody waits for what the other has not.
  windows_.note_offered(slot);
  // Two joiners came at the same time: the one that is in first did not let the other in, but has it linked.
  if (peers_.is_in(membership_.view(), slot)) return;
  Arrival& arrival = arrivals_[slot];
  arrival.is_ready = true;
  announce(slot, arrival);
}

// A joiner with old pages of a renewed window would write, as a member, where nobody reads.
void Joiners::announce(uint32_t slot, Arrival& arrival) {
  if (arrival.announced || !arrival.is_ready || !arrival.untaken.empty()) return;
  arrival.announced = true;
  peers_[slot].is_joiner = true;
  const PeerIdentity& identity = peers_[slot].identity;
  // Release: see WorldWindows::has_offered_all().
  peers_[slot].ready_incarnation.store(identity.incarnation, std::memory_order_release);
  membership_.on_joiner_ready({slot, identity.incarnation, identity.host});
}

void Joiners::take_over(AwaitedWindows* awaited) {
  for (auto it = awaited->begin(); it != awaited->end();) {
    const auto taker = it++;
    const auto arrival = arrivals_.find(taker->first.first);
    if (arrival == arrivals_.end() || arrival->second.announced) continue;
    arrival->second.untaken.insert(awaited->extract(taker));
  }
}

void Joiners::note_taken(uint32_t slot, uint64_t window, uint32_t generation) {
  const auto arrival = arrivals_.find(slot);
  if (arrival == arrivals_.end()) return;
  arrival->second.untaken.erase({{slot, window}, generation});
  announce(slot, arrival->second);
}

void Joiners::tell_of(const membership::View& view) {
  const std::vector<uint8_t> bytes = membership::encode_view(view);
  for (const auto& [slot, arrival] : arrivals_) {
    if (view.members.has(slot)) continue;
    send_comm_epochs(slot);
    send_peer_states(slot);
    if (!arrival.announced) links_.send(slot, kFrameView, std::as_bytes(std::span(bytes)));
  }
}

void Joiners::take_in(uint32_t slot, uint64_t epoch) {
  arrivals_.erase(slot);
  peers_[slot].is_joiner = false;
  // Relaxed: see WorldPeer.
  peers_[slot].state.store(MEP_PEER_ALIVE, std::memory_order_relaxed);
  log(LogLevel::kInfo, "rank %u is in the view %llu", slot, static_cast<unsigned long long>(epoch));
}

// A joiner may come again by another link; it has ended when its process has, if that can be seen.
void Joiners::note_ended(uint32_t slot, bool confirmed) {
  WorldPeer& peer = peers_[slot];
  membership_.on_joiner_gone(slot, peer.identity.incarnation, confirmed);
  arrivals_.erase(slot);
  if (!peer.is_joiner || (!confirmed && peer.pidfd.valid())) return;
  peer.is_joiner = false;
  membership_.on_joiner_lost(slot);
}

// --- This rank as a joiner ------------------------------------------------------------------------

void Joiners::say_ready() {
  said_ready_ = true;
  links_.tell_all(kFrameReady, {});
}

bool Joiners::take_view(const Frame& frame) {
  membership::View view;
  std::string error;
  const auto* bytes = reinterpret_cast<const uint8_t*>(frame.payload.data());
  if (!membership::decode_view({bytes, frame.payload.size()}, peers_.count(), &view, &error)) {
    (void)fail(MEP_ERR_DENIED, "a bad view: %s", error.c_str());
    return false;
  }
  membership_.on_view_snapshot(view);
  // To those too that came in meanwhile.
  if (said_ready_) say_ready();
  // Threads that wait for a member which is gone by now look again.
  view_.publish(membership_.view_ptr());
  windows_.wake();
  return true;
}

bool Joiners::take_peer_states(const Frame& frame) {
  NumberPairs told;
  if (!decode_pairs(frame.payload, &told)) {
    (void)fail(MEP_ERR_DENIED, "bad states of ranks");
    return false;
  }
  if (membership_.phase() != membership::Phase::kJoining) return true;
  for (const auto& [slot, state] : told) {
    if (slot >= peers_.count() || slot == peers_.self_slot() || state > MEP_PEER_EXCLUDED) continue;
    // Relaxed: see WorldPeer.
    peers_[static_cast<uint32_t>(slot)].state.store(static_cast<uint32_t>(state),
                                                    std::memory_order_relaxed);
  }
  return true;
}

bool Joiners::take_comm_epochs(const Frame& frame) {
  if (membership_.phase() != membership::Phase::kJoining) return true;
  NumberPairs told;
  if (!decode_pairs(frame.payload, &told)) {
    (void)fail(MEP_ERR_DENIED, "bad epochs of communicators");
    return false;
  }
  for (const auto& [id, told_epoch] : told) {
    uint64_t& epoch = told_epochs_[id];
    epoch = std::max(epoch, told_epoch);
    const WorldParticipant* comm = participants_.find(id);
    if (comm == nullptr) continue;
    membership_.on_comm_created(id, std::max(epoch, membership_.comm_epoch(id)),
                                comm->member_slots());
  }
  return true;
}

uint64_t Joiners::latest_epoch(uint64_t comm, uint64_t epoch) const {
  if (membership_.phase() != membership::Phase::kJoining) return epoch;
  const auto told = told_epochs_.find(comm);
  return told == told_epochs_.end() ? epoch : std::max(epoch, told->second);
}

// While this joiner asked around, a member or another joiner answered too late, or came in by another way. Unless it
// goes soon, this rank has to ask again: nobody admits whom a member does not reach, nor two joiners that do not
// reach each other. Asking in vain, because the other is dead and not removed yet, costs a few messages.
uint32_t Joiners::find_missed_rank() {
  if (membership_.phase() != membership::Phase::kJoining) return membership::kNoSlot;
  const membership::View& view = membership_.view();
  uint32_t missed = membership_.unlinked_joiner();
  view.members.each([&](uint32_t slot) {
    if (peers_[slot].identity.incarnation != view.incarnation(slot)) missed = slot;
  });
  if (missed == membership::kNoSlot) {
    missed_until_ = Deadline::never();
  } else if (missed_until_.at_ns() == Deadline::never().at_ns()) {
    missed_until_ = Deadline::after_ms(kMissedMs);
  } else if (missed_until_.expired()) {
    return missed;
  }
  return membership::kNoSlot;
}

}  // namespace mep

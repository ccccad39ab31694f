// Carries out what the membership state machine asks for.
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "base/failpoint.hpp"
#include "base/log.hpp"
#include "base/status.hpp"
#include "core/bootstrap/rendezvous_entries.hpp"
#include "core/world/control_thread.hpp"

namespace mep {
namespace {

// Whether the comm's epoch advances when `value` is installed.
bool affects(const membership::Proposal& value, const WorldParticipant& comm) {
  const auto has = [&](uint32_t slot) { return comm.member_slots().has(slot); };
  return std::any_of(value.removed.begin(), value.removed.end(),
                     [&](const auto& removal) { return has(removal.slot); }) ||
         std::any_of(value.added.begin(), value.added.end(),
                     [&](const auto& member) { return has(member.slot); }) ||
         std::any_of(value.settled.begin(), value.settled.end(),
                     [&](const auto& settled) { return settled.comm == comm.comm_id(); }) ||
         std::find(value.revoked.begin(), value.revoked.end(), comm.comm_id()) !=
             value.revoked.end();
}

}  // namespace

void ControlThread::carry_out() {
  // Some actions are answered at once, which may give more of them.
  for (;;) {
    const std::vector<membership::Action> actions = membership_->take_actions();
    if (actions.empty()) return;
    for (const membership::Action& action : actions) {
      std::visit([this](const auto& each) { act(each); }, action);
    }
  }
}

void ControlThread::act(const membership::PushRow& action) {
  const std::vector<uint8_t> bytes = membership::encode_row(*action.row);
  const std::span<const std::byte> payload = std::as_bytes(std::span(bytes));
  action.to.each([&](uint32_t slot) { send(slot, kFrameRow, payload); });
}

void ControlThread::act(const membership::SendHeartbeat& action) {
  action.to.each([&](uint32_t slot) { send(slot, kFrameHeartbeat, {}); });
}

void ControlThread::act(const membership::Freeze& action) {
  note_evidence();
  times_.freeze_ns = now_ns();
  take_what_has_come();
  give_up_the_gone();
  std::vector<membership::ChannelState> channels;
  for (const auto& [id, client] : clients_) client->freeze(&channels);
  quiet_epoch_ = action.epoch;
  ask_for_quiet();
  times_.frozen_ns = now_ns();
  times_.agreed_ns = 0;
  membership_->on_frozen(action.epoch, std::move(channels));
}

// Evidence long before a change was of something else.
void ControlThread::note_evidence() {
  constexpr uint64_t kStaleNs = 10'000'000'000;
  const uint64_t now = now_ns();
  if (times_.evidence_ns == 0 || now - times_.evidence_ns > kStaleNs) times_.evidence_ns = now;
}

void ControlThread::note_agreed() {
  if (times_.agreed_ns == 0) times_.agreed_ns = now_ns();
}

void ControlThread::finish_times(uint64_t world_epoch) {
  times_.world_epoch = world_epoch;
  times_.installed_ns = now_ns();
  const auto us = [](uint64_t from_ns, uint64_t to_ns) {
    return from_ns == 0 || to_ns < from_ns ? 0ull : (to_ns - from_ns) / 1000ull;
  };
  log(LogLevel::kInfo,
      "view %llu: frozen %llu us after the first evidence, agreed in %llu us, fenced in %llu us, "
      "committed in %llu us, installed in %llu us",
      static_cast<unsigned long long>(world_epoch), us(times_.evidence_ns, times_.frozen_ns),
      us(times_.frozen_ns, times_.agreed_ns), us(times_.agreed_ns, times_.prepared_ns),
      us(times_.prepared_ns, times_.committed_ns), us(times_.committed_ns, times_.installed_ns));
}

void ControlThread::act(const membership::CatchUpReceive& action) {
  note_agreed();
  catch_up_items_ = action.items;
  catch_up_plan_ = action.plan;
  catch_up_pending_ = true;
  check_catch_up();
}

void ControlThread::check_catch_up() {
  if (!catch_up_pending_) return;
  for (const membership::CatchUpItem& item : catch_up_items_) {
    const WorldParticipant* comm = client(item.comm);
    if (comm == nullptr || !comm->is_replicated(item.channel)) continue;
    const auto it = caught_up_.find({item.comm, item.channel});
    if (it == caught_up_.end() || it->second < item.to_seq) return;
  }
  catch_up_pending_ = false;
  membership_->on_caught_up(catch_up_plan_);
}

void ControlThread::act(const membership::CatchUpSend& action) {
  note_agreed();
  MEP_FAILPOINT("catch-up");
  WorldParticipant* comm = client(action.comm);
  if (comm == nullptr || !comm->is_replicated(action.channel)) return;
  comm->give_catch_up(action.channel, action.from_seq, action.to_seq,
                      [&](uint64_t seq, uint32_t source, std::span<const std::byte> bytes) {
                        send(action.to, kFrameCatchUp,
                             encode_catch_up({action.comm, action.channel, seq, source, bytes}));
                      });
  send(action.to, kFrameCatchUpEnd,
       encode_catch_up_end({action.comm, action.channel, action.to_seq}));
}

// A process that is gone writes no more. One that may still run keeps only the old pages: the windows
// that it could write get new ones, and everybody else must have taken those before this rank agrees.
void ControlThread::act(const membership::FenceOut& action) {
  MEP_FAILPOINT("fence");
  WorldPeer& peer = peers_[action.slot];
  // Data that a process sent before its end may land after it.
  const bool late = peer.transport != nullptr && !peer.transport->traits().lands_at_once &&
                    peer.identity.incarnation == action.incarnation;
  if ((action.confirmed && !late) || peer.transport == nullptr) {
    membership_->on_fenced(action.slot, action.incarnation);
    return;
  }
  if (peer.transport->fence_out(action.slot) != MEP_SUCCESS) {
    log(LogLevel::kWarn, "cannot fence rank %u out: %s", action.slot, last_error_text());
  }
  if (action.excluded && (config_.flags & MEP_COMM_KILL_STOPPED) != 0 && peer.pidfd.valid()) {
    // It may be gone already; its descriptor tells, and nothing rests on it: the fence goes on.
    (void)syscall(SYS_pidfd_send_signal, peer.pidfd.get(), SIGKILL, nullptr, 0);
  }
  Fence fence{action.slot, action.incarnation, {}, Deadline::after_ms(config_.suspect_ms)};
  if (peer.transport->traits().renews_windows) {
    membership::SlotSet joiners;
    for (const auto& [slot, arrival] : arrivals_) joiners.add(slot);
    windows_.renew(action.slot, joiners, &fence.awaited, &broken_links_);
    // One that is not announced yet holds up its own admission, nobody else.
    for (auto it = fence.awaited.begin(); it != fence.awaited.end();) {
      const auto taker = it++;
      const auto arrival = arrivals_.find(taker->first.first);
      if (arrival == arrivals_.end() || arrival->second.announced) continue;
      arrival->second.untaken.insert(fence.awaited.extract(taker));
    }
  }
  fences_.push_back(std::move(fence));
  check_fences();
}

void ControlThread::check_fences() {
  std::vector<Fence> finished;
  std::erase_if(fences_, [&](Fence& fence) {
    std::erase_if(fence.awaited, [this, &fence](const auto& entry) {
      const uint32_t slot = entry.first.first;
      if (peers_[slot].link == nullptr || membership_->confirmed_dead(slot) ||
          membership_->row().suspected.has(slot)) {
        return true;
      }
      // Nobody suspects a joiner: one that stands still is sent away, and may come again.
      if (is_member(slot) || !fence.joiners_until.expired()) return false;
      broken_links_.add(slot);
      return true;
    });
    if (!fence.awaited.empty()) return false;
    finished.push_back(fence);
    return true;
  });
  for (const Fence& fence : finished) membership_->on_fenced(fence.slot, fence.incarnation);
}

void ControlThread::act(const membership::Prepare& action) {
  note_agreed();
  preparing_ = std::make_unique<membership::Prepare>(action);
  check_prepare();
}

void ControlThread::check_prepare() {
  if (preparing_ == nullptr || !drained()) return;
  const membership::Prepare action = std::move(*preparing_);
  preparing_.reset();
  for (const auto& [id, client] : clients_) {
    if (affects(*action.value, *client)) client->prepare();
  }
  membership_->on_prepared(action.token);
  times_.prepared_ns = now_ns();
}

void ControlThread::act(const membership::SendView& action) {
  const std::vector<uint8_t> bytes = membership::encode_view(*action.view);
  action.to.each([&](uint32_t slot) { send(slot, kFrameView, std::as_bytes(std::span(bytes))); });
}

// A member has left the view: its link ends, after what it still has to be told.
void ControlThread::part_with(const membership::Removal& removal, uint64_t epoch) {
  WorldPeer& peer = peers_[removal.slot];
  uint32_t state = MEP_PEER_EXCLUDED;
  if (removal.reason == membership::RemovalReason::kDied) state = MEP_PEER_DEAD;
  if (removal.reason == membership::RemovalReason::kLeft) state = MEP_PEER_LEFT;
  // Relaxed: see WorldPeer.
  peer.state.store(state, std::memory_order_relaxed);
  log(state == MEP_PEER_LEFT ? LogLevel::kInfo : LogLevel::kWarn,
      "rank %u is out of the view %llu: %s", removal.slot, static_cast<unsigned long long>(epoch),
      state == MEP_PEER_DEAD   ? "its process ended"
      : state == MEP_PEER_LEFT ? "it left"
                               : "excluded, not confirmed dead");
  if (gate_ != nullptr && gate_->book != nullptr) {
    gate_->book->forget(removal.slot, peer.identity.incarnation);
  }
  flush_links();
  end_link(removal.slot);
}

// A joiner that is in the view from now on.
void ControlThread::take_in(uint32_t slot, uint64_t epoch) {
  arrivals_.erase(slot);
  peers_[slot].is_joiner = false;
  // Relaxed: see WorldPeer.
  peers_[slot].state.store(MEP_PEER_ALIVE, std::memory_order_relaxed);
  log(LogLevel::kInfo, "rank %u is in the view %llu", slot, static_cast<unsigned long long>(epoch));
}

// Joiners that membership does not know of yet must not wait for who has gone.
void ControlThread::tell_joiners_of(const membership::View& view) {
  const std::vector<uint8_t> bytes = membership::encode_view(view);
  for (const auto& [slot, arrival] : arrivals_) {
    if (view.members.has(slot)) continue;
    send_comm_epochs(slot);
    send_peer_states(slot);
    if (!arrival.announced) send(slot, kFrameView, std::as_bytes(std::span(bytes)));
  }
}

void ControlThread::act(const membership::InstallView& action) {
  MEP_FAILPOINT("commit");
  times_.committed_ns = now_ns();
  catch_up_items_.clear();
  catch_up_pending_ = false;
  caught_up_.clear();
  fences_.clear();
  preparing_.reset();
  quiet_epoch_ = 0;
  membership::SlotSet kept = action.view->members;
  for (const membership::Member& member : action.decision->added) kept.remove(member.slot);
  closed_.keep(kept);
  publish_view();
  log(LogLevel::kDebug, "view %llu: %u members, %zu removed, %zu added, %zu settled, answers %llu",
      static_cast<unsigned long long>(action.view->epoch), action.view->members.count(),
      action.decision->removed.size(), action.decision->added.size(),
      action.decision->settled.size(), static_cast<unsigned long long>(action.recover_answered));
  for (const membership::Removal& removal : action.decision->removed) {
    part_with(removal, action.view->epoch);
  }
  for (const auto& [id, client] : clients_) {
    const auto affected = std::find_if(
        action.affected.begin(), action.affected.end(),
        [comm = id](const membership::AffectedComm& each) { return each.comm == comm; });
    client->install(action, affected == action.affected.end() ? nullptr : &*affected);
  }
  note_refused(*action.decision);
  tell_joiners_of(*action.view);
  Admission admission{{}, action.view};
  for (const membership::Member& member : action.decision->added) {
    admission.added.push_back(member.slot);
    take_in(member.slot, action.view->epoch);
  }
  if (action.joined || action.recover_answered != 0) {
    admissions_.answer(action.joined ? action.decision->recover_seq : action.recover_answered,
                       std::move(admission), action.joined);
  }
  windows_.wake();
  finish_times(action.view->epoch);
  view_.note_change(times_, static_cast<int32_t>(action.view->members.count()));
  times_ = {};
}

void ControlThread::act(const membership::SelfEvicted&) {
  log(LogLevel::kWarn, "the other members went on without this rank");
  end_world(MEP_ERR_EVICTED);
}

void ControlThread::act(const membership::NoQuorum&) {
  log(LogLevel::kWarn, "too few members are left to decide: no quorum");
  end_world(MEP_ERR_NO_QUORUM);
}

void ControlThread::act(const membership::JoinFailed&) {
  end_world(MEP_ERR_EVICTED);
}

void ControlThread::end_world(mep_result_t result) {
  end_.set(result);
  // Nothing that a peer still owes matters any more, and no thread may wait for it.
  for (const WorldPeer& peer : peers_) {
    if (peer.transport != nullptr) peer.transport->give_up(peer.identity.slot);
  }
  wake_all();
}

void ControlThread::close_world() {
  end_.set(MEP_ERR_ABORTED);
  wake_all();
}

void ControlThread::wake_all() {
  for (const auto& [id, client] : clients_) client->terminate();
  windows_.wake();
}

void ControlThread::act(const membership::PeerReport& action) {
  if (action.slot >= peers_.count()) return;
  WorldPeer& peer = peers_[action.slot];
  if (peer.identity.incarnation != action.incarnation) return;
  uint32_t state = MEP_PEER_ALIVE;
  switch (action.health) {
    case membership::PeerHealth::kHealthy:
      state = MEP_PEER_ALIVE;
      break;
    case membership::PeerHealth::kSlow:
      state = MEP_PEER_SLOW;
      break;
    case membership::PeerHealth::kAccused:
    case membership::PeerHealth::kSuspected:
      state = MEP_PEER_SUSPECT;
      break;
    case membership::PeerHealth::kDead:
      state = MEP_PEER_DEAD;
      break;
  }
  // Relaxed: see WorldPeer.
  peer.state.store(state, std::memory_order_relaxed);
}

void ControlThread::act(const membership::AskWitness& action) {
  if (witness_ != nullptr) witness_->ask(membership_->view(), action.epoch, action.digest);
}

}  // namespace mep

// Carries out what the membership state machine asks for.
#include <algorithm>

#include "base/failpoint.hpp"
#include "base/log.hpp"
#include "core/world/control_thread.hpp"
#include "core/world/frames.hpp"

namespace mep {

void ControlThread::carry_out() {
  // Some actions are answered at once, which may give more of them.
  for (;;) {
    const std::vector<membership::Action> actions = membership_->take_actions();
    if (actions.empty()) return;
    for (const membership::Action& action : actions) {
      std::visit(
          [this](const auto& each) {
            if constexpr (requires { change_->act(each); }) {
              change_->act(each);
            } else {
              act(each);
            }
          },
          action);
    }
  }
}

void ControlThread::act(const membership::PushRow& action) {
  const std::vector<uint8_t> bytes = membership::encode_row(*action.row);
  const std::span<const std::byte> payload = std::as_bytes(std::span(bytes));
  action.to.each([&](uint32_t slot) { links_.send(slot, kFrameRow, payload); });
}

void ControlThread::act(const membership::SendHeartbeat& action) {
  action.to.each([&](uint32_t slot) { links_.send(slot, kFrameHeartbeat, {}); });
}

void ControlThread::act(const membership::SendView& action) {
  const std::vector<uint8_t> bytes = membership::encode_view(*action.view);
  action.to.each(
      [&](uint32_t slot) { links_.send(slot, kFrameView, std::as_bytes(std::span(bytes))); });
}

// A member has left the view: its link ends, after what it still has to be told.
void ControlThread::part_with(const membership::Removal& removal, uint64_t epoch) {
  uint32_t state = MEP_PEER_EXCLUDED;
  if (removal.reason == membership::RemovalReason::kDied) state = MEP_PEER_DEAD;
  if (removal.reason == membership::RemovalReason::kLeft) state = MEP_PEER_LEFT;
  // Relaxed: see WorldPeer.
  peers_[removal.slot].state.store(state, std::memory_order_relaxed);
  log(state == MEP_PEER_LEFT ? LogLevel::kInfo : LogLevel::kWarn,
      "rank %u is out of the view %llu: %s", removal.slot, static_cast<unsigned long long>(epoch),
      state == MEP_PEER_DEAD   ? "its process ended"
      : state == MEP_PEER_LEFT ? "it left"
                               : "excluded, not confirmed dead");
  joiners_->strike_out(removal.slot);
  links_.flush();
  end_link(removal.slot);
}

// Members have a link to each joiner that they admit, and those that they admit together to each other. One may have broken
// on its way into the view: neither end would ever have the other's windows.
void ControlThread::note_unlinked(const membership::Member& member) {
  const WorldPeer& peer = peers_[member.slot];
  const bool is_linked = peer.link != nullptr && peer.identity.incarnation == member.incarnation;
  if (is_linked || member.slot == peers_.self_slot()) return;
  membership_->on_connection_lost(member.slot, member.incarnation);
}

void ControlThread::act(const membership::InstallView& action) {
  MEP_FAILPOINT("commit");
  change_->commit();
  membership::SlotSet kept = action.view->members;
  for (const membership::Member& member : action.decision->added) kept.remove(member.slot);
  leaving_->keep(kept);
  view_.publish(membership_->view_ptr());
  log(LogLevel::kDebug, "view %llu: %u members, %zu removed, %zu added, %zu settled, answers %llu",
      static_cast<unsigned long long>(action.view->epoch), action.view->members.count(),
      action.decision->removed.size(), action.decision->added.size(),
      action.decision->settled.size(), static_cast<unsigned long long>(action.recover_answered));
  for (const membership::Removal& removal : action.decision->removed) {
    part_with(removal, action.view->epoch);
  }
  peers_.count_lingering(*action.view);
  for (const auto& [id, comm] : participants_) {
    const auto affected =
        std::find_if(action.affected.begin(), action.affected.end(),
                     [id = id](const membership::AffectedComm& each) { return each.comm == id; });
    comm->install(action, affected == action.affected.end() ? nullptr : &*affected,
                  !participants_.is_outgrown(*comm));
  }
  participants_.note_refused(*action.decision);
  joiners_->tell_of(*action.view);
  Admission admission{{}, action.view};
  for (const membership::Member& member : action.decision->added) {
    admission.added.push_back(member.slot);
    joiners_->take_in(member.slot, action.view->epoch);
    note_unlinked(member);
  }
  if (action.joined || action.recover_answered != 0) {
    admissions_.answer(action.joined ? action.decision->recover_seq : action.recover_answered,
                       std::move(admission), action.joined);
  }
  windows_.wake();
  change_->finish(action.view->epoch);
  view_.note_change(action.view->epoch, static_cast<int32_t>(action.view->members.count()));
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

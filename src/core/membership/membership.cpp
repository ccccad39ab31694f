// Construction, comms and requests of the membership state machine; the rest is in evidence, links,
// propose, catch-up, progress, install and join.
#include "core/membership/membership.hpp"

#include <algorithm>

namespace mep::membership {

Membership::Membership(Start start)
    : config_(start.config),
      mutations_(start.mutations),
      max_slots_(std::min(start.max_slots, kMaxSlots)),
      slot_(start.slot),
      incarnation_(start.incarnation),
      now_us_(start.now_us),
      phase_(start.joining ? Phase::kJoining : Phase::kStable),
      peers_(max_slots_),
      ticked_us_(start.now_us),
      heartbeat_us_(start.now_us),
      progress_us_(start.now_us) {
  row_.slot = slot_;
  row_.incarnation = incarnation_;
  row_.epoch = start.view.epoch;
  row_.standing = start.joining ? Standing::kJoining : Standing::kMember;
  start.view.members.each([&](uint32_t slot) {
    if (slot >= max_slots_ || slot == slot_) return;
    peers_[slot].incarnation = start.view.incarnation(slot);
    peers_[slot].heard_us = now_us_;
    peers_[slot].is_sibling = start.siblings.has(slot);
  });
  view_ = std::make_shared<const View>(std::move(start.view));
}

void Membership::on_comm_created(uint64_t comm, uint64_t comm_epoch, const SlotSet& members) {
  comms_[comm] = Comm{comm_epoch, members};
}

void Membership::on_comm_destroyed(uint64_t comm) {
  comms_.erase(comm);
  std::erase_if(row_.settle, [&](const Settlement& settle) { return settle.comm == comm; });
  std::erase(row_.revoke, comm);
}

uint64_t Membership::comm_epoch(uint64_t comm) const {
  const auto found = comms_.find(comm);
  return found == comms_.end() ? 0 : found->second.epoch;
}

void Membership::on_deadline(uint64_t comm, uint64_t channel, uint64_t epoch) {
  if (!active() || comm_epoch(comm) != epoch || epoch == 0) return;
  const Settlement settle{comm, channel, epoch};
  if (std::find(row_.settle.begin(), row_.settle.end(), settle) != row_.settle.end()) return;
  row_.settle.push_back(settle);
  touch();
}

void Membership::on_revoke(uint64_t comm) {
  if (!active() || comm_epoch(comm) == 0) return;
  if (std::find(row_.revoke.begin(), row_.revoke.end(), comm) != row_.revoke.end()) return;
  row_.revoke.push_back(comm);
  touch();
}

std::vector<Action> Membership::take_actions() {
  if (active() && step_due_) {
    step_due_ = false;
    health_due_ = true;
    step();
    if (active()) publish({});
  }
  if (active() && health_due_) {
    health_due_ = false;
    report_health();
  }
  std::vector<Action> actions;
  actions.swap(actions_);
  return actions;
}

}  // namespace mep::membership

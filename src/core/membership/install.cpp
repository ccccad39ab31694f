// Following a committed value, and the row that says so. A value is followed only from the row of a
// sender that is not suspected here; that one was left out of a view is believed of any member.
#include <algorithm>

#include "core/membership/membership.hpp"

namespace mep::membership {

void View::put(const Member& member) {
  members.add(member.slot);
  if (incarnations.size() <= member.slot) incarnations.resize(member.slot + 1, 0);
  if (hosts.size() <= member.slot) hosts.resize(member.slot + 1, 0);
  incarnations[member.slot] = member.incarnation;
  hosts[member.slot] = member.host;
}

void View::drop(uint32_t slot) {
  members.remove(slot);
  if (slot < incarnations.size()) incarnations[slot] = 0;
  if (slot < hosts.size()) hosts[slot] = 0;
}

void Membership::look_for_committed() {
  const auto once = [this] {
    for (uint32_t slot = view_->members.next(0); slot != kNoSlot;
         slot = view_->members.next(slot + 1)) {
      const RowPtr row = slot == slot_ ? nullptr : peers_[slot].row;
      if (row != nullptr && row->epoch > view_->epoch && follow(*row, !row_.suspected.has(slot)))
        return true;
    }
    for (const auto& [slot, entry] : joiners_) {
      const RowPtr row = entry.row;
      if (row != nullptr && row->epoch > view_->epoch && row->standing != Standing::kJoining &&
          follow(*row, !row_.suspected.has(row->slot)))
        return true;
    }
    return false;
  };
  while (active() && once()) {
  }
}

// True if the view has changed, or this rank is out.
bool Membership::follow(const Row& row, bool trusted) {
  const ProposalPtr value = row.committed;
  if (value == nullptr || value->epoch != row.epoch) return false;
  const bool next = row.epoch == view_->epoch + 1;
  // The lead waits for every member that it does not suspect, so a value that was committed without
  // this rank's acceptance means that it is being removed; it also lacks the catch-up.
  const bool accepted = row_.accepted.value != nullptr && row_.accepted.value->same_value(*value);
  if (phase_ == Phase::kJoining) {
    if (!next || !trusted) return false;
    const auto same_slot = [&](const Member& member) { return member.slot == slot_; };
    const auto mine = std::find_if(value->added.begin(), value->added.end(), same_slot);
    if (mine == value->added.end()) {
      start_epoch(next_view(*value), value);
    } else if (mine->incarnation == incarnation_ && accepted) {
      install(value);
    } else {
      phase_ = Phase::kEvicted;
      give(JoinFailed{});
    }
    return true;
  }
  if (!next || !value->members.has(slot_)) {
    // A member takes part in each change up to its removal, so being two behind is being out.
    be_evicted(row.epoch);
    return true;
  }
  if (!trusted) return false;
  if (accepted) {
    install(value);
  } else {
    be_evicted(row.epoch);
  }
  return true;
}

std::shared_ptr<const View> Membership::next_view(const Proposal& value) const {
  auto view = std::make_shared<View>(*view_);
  view->epoch = value.epoch;
  (view_->members - value.members).each([&](uint32_t slot) { view->drop(slot); });
  for (const Member& member : value.added)
    if (member.slot < max_slots_) view->put(member);
  return view;
}

std::vector<AffectedComm> Membership::affected_comms(const Proposal& value,
                                                     const SlotSet& changed) {
  std::vector<AffectedComm> affected;
  for (auto& [id, comm] : comms_) {
    uint32_t why = comm.members.intersects(changed) ? kAffectedByMembers : 0u;
    for (const Settlement& settle : value.settled)
      if (settle.comm == id && settle.comm_epoch == comm.epoch) why |= kAffectedByDeadline;
    for (const uint64_t revoked : value.revoked)
      if (revoked == id) why |= kAffectedByRevoke;
    if (why == 0) continue;
    ++comm.epoch;
    affected.push_back({id, comm.epoch, why});
  }
  return affected;
}

void Membership::install(const ProposalPtr& value) {
  const bool joined = phase_ == Phase::kJoining;
  const std::shared_ptr<const View> view = next_view(*value);
  const SlotSet removed = view_->members - view->members;
  SlotSet changed = removed;
  for (const Member& member : value->added) changed.add(member.slot);
  std::vector<AffectedComm> affected = affected_comms(*value, changed);
  phase_ = Phase::kStable;
  row_.standing = Standing::kMember;
  start_epoch(view, value);
  publish(removed);
  give(InstallView{view, value, std::move(affected), joined, value->recover_seq});
  SlotSet waiting;
  for (const auto& [slot, entry] : joiners_)
    if (!entry.gone && !entry.confirmed) waiting.add(slot);
  if (!waiting.empty()) give(SendView{view, waiting});
}

// A member that the installed view has and the one before had not: what was known of the joiner stays.
void Membership::take_in(uint32_t slot) {
  Peer& peer = peers_[slot] = Peer{};
  peer.incarnation = view_->incarnation(slot);
  peer.heard_us = peer.really_heard_us = now_us_;
  const auto known = joiners_.find(slot);
  if (known == joiners_.end()) return;
  const Joiner entry = known->second;
  joiners_.erase(known);
  if (entry.member.incarnation != peer.incarnation) return;
  peer.row = entry.row;
  if (entry.gone) row_.link_down.add(slot);
  if (entry.confirmed) {
    row_.dead.add(slot);
    confirm(slot, RemovalReason::kDied);
  }
}

// Drops all that this rank kept for the change that is over.
void Membership::forget_change() {
  offered_joiners_.clear();
  accusations_.clear();
  catch_up_value_ = nullptr;
  catch_up_items_.clear();
  catch_up_complete_ = false;
  served_.clear();
  published_.donor = false;
  published_.dead.clear();
  prepare_value_ = nullptr;
  prepared_ = false;
  witness_asked_ = 0;
  witness_digest_ = 0;
  no_quorum_since_us_ = 0;
  stuck_since_us_ = 0;
  progress_us_ = now_us_;
}

// Everything that belongs to the old view goes; what names slots keeps the members that remain.
void Membership::start_epoch(const std::shared_ptr<const View>& view, const ProposalPtr& value) {
  SlotSet kept = view->members;
  view_->members.each([&](uint32_t slot) {
    // A joiner may skip views, so a slot may have a successor at once.
    if (view->incarnation(slot) == view_->incarnation(slot)) return;
    kept.remove(slot);
    if (slot != slot_) peers_[slot] = Peer{};
  });
  view_ = view;
  std::erase_if(row_.reasons, [&](const Statement& reason) { return !kept.has(reason.slot); });
  for (SlotSet* set : {&row_.dead, &row_.left, &row_.gave_up, &row_.link_down, &row_.silent,
                       &row_.evict, &row_.suspected, &confirmed_})
    *set &= kept;
  view->members.each([&](uint32_t slot) {
    if (slot != slot_ && peers_[slot].incarnation != view->incarnation(slot)) take_in(slot);
  });
  joiners_.erase(slot_);
  row_.epoch = view->epoch;
  row_.round = 0;
  row_.frozen = false;
  row_.comms.clear();
  row_.channels.clear();
  row_.offer = {};
  row_.accepted = {};
  row_.catch_up.clear();
  row_.committed = value;
  if (value != nullptr && value->recover_seq >= row_.recover_seq) {
    row_.recover_seq = 0;
    row_.recover_expired = false;
    row_.recover_wanted.clear();
  }
  const auto answered = [&](const Settlement& settle) {
    return comm_epoch(settle.comm) != settle.comm_epoch;
  };
  std::erase_if(row_.settle, answered);
  if (value != nullptr) {
    std::erase_if(row_.revoke, [&](uint64_t comm) {
      return std::binary_search(value->revoked.begin(), value->revoked.end(), comm);
    });
  }
  forget_change();
  new_rows_ = view->members;
  again_ = true;
  touch();
}

// It says so: whoever still counts on this rank need not wait for its silence.
void Membership::be_evicted(uint64_t epoch) {
  if (row_.standing == Standing::kMember) row_.standing = Standing::kGaveUp;
  touch();
  publish({});
  phase_ = Phase::kEvicted;
  give(SelfEvicted{epoch});
}

// This rank led an earlier value to its commit that leaves it out: it says so and is gone.
void Membership::end_with_value(const ProposalPtr& value) {
  row_.committed = value;
  row_.epoch = value->epoch;
  row_.standing = Standing::kLeft;
  touch();
  publish(value->members);
  be_evicted(value->epoch);
}

}  // namespace mep::membership

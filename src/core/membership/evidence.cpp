// Evidence: what this rank knows of its peers, and how that becomes suspicion or confirmation. Confirmation has three
// sources only: an exit seen here, one seen by a member on the victim's host, the victim's own last row. Every event
// names an incarnation; another one than the present changes nothing.
#include <algorithm>

#include "core/membership/membership.hpp"

namespace mep::membership {

bool Membership::same_incarnation(uint32_t slot, uint64_t incarnation) const {
  if (slot >= max_slots_ || slot == slot_ || !view_->members.has(slot)) return false;
  return mutations_.ignore_incarnation || peers_[slot].incarnation == incarnation;
}

Membership::Joiner* Membership::joiner(uint32_t slot, uint64_t incarnation) {
  const auto found = joiners_.find(slot);
  if (found == joiners_.end() || found->second.member.incarnation != incarnation) return nullptr;
  return &found->second;
}

const Row* Membership::present_row(uint32_t slot) const {
  if (slot == slot_) return view_->members.has(slot) ? &row_ : nullptr;
  if (slot >= max_slots_ || !view_->members.has(slot)) return nullptr;
  const Row* row = peers_[slot].row.get();
  if (row == nullptr || row->epoch != view_->epoch || row->standing != Standing::kMember)
    return nullptr;
  return row;
}

const Row* Membership::usable_row(uint32_t slot) const {
  return row_.suspected.has(slot) ? nullptr : present_row(slot);
}

const Row* Membership::joiner_row(uint32_t slot, uint64_t incarnation) const {
  if (slot == slot_ && incarnation == incarnation_) return &row_;
  const auto found = joiners_.find(slot);
  if (found == joiners_.end() || found->second.member.incarnation != incarnation) return nullptr;
  const Row* row = found->second.row.get();
  const bool usable = row != nullptr && row->epoch == view_->epoch &&
                      row->standing == Standing::kJoining && !row_.suspected.has(slot);
  return usable ? row : nullptr;
}

void Membership::note_heard(uint32_t slot, uint64_t incarnation) {
  if (same_incarnation(slot, incarnation)) {
    peers_[slot].heard_us = now_us_;
    peers_[slot].really_heard_us = now_us_;
    if (row_.silent.has(slot)) {
      row_.silent.remove(slot);
      touch();
    }
  } else if (Joiner* found = joiner(slot, incarnation)) {
    found->heard_us = now_us_;
  }
}

void Membership::on_heartbeat(uint32_t slot, uint64_t incarnation) {
  if (active()) note_heard(slot, incarnation);
}

void Membership::on_row(RowPtr row) {
  if (!active() || row == nullptr || row->slot >= max_slots_ || row->slot == slot_) return;
  step_due_ = true;
  note_heard(row->slot, row->incarnation);
  const uint32_t slot = row->slot;
  if (view_->members.has(slot) && peers_[slot].incarnation == row->incarnation) {
    Peer& peer = peers_[slot];
    if (peer.row != nullptr && peer.row->version >= row->version) return;
    peer.row = std::move(row);
    new_rows_.add(slot);
    return;
  }
  if (row->epoch < view_->epoch && row->standing == Standing::kMember) tell_left_behind(slot);
  // Not of this view: a joiner, perhaps announced later, perhaps in a view that is ahead of ours.
  Joiner& entry = joiners_[slot];
  if (entry.member.incarnation != row->incarnation) {
    if (view_->members.has(slot) && row->standing != Standing::kJoining &&
        row->epoch <= view_->epoch) {
      if (entry.member.incarnation == 0) joiners_.erase(slot);
      return;  // an old incarnation
    }
    if (entry.member.incarnation != 0 && !entry.gone && !entry.confirmed) return;
    entry = Joiner{};
    entry.member = {slot, row->incarnation, 0};
    entry.heard_us = now_us_;
  }
  if (entry.row == nullptr || entry.row->version < row->version) entry.row = std::move(row);
}

void Membership::on_process_exit(uint32_t slot, uint64_t incarnation) {
  if (!active()) return;
  // The process's last statement comes first: a value that it has committed is believed of nobody who is suspected,
  // and without its sender too few may be left to find that value again.
  look_for_committed();
  if (!active()) return;
  if (same_incarnation(slot, incarnation)) {
    if (!row_.dead.has(slot)) {
      row_.dead.add(slot);
      touch();
    }
    confirm(slot, RemovalReason::kDied);
  } else {
    on_joiner_gone(slot, incarnation, true);
  }
}

void Membership::on_connection_lost(uint32_t slot, uint64_t incarnation) {
  if (!active()) return;
  if (same_incarnation(slot, incarnation)) {
    if (mutations_.suspected_is_confirmed) confirm(slot, RemovalReason::kDied);
    if (!row_.link_down.has(slot)) {
      row_.link_down.add(slot);
      touch();
    }
  } else {
    on_joiner_gone(slot, incarnation, false);
  }
}

// Something of a process that was removed, and whose links did not tell it so.
void Membership::tell_left_behind(uint32_t slot) {
  SlotSet to;
  to.add(slot);
  if (row_.version > 0 && row_.committed != nullptr)
    give(PushRow{std::make_shared<const Row>(row_), std::move(to)});
}

void Membership::on_connection_up(uint32_t slot, uint64_t incarnation) {
  if (!active() || slot >= max_slots_ || slot == slot_) return;
  if (!same_incarnation(slot, incarnation)) {
    if (joiner(slot, incarnation) == nullptr) tell_left_behind(slot);
    return;
  }
  if (!row_.suspected.has(slot)) row_.link_down.remove(slot);
  published_.accused_to.add(slot);  // it may have missed a row that withdrew one
  note_heard(slot, incarnation);
  touch();
}

void Membership::on_evict(uint32_t slot, uint64_t incarnation) {
  if (!active() || !same_incarnation(slot, incarnation)) return;
  row_.evict.add(slot);
  new_rows_.add(slot_);
  touch();
}

void Membership::confirm(uint32_t slot, RemovalReason reason) {
  if (slot == slot_ || !view_->members.has(slot)) return;
  const bool own_statement = reason == RemovalReason::kLeft || reason == RemovalReason::kGaveUp;
  if (!confirmed_.has(slot)) {
    confirmed_.add(slot);
    suspect(slot, reason);
    peers_[slot].reason = reason;
    touch();
    again_ = true;
  }
  if (own_statement) peers_[slot].reason = reason;
}

bool Membership::suspect(uint32_t slot, RemovalReason reason) {
  if (row_.suspected.has(slot)) return false;
  row_.suspected.add(slot);
  if (slot != slot_ && view_->members.has(slot)) peers_[slot].reason = reason;
  touch();
  again_ = true;
  return true;
}

// Deaths and leaves that a member states; all of them name the view of the row.
void Membership::read_statements(const Row& row) {
  const uint64_t host = view_->host(row.slot);
  const auto state = [&](const SlotSet& slots, RemovalReason reason) {
    slots.each([&](uint32_t slot) {
      if (slot == slot_ || !view_->members.has(slot) || confirmed_.has(slot)) return;
      if (view_->host(slot) == host) {
        confirm(slot, reason);
      } else if (!row_.suspected.has(row.slot)) {
        suspect(slot, reason);
      }
    });
  };
  if (!row.left.empty()) state(row.left, RemovalReason::kLeft);
  if (!row.gave_up.empty()) state(row.gave_up, RemovalReason::kGaveUp);
  if (!row.dead.empty()) state(row.dead, RemovalReason::kDied);
}

void Membership::learn_from(const Row& row) {
  if (row.round == row_.round && !row_.suspected.contains(row.suspected)) {
    row.suspected.each([&](uint32_t slot) {
      const bool known = view_->members.has(slot) || joiners_.contains(slot) || slot == slot_;
      if (known && slot < max_slots_) suspect(slot, RemovalReason::kUnreachable);
    });
  }
  // Whether a quorum is left depends on the order of requests: a joiner waits for what members
  // make of them.
  if (!row.evict.empty() && phase_ != Phase::kJoining) {
    row.evict.each([&](uint32_t slot) {
      if (!view_->members.has(slot) || row_.suspected.has(slot)) return;
      SlotSet rest = live();
      rest.remove(slot);
      if (quorum(rest) != Quorum::kNo) suspect(slot, RemovalReason::kEvicted);
    });
  }
}

void Membership::gather_evidence() {
  const SlotSet rows = new_rows_;
  new_rows_.clear();
  uint32_t highest_round = row_.round;
  rows.each([&](uint32_t slot) {
    if (slot == slot_ || !view_->members.has(slot)) return;
    const Row* row = peers_[slot].row.get();
    if (row == nullptr) return;
    if (row->standing == Standing::kLeft || row->standing == Standing::kGaveUp) {
      const bool left = row->standing == Standing::kLeft;
      SlotSet& seen = left ? row_.left : row_.gave_up;
      if (!seen.has(slot)) {
        seen.add(slot);
        for (const Statement& reason : row->reasons)
          if (reason.slot == slot) row_.reasons.push_back(reason);
        touch();
      }
      confirm(slot, left ? RemovalReason::kLeft : RemovalReason::kGaveUp);
    }
    if (row->epoch == view_->epoch) {
      highest_round = std::max(highest_round, row->round);
      read_statements(*row);
    }
  });
  if (highest_round > row_.round) {
    new_round(highest_round);
    return;
  }
  rows.each([&](uint32_t slot) {
    if (const Row* row = usable_row(slot)) learn_from(*row);
  });
  if (phase_ == Phase::kJoining) return;
  suspect_lost_joiners();
  judge_links();
}

// A joiner that is part of a value under way but lost here is waited for no more.
void Membership::suspect_lost_joiners() {
  if (phase_ != Phase::kChanging) return;
  const Row* lead = usable_row(live().lowest());
  if (lead == nullptr || lead->offer.value == nullptr) return;
  for (const Member& member : lead->offer.value->added) {
    const Joiner* found = joiner(member.slot, member.incarnation);
    if (found == nullptr || found->gone || found->confirmed ||
        now_us_ > found->heard_us + config_.accuse_after_us) {
      suspect(member.slot, RemovalReason::kUnreachable);
    }
  }
}

void Membership::forgive_gap(uint64_t gap_us) {
  for (Peer& peer : peers_) peer.heard_us += gap_us;
  for (auto& [slot, entry] : joiners_) entry.heard_us += gap_us;
  for (auto& [pair, accusation] : accusations_) {
    accusation.since_us += gap_us;
    accusation.alone_since_us += gap_us;
  }
  accused_us_ += gap_us;
  if (no_quorum_since_us_ != 0) no_quorum_since_us_ += gap_us;
  if (stuck_since_us_ != 0) stuck_since_us_ += gap_us;
  progress_us_ += gap_us;
}

void Membership::update_silence() {
  const uint64_t limit = config_.accuse_after_us * (2 + health_steps_) / 2;
  view_->members.each([&](uint32_t slot) {
    if (slot == slot_ || row_.silent.has(slot) || row_.suspected.has(slot)) return;
    if (peers_[slot].is_sibling) return;
    const bool has_begun = peers_[slot].really_heard_us != 0;
    if (now_us_ <= peers_[slot].heard_us + (has_begun ? limit : limit * config_.start_factor))
      return;
    row_.silent.add(slot);
    touch();
  });
}

void Membership::tick(uint64_t now_us) {
  if (!active() || now_us < now_us_) return;
  now_us_ = now_us;
  health_due_ = true;
  const uint64_t gap_us = now_us_ - ticked_us_;
  ticked_us_ = now_us_;
  if (gap_us > config_.late_tick_us && !mutations_.accuse_when_late) {
    // This rank was not scheduled: what its peers sent meanwhile may still wait to be read.
    forgive_gap(gap_us);
    health_steps_ = std::min(health_steps_ + 1, config_.max_health_steps);
    healthy_ticks_ = 0;
  } else {
    if (health_steps_ > 0 && ++healthy_ticks_ >= config_.healthy_ticks_per_step) {
      --health_steps_;
      healthy_ticks_ = 0;
    }
    update_silence();
    watch_quorum();
    watch_progress();
  }
  // Time passes for what waits: held accusations, a change under way.
  if (!accusations_.empty() || phase_ != Phase::kStable) step_due_ = true;
  if (row_.recover_seq != 0 && !row_.recover_expired && now_us_ >= recover_deadline_us_) {
    row_.recover_expired = true;
    touch();
  }
  if (active() && now_us_ >= heartbeat_us_ + config_.heartbeat_interval_us) {
    heartbeat_us_ = now_us_;
    give(SendHeartbeat{audience()});
  }
}

uint64_t Membership::next_tick_us() const {
  return active() ? heartbeat_us_ + config_.heartbeat_interval_us : UINT64_MAX;
}

}  // namespace mep::membership

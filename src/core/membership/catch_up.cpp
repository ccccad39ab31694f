// Between an offer and its acceptance a member gets what it lacks up to N*, has the excluded fenced out, and
// prepares. All of it belongs to a value, not to a ballot: a value that comes back under a higher ballot needs
// nothing again, unless a donor was lost.
#include <algorithm>

#include "core/membership/membership.hpp"

namespace mep::membership {

bool Membership::ready_to_accept(const ProposalPtr& value) {
  const bool flushed = catch_up_done(value) || mutations_.ack_before_catch_up;
  const bool fenced = fences_done(*value) || mutations_.ack_before_fence;
  return flushed && fenced && prepare_done(value);
}

// Up to which seq a frozen member has the results of a channel: what it had done, and what it was
// given for a value that it has accepted. Nothing if the channel is none of its own.
std::optional<uint64_t> Membership::HeldTables::up_to(const Row& row, uint64_t comm,
                                                      uint64_t channel) {
  const auto index = indices_.try_emplace(&row, row.channels).first;
  const ChannelState* state = index->second.find(row.channels, comm, channel);
  if (state == nullptr) return std::nullopt;
  uint64_t held = state->done;
  if (row.accepted.value != nullptr && row.accepted.value->epoch == epoch_) {
    const ChannelDecision* decision = row.accepted.value->decision(comm, channel);
    if (decision != nullptr) held = std::max(held, decision->last_completed);
  }
  return held;
}

uint32_t Membership::donor_for(const ChannelDecision& decision, HeldTables* tables) const {
  const auto holds = [&](uint32_t slot) {
    const Row* row = slot == slot_ ? nullptr : usable_row(slot);
    return row != nullptr && row->frozen &&
           tables->up_to(*row, decision.comm, decision.channel).value_or(0) >=
               decision.last_completed;
  };
  if (decision.donor < max_slots_ && holds(decision.donor)) return decision.donor;
  uint32_t found = kNoSlot;
  live().each([&](uint32_t slot) {
    if (found == kNoSlot && holds(slot)) found = slot;
  });
  return found;
}

bool Membership::catch_up_done(const ProposalPtr& value) {
  const bool same = catch_up_value_ != nullptr && catch_up_value_->same_value(*value);
  if (same && catch_up_complete_) return true;
  std::vector<CatchUpItem> items;
  bool donors = true;
  HeldTables tables(view_->epoch + 1);
  for (const ChannelState& state : row_.channels) {
    const ChannelDecision* decision = value->decision(state.comm, state.channel);
    if (decision == nullptr) continue;
    const uint64_t held = tables.up_to(row_, state.comm, state.channel).value_or(state.done);
    if (decision->last_completed <= held) continue;
    const uint32_t donor = donor_for(*decision, &tables);
    donors = donors && donor != kNoSlot;
    items.push_back({state.comm, state.channel, held + 1, decision->last_completed, donor});
  }
  if (same && (items == catch_up_items_ || !donors)) return false;
  if (!donors) return false;  // the row of one that holds it is still to come
  catch_up_value_ = value;
  catch_up_items_ = items;
  ++catch_up_plan_;
  catch_up_complete_ = items.empty();
  if (!(row_.catch_up == items)) {
    row_.catch_up = items;
    touch();
  }
  if (!items.empty()) give(CatchUpReceive{catch_up_plan_, std::move(items)});
  return catch_up_complete_;
}

void Membership::on_caught_up(uint64_t plan) {
  if (!active() || catch_up_value_ == nullptr || plan != catch_up_plan_) return;
  catch_up_complete_ = true;
  step_due_ = true;
}

void Membership::serve_catch_up() {
  live().each([&](uint32_t slot) {
    const Row* row = slot == slot_ ? nullptr : usable_row(slot);
    if (row == nullptr || row->catch_up.empty() || !row->frozen) return;
    for (const CatchUpItem& item : row->catch_up) {
      if (item.donor != slot_) continue;
      if (!served_.insert({slot, item}).second) continue;
      give(CatchUpSend{slot, item.comm, item.channel, item.from_seq, item.to_seq});
    }
  });
}

// Another member may know of the rank's own statement, or of its death, before this one does.
bool Membership::is_excluded(const Proposal& value, uint32_t slot) {
  return std::any_of(value.removed.begin(), value.removed.end(), [&](const Removal& removal) {
    return removal.slot == slot && removal.reason != RemovalReason::kDied &&
           removal.reason != RemovalReason::kLeft && removal.reason != RemovalReason::kGaveUp;
  });
}

bool Membership::fences_done(const Proposal& value) {
  bool done = true;
  (view_->members - value.members).each([&](uint32_t slot) {
    if (slot == slot_) return;
    Peer& peer = peers_[slot];
    const bool confirmed = confirmed_.has(slot);
    if (!peer.fence_asked || (!peer.fenced && confirmed && !peer.fence_confirmed)) {
      peer.fence_asked = true;
      peer.fence_confirmed = confirmed;
      give(FenceOut{slot, peer.incarnation, confirmed, !confirmed && is_excluded(value, slot)});
    }
    done = done && peer.fenced;
  });
  return done;
}

void Membership::on_fenced(uint32_t slot, uint64_t incarnation) {
  if (!active() || !same_incarnation(slot, incarnation) || !peers_[slot].fence_asked) return;
  peers_[slot].fenced = true;
  step_due_ = true;
}

bool Membership::prepare_done(const ProposalPtr& value) {
  if (prepare_value_ == nullptr || !prepare_value_->same_value(*value)) {
    prepare_value_ = value;
    prepared_ = false;
    give(Prepare{++prepare_token_, value});
  }
  return prepared_;
}

void Membership::on_prepared(uint64_t token) {
  if (!active() || prepare_value_ == nullptr || token != prepare_token_) return;
  prepared_ = true;
  step_due_ = true;
}

}  // namespace mep::membership

// What a member does between an offer and its acceptance: get what it lacks up to N*, have the
// excluded fenced out, prepare. All of it belongs to a value, not to a ballot: a value that comes
// back under a higher ballot needs nothing again, unless a donor was lost.
#include <algorithm>

#include "core/membership/membership.hpp"

namespace mep::membership {

bool Membership::ready_to_accept(const ProposalPtr& value) {
  const bool flushed = flush_done(value) || mutations_.ack_before_flush;
  const bool fenced = fences_done(*value) || mutations_.ack_before_fence;
  return flushed && fenced && prepare_done(value);
}

// Up to which seq a wedged member has the results of a channel: what it had done, and what it was
// given for a value that it has accepted. Nothing if the channel is none of its own.
std::optional<uint64_t> Membership::HeldTables::up_to(const Row& row, uint64_t comm,
                                                      uint64_t channel) {
  const auto index = indices_.try_emplace(&row, row.channels).first;
  const ChannelState* state = index->second.find(row.channels, comm, channel);
  if (state == nullptr) return std::nullopt;
  uint64_t held = state->done;
  if (row.accepted.value != nullptr && row.accepted.value->epoch == epoch_) {
    const ChannelVerdict* verdict = row.accepted.value->verdict(comm, channel);
    if (verdict != nullptr) held = std::max(held, verdict->n_star);
  }
  return held;
}

uint32_t Membership::donor_for(const ChannelVerdict& verdict, HeldTables* tables) const {
  const auto holds = [&](uint32_t slot) {
    const Row* row = slot == slot_ ? nullptr : usable_row(slot);
    return row != nullptr && row->wedged &&
           tables->up_to(*row, verdict.comm, verdict.channel).value_or(0) >= verdict.n_star;
  };
  if (verdict.donor < max_slots_ && holds(verdict.donor)) return verdict.donor;
  uint32_t found = kNoSlot;
  live().each([&](uint32_t slot) {
    if (found == kNoSlot && holds(slot)) found = slot;
  });
  return found;
}

bool Membership::flush_done(const ProposalPtr& value) {
  const bool same = flush_value_ != nullptr && flush_value_->same_value(*value);
  if (same && flush_complete_) return true;
  std::vector<FlushItem> items;
  bool donors = true;
  HeldTables tables(view_->epoch + 1);
  for (const ChannelState& state : row_.channels) {
    const ChannelVerdict* verdict = value->verdict(state.comm, state.channel);
    if (verdict == nullptr) continue;
    const uint64_t held = tables.up_to(row_, state.comm, state.channel).value_or(state.done);
    if (verdict->n_star <= held) continue;
    const uint32_t donor = donor_for(*verdict, &tables);
    donors = donors && donor != kNoSlot;
    items.push_back({state.comm, state.channel, held + 1, verdict->n_star, donor});
  }
  if (same && (items == flush_items_ || !donors)) return false;
  if (!donors) return false;  // the row of one that holds it is still to come
  flush_value_ = value;
  flush_items_ = items;
  ++flush_plan_;
  flush_complete_ = items.empty();
  if (!(row_.flush == items)) {
    row_.flush = items;
    touch();
  }
  if (!items.empty()) give(FlushReceive{flush_plan_, std::move(items)});
  return flush_complete_;
}

void Membership::on_flushed(uint64_t plan) {
  if (!active() || flush_value_ == nullptr || plan != flush_plan_) return;
  flush_complete_ = true;
  step_due_ = true;
}

void Membership::serve_flush() {
  live().each([&](uint32_t slot) {
    const Row* row = slot == slot_ ? nullptr : usable_row(slot);
    if (row == nullptr || row->flush.empty() || !row->wedged) return;
    for (const FlushItem& item : row->flush) {
      if (item.donor != slot_) continue;
      if (!served_.insert({slot, item}).second) continue;
      give(FlushSend{slot, item.comm, item.channel, item.from_seq, item.to_seq});
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

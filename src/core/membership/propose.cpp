// Agreement on the next view: quorum rules, offer, acceptance, commit. Single-decree consensus per
// epoch; the promise of a member is its published (round, suspicions), which only grow, and the
// ballot of an offer is (round, number of suspected). Reading all unsuspected rows at the same
// suspicions before an offer makes offers of a round a chain, so the highest accepted one is the
// one to take over.
#include <algorithm>

#include "base/hash.hpp"
#include "core/membership/membership.hpp"

namespace mep::membership {

// Says whether a set of members of the present view may decide. The base is that view, whoever died since.
Membership::Quorum Membership::quorum(const SlotSet& set) const {
  const SlotSet in = set & view_->members;
  uint32_t base = view_->members.count();
  if (mutations_.shrinking_majority) base -= confirmed_.count_shared(view_->members);
  const uint32_t twice = 2 * in.count();
  if (twice > base) return Quorum::kMajority;
  const bool half = twice == base;
  if (half && config_.quorum == QuorumPolicy::kMajority && in.has(view_->members.lowest()))
    return Quorum::kMajority;
  if (!in.empty() && confirmed_.contains(view_->members - in)) return Quorum::kAllAlive;
  if (half && config_.quorum == QuorumPolicy::kWitness) return Quorum::kWitness;
  return Quorum::kNo;
}

bool Membership::change_wanted() const {
  if (row_.suspected.intersects(view_->members)) return true;
  if (!row_.settle.empty() || !row_.revoke.empty()) return true;
  const SlotSet present = live();
  bool frozen = false;
  present.each([&](uint32_t slot) {
    const Row* row = slot == slot_ ? nullptr : usable_row(slot);
    frozen = frozen || (row != nullptr && row->frozen);
  });
  return frozen || recover_due(present, nullptr) != 0;
}

bool Membership::everyone_agrees(const SlotSet& live) const {
  bool agree = true;
  live.each([&](uint32_t slot) {
    if (!agree || slot == slot_) return;
    const Row* row = usable_row(slot);
    agree = row != nullptr && row->frozen && row->round == row_.round &&
            row->suspected == row_.suspected;
  });
  return agree;
}

// Rule "all that are alive" alone does not meet an earlier majority, all of which may be dead, but
// a joiner that this majority let in. So every joiner that a row of ours ever named ready in
// this epoch is read like a member, unless it is known to be dead.
bool Membership::joiners_read() const {
  return std::all_of(offered_joiners_.begin(), offered_joiners_.end(), [&](const Member& m) {
    const auto found = joiners_.find(m.slot);
    if (found != joiners_.end() && found->second.member.incarnation == m.incarnation &&
        found->second.confirmed)
      return true;
    const Row* row = joiner_row(m.slot, m.incarnation);
    return row != nullptr && row->round == row_.round && row->suspected == row_.suspected;
  });
}

bool Membership::joiners_settled(const BallotProposal& offer) const {
  return std::all_of(offered_joiners_.begin(), offered_joiners_.end(), [&](const Member& m) {
    const auto found = joiners_.find(m.slot);
    if (found != joiners_.end() && found->second.member.incarnation == m.incarnation &&
        found->second.confirmed)
      return true;
    const Row* row = joiner_row(m.slot, m.incarnation);
    return row != nullptr && row->accepted.value != nullptr &&
           row->accepted.ballot == offer.ballot && row->accepted.leader == offer.leader;
  });
}

ProposalPtr Membership::highest_accepted(const SlotSet& live) const {
  const BallotProposal* best = nullptr;
  const auto look = [&](const Row* row) {
    if (row == nullptr || row->accepted.value == nullptr) return;
    if (row->accepted.value->epoch != view_->epoch + 1) return;
    if (best == nullptr || best->ballot < row->accepted.ballot) best = &row->accepted;
  };
  live.each([&](uint32_t slot) { look(usable_row(slot)); });
  for (const auto& [slot, entry] : joiners_) look(joiner_row(slot, entry.member.incarnation));
  return best == nullptr ? nullptr : best->value;
}

RemovalReason Membership::removal_reason(uint32_t slot, const SlotSet& live) const {
  RemovalReason reason = peers_[slot].reason;
  if (reason == RemovalReason::kLeft || reason == RemovalReason::kGaveUp) return reason;
  bool is_cut_off = false;
  bool is_silent = false;
  live.each([&](uint32_t by) {
    const Row* row = usable_row(by);
    if (row == nullptr) return;
    is_cut_off = is_cut_off || row->link_down.has(slot);
    is_silent = is_silent || row->silent.has(slot);
    if (row->left.has(slot)) reason = RemovalReason::kLeft;
    if (row->gave_up.has(slot)) reason = RemovalReason::kGaveUp;
    if (reason != RemovalReason::kUnreachable) return;
    if (row->dead.has(slot)) reason = RemovalReason::kDied;
    if (row->evict.has(slot)) reason = RemovalReason::kEvicted;
  });
  if (reason == RemovalReason::kUnreachable && is_cut_off && !is_silent) {
    reason = RemovalReason::kCutOff;
  }
  return reason;
}

std::string Membership::removal_text(uint32_t slot, const SlotSet& live) const {
  std::string text;
  live.each([&](uint32_t by) {
    const Row* row = usable_row(by);
    if (row == nullptr) return;
    for (const Statement& reason : row->reasons)
      if (reason.slot == slot) text = reason.text;
  });
  return text;
}

// N*, next and what is to be settled, from the frozen tables of all unsuspected members. At least one
// seq lies between N* and next, so that each change has a call that reports it, the same on all.
void Membership::collect_tables(const SlotSet& live, Proposal* value) const {
  struct Sum {
    uint64_t last_completed = 0;
    uint64_t entered = 0;
    uint32_t donor = kNoSlot;
  };
  std::map<std::pair<uint64_t, uint64_t>, Sum> channels;
  std::map<uint64_t, uint64_t> comms;
  live.each([&](uint32_t slot) {
    const Row* row = usable_row(slot);
    if (row == nullptr) return;
    for (const CommState& comm : row->comms)
      comms[comm.comm] = std::max(comms[comm.comm], comm.epoch);
    for (const ChannelState& state : row->channels) {
      const auto [at, first] = channels.try_emplace({state.comm, state.channel});
      Sum& sum = at->second;
      const bool better = mutations_.last_completed_is_min ? state.done < sum.last_completed
                                                           : state.done > sum.last_completed;
      if (first || better) {
        sum.last_completed = state.done;
        sum.donor = slot;
      }
      sum.entered = std::max(sum.entered, state.entered);
    }
    for (const Settlement& settle : row->settle) value->settled.push_back(settle);
    for (const uint64_t comm : row->revoke) value->revoked.push_back(comm);
  });
  for (const auto& [comm, epoch] : comms) value->comms.push_back({comm, epoch});
  for (const auto& [id, sum] : channels) {
    value->channels.push_back({id.first,
                               id.second,
                               sum.last_completed,
                               std::max(sum.entered, sum.last_completed + 1) + 1,
                               std::max(sum.entered, sum.last_completed),
                               sum.donor,
                               {}});
    if (mutations_.no_call_reports) value->channels.back().next = value->channels.back().called + 1;
  }
  std::sort(value->settled.begin(), value->settled.end());
  value->settled.erase(std::unique(value->settled.begin(), value->settled.end()),
                       value->settled.end());
  std::sort(value->revoked.begin(), value->revoked.end());
  value->revoked.erase(std::unique(value->revoked.begin(), value->revoked.end()),
                       value->revoked.end());
}

// Whose calls the operation that ran out of time still lacked. Told with the value, so that all members say the same.
void Membership::name_late(const SlotSet& live, Proposal* value) const {
  for (ChannelDecision& decision : value->channels) {
    const bool is_settled =
        std::any_of(value->settled.begin(), value->settled.end(), [&](const Settlement& settle) {
          return settle.comm == decision.comm && settle.channel == decision.channel;
        });
    if (!is_settled) continue;
    live.each([&](uint32_t slot) {
      const Row* row = usable_row(slot);
      if (row == nullptr) return;
      const bool in_comm =
          std::any_of(row->comms.begin(), row->comms.end(),
                      [&](const CommState& comm) { return comm.comm == decision.comm; });
      const bool has_called =
          std::any_of(row->channels.begin(), row->channels.end(), [&](const ChannelState& state) {
            return state.comm == decision.comm && state.channel == decision.channel &&
                   state.entered > decision.last_completed;
          });
      if (in_comm && !has_called) decision.late.add(slot);
    });
  }
}

ProposalPtr Membership::new_value(const SlotSet& live) const {
  auto value = std::make_shared<Proposal>();
  value->epoch = view_->epoch + 1;
  value->origin = ballot();
  value->proposer = slot_;
  value->members = live;
  (view_->members - live).each([&](uint32_t slot) {
    value->removed.push_back(
        {slot, view_->incarnation(slot), removal_reason(slot, live), removal_text(slot, live)});
  });
  bool complete = false;
  value->recover_seq = recover_due(live, &complete);
  if (value->recover_seq != 0 && complete) {
    value->added = agreed_joiners(live);
    for (const Member& member : value->added) value->members.add(member.slot);
  }
  collect_tables(live, value.get());
  name_late(live, value.get());
  return value;
}

// A value that is taken over may ask for results that nobody has any more: its only donors died,
// and whoever accepted it is not in that comm, so did not get them. Then N* of that channel is what
// its living members have. None of them can have installed the value as it was, so this concerns
// them alone, and `next` stays. Where only the named donor has died, the value stays what it is and
// names another.
ProposalPtr Membership::attainable(const ProposalPtr& value, const SlotSet& live) const {
  std::shared_ptr<Proposal> changed;
  bool lowered = false;
  HeldTables tables(view_->epoch + 1);
  for (size_t i = 0; i < value->channels.size(); ++i) {
    const ChannelDecision& decision = value->channels[i];
    bool used = false;
    bool donor_holds = false;
    uint64_t most = 0;
    uint32_t holder = kNoSlot;
    live.each([&](uint32_t slot) {
      const Row* row = usable_row(slot);
      if (row == nullptr || !value->members.has(slot)) return;
      const std::optional<uint64_t> held = tables.up_to(*row, decision.comm, decision.channel);
      used = used || held.has_value();
      if (held.value_or(0) > most || (holder == kNoSlot && held.has_value())) {
        most = held.value_or(0);
        holder = slot;
      }
      donor_holds = donor_holds || (slot == decision.donor && held >= decision.last_completed);
    });
    if (!used || donor_holds) continue;
    const bool lost = most < decision.last_completed;
    if (lost || decision.donor != holder) {
      if (changed == nullptr) changed = std::make_shared<Proposal>(*value);
      changed->channels[i].donor = lost ? kNoSlot : holder;
      if (lost) changed->channels[i].last_completed = most;
      lowered = lowered || lost;
    }
  }
  if (changed == nullptr) return value;
  if (lowered) {
    changed->origin = ballot();
    changed->proposer = slot_;
  }
  return changed;
}

void Membership::try_offer() {
  const SlotSet present = live();
  if (present.lowest() != slot_) return;
  const Ballot now = ballot();
  if (row_.offer.value != nullptr && row_.offer.ballot == now) return;
  const Quorum rule = quorum(present);
  if (rule == Quorum::kNo || !everyone_agrees(present)) return;
  if (rule == Quorum::kAllAlive && !joiners_read()) return;
  ProposalPtr value = mutations_.ignore_earlier_accepted ? nullptr : highest_accepted(present);
  value = value == nullptr ? new_value(present) : attainable(value, present);
  row_.offer = BallotProposal{now, slot_, std::move(value)};
  touch();
  again_ = true;
}

void Membership::try_accept() {
  const uint32_t leader = live().lowest();
  const bool joining = phase_ == Phase::kJoining;
  const Row* lead = usable_row(leader);
  if (lead == nullptr || row_.suspected.has(slot_)) return;
  const BallotProposal offer = lead->offer;
  if (offer.value == nullptr || offer.leader != leader || offer.ballot != ballot() ||
      offer.value->epoch != view_->epoch + 1)
    return;
  if (lead->round != row_.round || !(lead->suspected == row_.suspected)) return;
  if (row_.accepted.value != nullptr && !(row_.accepted.ballot < offer.ballot)) return;
  // Whom the value leaves out only votes: a member that a round has brought back, and a joiner
  // that is asked because it may have been in an earlier value.
  const auto& added = offer.value->added;
  const bool included =
      joining ? std::any_of(added.begin(), added.end(),
                            [&](const Member& member) {
                              return member.slot == slot_ && member.incarnation == incarnation_;
                            })
              : offer.value->members.has(slot_);
  if (included && !ready_to_accept(offer.value)) return;
  row_.accepted = offer;
  touch();
  again_ = true;
}

bool Membership::witness_agrees(const Proposal& value) {
  Hash hash;
  hash.word(value.epoch);
  hash.word(value.origin.round);
  hash.word(value.origin.suspected);
  hash.word(value.proposer);
  value.members.each([&](uint32_t slot) { hash.word(slot); });
  const uint64_t digest = hash.value() | 1;
  if (witness_digest_ != 0) return witness_digest_ == digest;
  if (witness_asked_ != digest) {
    witness_asked_ = digest;
    give(AskWitness{value.epoch, digest});
  }
  return false;
}

void Membership::on_witness(uint64_t epoch, uint64_t digest) {
  if (!active() || epoch != view_->epoch + 1) return;
  witness_digest_ = digest;
  step_due_ = true;
}

void Membership::try_commit() {
  const BallotProposal offer = row_.offer;
  if (offer.value == nullptr || offer.leader != slot_ || row_.suspected.has(slot_)) return;
  const SlotSet present = live();
  SlotSet accepted;
  const auto look = [&](uint32_t slot, const Row* row) {
    if (row != nullptr && row->accepted.value != nullptr && row->accepted.leader == slot_ &&
        row->accepted.ballot == offer.ballot)
      accepted.add(slot);
  };
  present.each([&](uint32_t slot) { look(slot, usable_row(slot)); });
  for (const Member& member : offer.value->added)
    look(member.slot, joiner_row(member.slot, member.incarnation));
  SlotSet needed = offer.value->members;
  if (!mutations_.wait_for_suspected) needed -= row_.suspected;
  if (!accepted.contains(needed)) return;
  const Quorum rule = quorum(accepted);
  if (rule == Quorum::kNo) return;
  if (rule == Quorum::kAllAlive && !joiners_settled(offer)) return;
  if (rule == Quorum::kWitness && !witness_agrees(*offer.value)) return;
  if (offer.value->members.has(slot_)) {
    install(offer.value);
  } else {
    end_with_value(offer.value);
  }
}

}  // namespace mep::membership

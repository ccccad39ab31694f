// Joiners: replacements and grown slots. Members say in their rows whose links they have tested;
// who is ready everywhere enters with the next view that answers a recover call. The joiner
// follows and accepts, and says in its row which other joiners it is linked to.
#include <algorithm>

#include "core/membership/membership.hpp"

namespace mep::membership {

void Membership::on_joiner_ready(const Member& member) {
  if (!active() || member.slot >= max_slots_ || member.slot == slot_ || member.incarnation == 0)
    return;
  if (view_->members.has(member.slot) && peers_[member.slot].incarnation == member.incarnation)
    return;  // already in
  Joiner& entry = joiners_[member.slot];
  if (entry.member.incarnation != member.incarnation) entry = Joiner{};
  entry.member = member;
  entry.heard_us = now_us_;
  entry.ready = !entry.confirmed;
  entry.gone = false;
  touch();  // it has not seen this rank's row
  give(SendView{view_, [&] {
                  SlotSet to;
                  to.add(member.slot);
                  return to;
                }()});
}

void Membership::on_joiner_gone(uint32_t slot, uint64_t incarnation, bool confirmed) {
  Joiner* entry = active() ? joiner(slot, incarnation) : nullptr;
  if (entry == nullptr) return;
  entry->gone = true;
  entry->ready = false;
  entry->confirmed = entry->confirmed || confirmed;
  step_due_ = true;
}

void Membership::on_joiner_lost(uint32_t slot) {
  if (!active() || row_.recover_seq == 0 || !row_.recover_wanted.has(slot)) return;
  row_.recover_wanted.remove(slot);
  touch();
}

void Membership::on_recover(uint64_t seq, const SlotSet& wanted, uint64_t deadline_us) {
  if (!active() || phase_ == Phase::kJoining || seq == 0) return;
  row_.recover_seq = seq;
  row_.recover_wanted = wanted;
  row_.recover_expired = now_us_ >= deadline_us;
  recover_deadline_us_ = deadline_us;
  touch();
}

void Membership::on_view_snapshot(const View& view) {
  if (phase_ != Phase::kJoining || view.epoch <= view_->epoch) return;
  if (view.members.has(slot_)) {
    if (view.incarnation(slot_) == incarnation_) return;  // its row says how
    phase_ = Phase::kEvicted;
    give(JoinFailed{});
    return;
  }
  start_epoch(std::make_shared<const View>(view), nullptr);
}

// Both say so, in their latest rows of whatever epoch.
bool Membership::are_linked(const Member& joiner, const Member& other) const {
  const auto names = [this](const Member& by, const Member& of) {
    const auto found = joiners_.find(by.slot);
    const Row* row = found == joiners_.end() ? nullptr : found->second.row.get();
    return row != nullptr && row->incarnation == by.incarnation &&
           std::find(row->ready.begin(), row->ready.end(), of) != row->ready.end();
  };
  return names(joiner, other) && names(other, joiner);
}

// Which joiners this row names: there, tested, for a slot that is empty in this view. One recover call lets in none
// that is not linked to all that it lets in for lower slots.
void Membership::refresh_ready() {
  std::vector<Member> ready;
  const SlotSet& wanted = row_.recover_wanted;
  for (const auto& [slot, entry] : joiners_) {
    if (!entry.ready || view_->members.has(slot)) continue;
    const auto can_meet = [&, this, &joiner = entry.member](const Member& other) {
      return !wanted.has(joiner.slot) || !wanted.has(other.slot) || are_linked(joiner, other);
    };
    if (mutations_.admit_unlinked || std::all_of(ready.begin(), ready.end(), can_meet))
      ready.push_back(entry.member);
  }
  if (ready == row_.ready) return;
  row_.ready = std::move(ready);
  touch();
}

// The recover call that a change now would answer, 0: none. `complete`: all have called.
uint64_t Membership::recover_due(const SlotSet& live, bool* complete) const {
  uint64_t seq = 0;
  live.each([&](uint32_t slot) {
    const Row* row = usable_row(slot);
    if (row != nullptr) seq = std::max(seq, row->recover_seq);
  });
  if (seq == 0 || !(live == view_->members)) return 0;
  bool all = true;
  bool expired = false;
  live.each([&](uint32_t slot) {
    const Row* row = usable_row(slot);
    const bool called = row != nullptr && row->recover_seq == seq;
    all = all && called;
    expired = expired || (called && row->recover_expired);
  });
  if (complete != nullptr) *complete = all;
  if (expired) return seq;
  if (!all) return 0;
  SlotSet filled;
  for (const Member& member : agreed_joiners(live)) filled.add(member.slot);
  // All have asked for the same; what one has given up is waited for by nobody.
  SlotSet wanted = row_.recover_wanted;
  live.each([&](uint32_t slot) {
    if (const Row* row = usable_row(slot)) wanted &= row->recover_wanted;
  });
  return filled.contains(wanted - view_->members) ? seq : 0;
}

// The joiners that the rows of all these members name.
std::vector<Member> Membership::named_joiners(const SlotSet& live) const {
  const Row* first = usable_row(live.lowest());
  if (first == nullptr) return {};
  std::vector<Member> named = first->ready;
  live.each([&](uint32_t slot) {
    const Row* row = usable_row(slot);
    std::erase_if(named, [&](const Member& member) {
      return row == nullptr ||
             std::find(row->ready.begin(), row->ready.end(), member) == row->ready.end();
    });
  });
  return named;
}

std::vector<Member> Membership::agreed_joiners(const SlotSet& live) const {
  std::vector<Member> agreed = named_joiners(live);
  std::erase_if(agreed, [this](const Member& member) {
    return !row_.recover_wanted.has(member.slot) || row_.suspected.has(member.slot);
  });
  return agreed;
}

uint32_t Membership::unlinked_joiner() const {
  if (phase_ != Phase::kJoining) return kNoSlot;
  for (const Member& member : named_joiners(live())) {
    const auto& linked = row_.ready;
    const bool is_linked = std::find(linked.begin(), linked.end(), member) != linked.end();
    if (member.slot < slot_ && !is_linked) return member.slot;
  }
  return kNoSlot;
}

// A joiner whose members are all gone has nothing to join.
void Membership::watch_join() {
  if (phase_ != Phase::kJoining) return;
  const SlotSet lost = row_.link_down | confirmed_;
  if (!lost.contains(view_->members)) return;
  phase_ = Phase::kEvicted;
  give(JoinFailed{});
}

}  // namespace mep::membership

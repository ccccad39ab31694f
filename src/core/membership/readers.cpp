// The members that read a row. In a small view all do. In a larger one a row goes to the leads, or messages would grow with the
// square of the members: a member's part in a change needs the rows of its lead and of its donors alone.
//
// Leads are found by each member for itself, so members may differ for a while. A row goes to those that its sender accuses
// as well, so that a rank that hears nothing of its lead still reaches it if its link works the other way.
#include <algorithm>

#include "core/membership/membership.hpp"

namespace mep::membership {

SlotSet Membership::audience() const {
  SlotSet to = view_->members - confirmed_;
  for (const auto& [slot, entry] : joiners_)
    if (!entry.gone && !entry.confirmed) to.add(slot);
  to.remove(slot_);
  return to;
}

// Up to the last lead; accused members among them may not be leads for others.
SlotSet Membership::leads() const {
  const SlotSet present = live();
  const SlotSet accused = row_.link_down | row_.silent;
  SlotSet found;
  uint32_t count = 0;
  for (uint32_t slot = present.next(0); slot != kNoSlot && count < config_.leads;
       slot = present.next(slot + 1)) {
    found.add(slot);
    count += accused.has(slot) ? 0 : 1;
  }
  return found;
}

bool Membership::tells_all() const {
  if (collects_rows() || phase_ == Phase::kJoining || row_.standing != Standing::kMember)
    return true;
  if (published_.donor && !mutations_.donor_stays_silent) return true;
  return !published_.dead.contains(row_.dead) && speaks_for_host();
}

// Members on other hosts learn of nobody else that a death on this one is confirmed.
bool Membership::speaks_for_host() const {
  const SlotSet present = live();
  uint32_t slot = present.next(0);
  while (slot != kNoSlot && view_->host(slot) != view_->host(slot_)) slot = present.next(slot + 1);
  return slot == slot_;
}

SlotSet Membership::readers() const {
  SlotSet all = audience();
  if (tells_all()) return all;
  SlotSet wanted = leads() | published_.accused_to;
  for (const CatchUpItem& item : row_.catch_up)
    if (item.donor < max_slots_) wanted.add(item.donor);
  return all - (view_->members - wanted);  // joiners read all rows
}

// Members that are behind look for the results in the rows of donors.
void Membership::watch_donors() {
  if (published_.donor || collects_rows()) return;
  const Row* lead = usable_row(live().lowest());
  if (lead == nullptr || lead->offer.value == nullptr) return;
  const auto& channels = lead->offer.value->channels;
  published_.donor =
      std::any_of(channels.begin(), channels.end(),
                  [this](const ChannelDecision& decision) { return decision.donor == slot_; });
  if (published_.donor) touch();
}

void Membership::publish(const SlotSet& also) {
  if (!row_dirty_) return;
  row_dirty_ = false;
  ++row_.version;
  if (row_.recover_seq != 0 && phase_ != Phase::kJoining) {
    for (const Member& member : row_.ready) {
      if (std::find(offered_joiners_.begin(), offered_joiners_.end(), member) ==
          offered_joiners_.end())
        offered_joiners_.push_back(member);
    }
  }
  SlotSet to = readers() | also;
  if (tells_all()) published_.dead |= row_.dead;
  to.remove(slot_);
  published_.accused_to |= to;
  if (row_.link_down.empty() && row_.silent.empty()) published_.accused_to.clear();
  auto pushed = std::make_shared<const Row>(row_);
  give(PushRow{pushed, std::move(to)});
  published_.row = std::move(pushed);
}

}  // namespace mep::membership

// Who reads a row. In a small view everybody does. In a larger one a row goes to the leads, or messages would grow with the
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
  if (is_donor_ && !mutations_.donor_stays_silent) return true;
  // A death that is confirmed here: members on other hosts learn it of nobody else.
  return !row_.dead.empty() && (published_ == nullptr || !published_->dead.contains(row_.dead));
}

SlotSet Membership::readers() const {
  const SlotSet all = audience();
  if (tells_all()) return all;
  SlotSet wanted = leads() | accused_to_;
  for (const CatchUpItem& item : row_.catch_up)
    if (item.donor < max_slots_) wanted.add(item.donor);
  return all - (view_->members - wanted);  // joiners read all rows
}

// Members that are behind look for the results in the rows of donors.
void Membership::watch_donors() {
  if (is_donor_ || collects_rows()) return;
  const Row* lead = usable_row(live().lowest());
  if (lead == nullptr || lead->offer.value == nullptr) return;
  const auto& channels = lead->offer.value->channels;
  is_donor_ =
      std::any_of(channels.begin(), channels.end(),
                  [this](const ChannelDecision& decision) { return decision.donor == slot_; });
  if (is_donor_) touch();
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
  to.remove(slot_);
  accused_to_ |= to;
  if (row_.link_down.empty() && row_.silent.empty()) accused_to_.clear();
  auto pushed = std::make_shared<const Row>(row_);
  give(PushRow{pushed, std::move(to)});
  published_ = std::move(pushed);
}

}  // namespace mep::membership

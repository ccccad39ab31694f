// Decides which members go when members cannot hear each other. Accusations are the edges of a graph; the part of
// it that is connected by working links and can be a quorum stays, and within it the member with
// most broken links goes, of equals the higher slot, until none is left. A rank never judges itself
// out: the others tell it. Suspicion that would leave no quorum is not raised at all.
//
// Broken links come to be known one after the other, those first that were in use. When all between two
// hosts are broken, the rank that speaks for its host looks like the culprit at first. So the number of
// links takes out a member that would stay by its slot only if all who stay accuse it, or once nothing
// new has come for a while.
#include <algorithm>

#include "core/membership/membership.hpp"

namespace mep::membership {

// Brings accusations_ up to date with the rows; false if there are none.
bool Membership::note_accusations(const SlotSet& live) {
  bool any = false;
  live.each([&](uint32_t by) {
    const Row* row = usable_row(by);
    any = any || (row != nullptr && (!row->link_down.empty() || !row->silent.empty()));
  });
  if (!any) {
    accusations_.clear();
    return false;
  }
  std::map<std::pair<uint32_t, uint32_t>, Accusation> fresh;
  std::map<uint32_t, uint32_t> accusers;
  live.each([&](uint32_t by) {
    const Row* row = usable_row(by);
    if (row == nullptr) return;
    ((row->link_down | row->silent) & live).each([&](uint32_t of) {
      if (of == by) return;
      const auto known = accusations_.find({by, of});
      if (known == accusations_.end()) accused_us_ = now_us_;
      fresh[{by, of}] = known == accusations_.end() ? Accusation{now_us_, now_us_} : known->second;
      ++accusers[of];
    });
  });
  // One of several that is left over is mostly out of date: the others hear the accused again.
  for (auto& [pair, accusation] : fresh)
    if (accusers[pair.second] >= 2) accusation.alone_since_us = now_us_;
  accusations_ = std::move(fresh);
  return !accusations_.empty();
}

// All accusations of one member count together, so that its degree is not that of the first
// accuser.
Membership::Edges Membership::counted_edges(const SlotSet& live) const {
  const bool only_two = live.count() == 2;
  const auto held = [&](uint64_t since, uint64_t hold_us) { return now_us_ >= since + hold_us; };
  std::map<uint32_t, std::vector<uint64_t>> accused;
  for (const auto& [pair, accusation] : accusations_)
    accused[pair.second].push_back(accusation.since_us);
  for (auto& [of, times] : accused) std::sort(times.begin(), times.end());
  Edges edges;
  for (const auto& [pair, accusation] : accusations_) {
    const auto [by, of] = pair;
    const uint64_t since = accusation.alone_since_us;
    const std::vector<uint64_t>& times = accused[of];
    bool counts = false;
    if (times.size() >= 2) {
      counts = held(times[1], config_.link_hold_us);
    } else {
      const Row* row = usable_row(by);
      const bool broken = row != nullptr && row->link_down.has(of);
      const auto back = accusations_.find({of, by});
      const bool both = broken && back != accusations_.end() && accused[by].size() == 1 &&
                        held(back->second.since_us, config_.link_hold_us);
      // In a view of two, the silence that the other complains of is mostly over: this rank is running.
      const bool alone = only_two && (broken || by == slot_);
      // Only a third member that has heard both of them since can tell a cut link from a dead end.
      const bool third = by != slot_ && of != slot_ && peers_[by].really_heard_us > since &&
                         peers_[of].really_heard_us > since + config_.pair_hold_us / 2;
      counts = (third && held(since, config_.pair_hold_us)) ||
               ((both || alone) && held(since, config_.link_hold_us));
    }
    if (!counts) continue;
    edges[by].add(of);
    edges[of].add(by);
  }
  return edges;
}

// The connected part (by links that work) that holds this rank if it can be a quorum, else another
// that can, else none.
SlotSet Membership::best_component(const Edges& edges, const SlotSet& live) const {
  SlotSet unvisited = live;
  SlotSet best;
  while (!unvisited.empty()) {
    SlotSet component;
    SlotSet frontier;
    frontier.add(unvisited.lowest());
    unvisited.remove(unvisited.lowest());
    while (!frontier.empty()) {
      const uint32_t slot = frontier.lowest();
      frontier.remove(slot);
      component.add(slot);
      SlotSet reached = unvisited;
      const auto cut = edges.find(slot);
      if (cut != edges.end()) reached -= cut->second;
      unvisited -= reached;
      frontier |= reached;
    }
    if (quorum(component) == Quorum::kNo) continue;
    if (component.has(slot_)) return component;
    if (best.empty()) best = component;
  }
  return best;
}

// *by_count: some went for the number of its links, and by its slot another would have.
SlotSet Membership::without_conflicts(const Edges& edges, SlotSet component, bool* by_count) {
  *by_count = false;
  for (;;) {
    uint32_t worst = kNoSlot;
    uint32_t most = 0;
    for (const auto& [slot, cut] : edges) {
      if (!component.has(slot)) continue;
      const uint32_t broken = cut.count_shared(component);
      if (broken > 0 && broken >= most) {
        worst = slot;
        most = broken;
      }
    }
    if (worst == kNoSlot) return component;
    (edges.at(worst) & component).each([&](uint32_t other) {
      *by_count = *by_count || other > worst;
    });
    component.remove(worst);
  }
}

bool Membership::is_accused_by_all(const Edges& edges, const SlotSet& accused,
                                   const SlotSet& accusers) {
  bool all = true;
  accused.each([&](uint32_t slot) {
    const auto cut = edges.find(slot);
    all = all && cut != edges.end() && cut->second.contains(accusers);
  });
  return all;
}

// Links that come and go hold nobody up for ever.
bool Membership::accusations_settled() const {
  if (now_us_ >= accused_us_ + config_.accuse_after_us / 2) return true;
  return std::any_of(accusations_.begin(), accusations_.end(), [this](const auto& entry) {
    return now_us_ >= entry.second.since_us + config_.pair_hold_us;
  });
}

void Membership::judge_links() {
  if (!collects_rows()) {
    accusations_.clear();
    return;
  }
  const SlotSet present = live();
  if (!present.has(slot_) || !note_accusations(present)) return;
  const Edges edges = counted_edges(present);
  if (edges.empty()) return;
  const SlotSet component = best_component(edges, present);
  if (!component.has(slot_)) return;
  bool by_count = false;
  const SlotSet kept = without_conflicts(edges, component, &by_count);
  if (!kept.has(slot_) || quorum(kept) == Quorum::kNo) return;
  if (by_count && !is_accused_by_all(edges, present - kept, kept) && !accusations_settled()) return;
  (present - kept).each([&](uint32_t slot) { suspect(slot, RemovalReason::kUnreachable); });
}

PeerHealth Membership::health(uint32_t slot) const {
  if (slot == slot_ || slot >= max_slots_ || !view_->members.has(slot)) return PeerHealth::kHealthy;
  if (confirmed_.has(slot)) return PeerHealth::kDead;
  if (row_.suspected.has(slot)) return PeerHealth::kSuspected;
  if (row_.link_down.has(slot) || row_.silent.has(slot)) return PeerHealth::kAccused;
  if (now_us_ > peers_[slot].heard_us + config_.slow_after_us) return PeerHealth::kSlow;
  return PeerHealth::kHealthy;
}

void Membership::report_health() {
  view_->members.each([&](uint32_t slot) {
    if (slot == slot_) return;
    Peer& peer = peers_[slot];
    const PeerHealth now = health(slot);
    if (now == peer.reported) return;
    peer.reported = now;
    give(PeerReport{slot, peer.incarnation, now});
  });
}

}  // namespace mep::membership

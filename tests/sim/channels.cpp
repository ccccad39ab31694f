#include "sim/channels.hpp"

#include <algorithm>

namespace mep::sim {

using membership::CatchUpItem;
using membership::ChannelDecision;
using membership::ChannelState;
using membership::SlotSet;
using membership::View;

// A call that has met what a change said of it is answered for good; one that nobody has made yet
// may still be answered by a later change.
uint64_t Channel::reported() const {
  return std::max({done, std::min(called, next - 1), fixed});
}

void ChannelTable::create(uint64_t comm, const Comm& state, uint32_t channels, const View& view) {
  comms_[comm] = state;
  for (uint32_t id = 0; id < channels; ++id) channels_[{comm, id}] = {};
  const auto early = early_.find(comm);
  if (early == early_.end()) return;
  const std::vector<Contribution> contributions = std::move(early->second);
  early_.erase(early);
  for (const Contribution& contribution : contributions) arrive(contribution, view);
}

void ChannelTable::close(uint64_t comm) {
  for (auto at = channels_.begin(); at != channels_.end();) {
    if (at->first.comm != comm) {
      ++at;
      continue;
    }
    closed_[at->first] = std::move(at->second.told);
    at = channels_.erase(at);
  }
  comms_.erase(comm);
}

void ChannelTable::note_stillborn(uint64_t comm) {
  early_.erase(comm);
  closed_[{comm, 0}][1] = {Answer::kChanged, 1, {}, {}};
}

std::vector<std::pair<ChannelName, uint64_t>> ChannelTable::take_fresh() {
  std::vector<std::pair<ChannelName, uint64_t>> fresh;
  fresh.swap(fresh_);
  return fresh;
}

// --- Calls ----------------------------------------------------------------------------------------

void ChannelTable::tell(const ChannelName& name, Channel* channel, uint64_t seq, Told told) {
  channel->told[seq] = std::move(told);
  comms_.at(name.comm).moved = true;
  fresh_.emplace_back(name, seq);
}

void ChannelTable::tell_result(const ChannelName& name, Channel* channel, uint64_t seq,
                               const Call& call, const Settled& outcome) {
  Told told{outcome.mismatch ? Answer::kMismatch : Answer::kSuccess, call.step, {}, {}};
  if (!outcome.mismatch) {
    uint64_t step = call.step;
    for (const auto& [slot, share] : outcome.contributors) {
      if (step == 0) step = share.step;
      if (share.step != 0 && share.step != step)
        fault("a success mixes steps " + std::to_string(step) + " and " +
              std::to_string(share.step) + " of comm " + std::to_string(name.comm));
    }
    // A joiner's program learns from the others where they are.
    if (!channel->knows_step && step != 0) {
      channel->knows_step = true;
      channel->step = step + (channel->called - seq);
    }
    told.step = step;
    told.contributors = outcome.contributors;
  }
  tell(name, channel, seq, std::move(told));
}

const Decision* ChannelTable::meets(const Channel& channel, uint64_t seq) {
  const auto found = std::find_if(channel.decisions.begin(), channel.decisions.end(),
                                  [&](const Decision& decision) {
                                    return decision.last_completed < seq && seq <= decision.last;
                                  });
  return found == channel.decisions.end() ? nullptr : &*found;
}

bool ChannelTable::call(const ChannelName& name, Call call, const View& view, Contribution* send) {
  Channel& channel = channels_.at(name);
  send->slot = membership::kNoSlot;
  if (frozen_ && !comms_.at(name.comm).free) return false;
  call.step = channel.knows_step ? channel.step + 1 : 0;
  uint64_t seq = channel.called + 1;
  for (const Decision* decision = meets(channel, seq); decision != nullptr;
       decision = meets(channel, seq)) {
    if (!decision->changes.empty() && !wrong_.late_is_not_told) {
      channel.called = seq;
      channel.step = call.step;
      tell(name, &channel, seq, {Answer::kChanged, call.step, {}, decision->changes});
      return true;
    }
    seq = decision->last + 1;
  }
  if (seq > channel.done) seq = std::max(seq, channel.next);
  channel.called = seq;
  channel.step = call.step;
  if (seq <= channel.done) {
    const auto result = channel.results.find(seq);
    if (result == channel.results.end()) {
      fault("a call that others have completed has no answer, seq " + std::to_string(seq));
    } else {
      tell_result(name, &channel, seq, call, result->second);
    }
    return true;
  }
  channel.pending[seq] = call;
  const bool root = call.kind == Kind::kRoot;
  *send = {
      name, seq, comms_.at(name.comm).epoch, slot_, {incarnation_, call.step, call.what, root}};
  if (root && needed(name.comm, Kind::kRoot, view).lowest() != slot_) {
    send->slot = membership::kNoSlot;
    try_complete(name, &channel, view);
    return true;
  }
  arrive(*send, view);
  return true;
}

void ChannelTable::refuse(const ChannelName& name) {
  if (wrong_.refused_consumes && !frozen_) ++channels_.at(name).called;
}

void ChannelTable::arrive(const Contribution& contribution, const View& view) {
  const auto found = channels_.find(contribution.name);
  if (found == channels_.end()) {
    if (!closed_.contains(contribution.name))
      early_[contribution.name.comm].push_back(contribution);
    return;
  }
  Channel& channel = found->second;
  channel.arrived[{contribution.seq, contribution.comm_epoch}][contribution.slot] =
      contribution.share;
  try_complete(contribution.name, &channel, view);
}

SlotSet ChannelTable::needed(uint64_t comm, Kind kind, const View& view) const {
  const Comm& state = comms_.at(comm);
  SlotSet all = view.members & state.members;
  for (const auto& [slot, incarnation] : state.incarnations)
    if (view.incarnation(slot) != incarnation) all.remove(slot);
  if (kind == Kind::kAll) return all;
  SlotSet root;
  if (!all.empty()) root.add(all.lowest());
  return root;
}

// Whether all that operation `seq` needs is here. `own`: this rank's call of it, if it has made it:
// who sees that another called something else ends it at once, by an error of its own.
bool ChannelTable::complete(const ChannelName& name, const Channel& channel, uint64_t seq,
                            Kind kind, const Call* own, const View& view, Settled* outcome) const {
  const auto arrived = channel.arrived.find({seq, comms_.at(name.comm).epoch});
  if (arrived == channel.arrived.end()) return false;
  bool all = true;
  *outcome = {};
  needed(name.comm, kind, view).each([&](uint32_t slot) {
    const auto one = arrived->second.find(slot);
    if (one == arrived->second.end() || one->second.incarnation != view.incarnation(slot)) {
      all = false;
      return;
    }
    outcome->contributors[slot] = one->second;
    if (own != nullptr && one->second.what != own->what) outcome->mismatch = true;
  });
  if (outcome->mismatch) outcome->contributors.clear();
  return all || outcome->mismatch;
}

void ChannelTable::try_complete(const ChannelName& name, Channel* channel, const View& view) {
  if (frozen_ && !wrong_.complete_after_freeze && !comms_.at(name.comm).free) return;
  for (;;) {
    const auto first = channel->pending.find(channel->base() + 1);
    if (first == channel->pending.end()) return;
    const auto [seq, call] = *first;
    Settled outcome;
    if (!complete(name, *channel, seq, call.kind, &call, view, &outcome)) return;
    channel->pending.erase(first);
    channel->done = seq;
    channel->results[seq] = outcome;
    tell_result(name, channel, seq, call, outcome);
  }
}

// How far this rank can complete, also what it has not called yet: the bytes of a root are here. That
// counts even if the calls that report the last change are still to come.
uint64_t ChannelTable::reach(const ChannelName& name, const Channel& channel, const View& view,
                             std::map<uint64_t, Settled>* results) const {
  for (uint64_t seq = channel.base();; ++seq) {
    Settled outcome;
    const bool here = complete(name, channel, seq + 1, Kind::kRoot, nullptr, view, &outcome) &&
                      outcome.contributors.begin()->second.root;
    if (!here) return seq >= channel.next ? seq : channel.reported();
    if (results != nullptr) (*results)[seq + 1] = outcome;
  }
}

bool ChannelTable::holds(const ChannelName& name, uint64_t seq, const View& view) {
  const auto found = channels_.find(name);
  if (found == channels_.end() || wrong_.held_unseen) return true;
  Channel& channel = found->second;
  if (frozen_) return channel.reported() >= seq;
  if (seq >= channel.next) return reach(name, channel, view, nullptr) >= seq;
  if (!wrong_.nothing_is_fixed) channel.fixed = std::max(channel.fixed, seq);
  return true;
}

// --- View changes ---------------------------------------------------------------------------------

std::vector<ChannelState> ChannelTable::freeze(const View& view) {
  frozen_ = true;
  std::vector<ChannelState> table;
  for (auto& [name, channel] : channels_) {
    const uint64_t held = reach(name, channel, view, &channel.results);
    channel.done = held >= channel.next ? held : channel.done;
    const uint64_t reported = channel.reported();
    table.push_back({name.comm, name.channel, reported, std::max(channel.called, reported)});
  }
  return table;
}

bool ChannelTable::plan(const membership::CatchUpReceive& plan) {
  plan_ = plan.plan;
  plan_items_ = plan.items;
  return plan_complete();
}

bool ChannelTable::plan_complete() const {
  for (const CatchUpItem& item : plan_items_) {
    const auto found = channels_.find({item.comm, item.channel});
    if (found == channels_.end()) continue;
    const Channel& channel = found->second;
    // Operations before this epoch have failed for good: nobody has data of them.
    for (uint64_t seq = std::max(item.from_seq, channel.next); seq <= item.to_seq; ++seq)
      if (!channel.provisional.contains(seq) && !channel.results.contains(seq)) return false;
  }
  return true;
}

bool ChannelTable::take_catch_up(const CatchUpData& data) {
  const auto found = channels_.find(data.name);
  if (found == channels_.end() || !frozen_) return false;
  for (const auto& [seq, result] : data.results) found->second.provisional[seq] = result;
  return !plan_items_.empty() && plan_complete();
}

CatchUpData ChannelTable::give_catch_up(const membership::CatchUpSend& order) const {
  CatchUpData data{{order.comm, order.channel}, {}};
  const auto found = channels_.find(data.name);
  if (found == channels_.end()) return data;
  const Channel& channel = found->second;
  for (uint64_t seq = order.from_seq; seq <= order.to_seq; ++seq) {
    const auto done = channel.results.find(seq);
    const auto caught_up = channel.provisional.find(seq);
    if (done != channel.results.end()) {
      data.results[seq] = done->second;
    } else if (caught_up != channel.provisional.end()) {
      data.results[seq] = caught_up->second;
    }
  }
  return data;
}

void ChannelTable::add_decision(Channel* channel, Decision decision) const {
  std::vector<Decision>& list = channel->decisions;
  if (wrong_.one_decision_only) list.clear();
  std::erase_if(list, [&](Decision& earlier) {
    if (!wrong_.earlier_is_not_cut) earlier.last = std::min(earlier.last, decision.last_completed);
    if (earlier.last > earlier.last_completed) return earlier.last <= channel->called;
    decision.changes.insert(earlier.changes.begin(), earlier.changes.end());
    return true;
  });
  list.push_back(std::move(decision));
}

// N* and next of one channel.
void ChannelTable::settle(const ChannelDecision& decision, const ChannelName& name, bool affected,
                          const std::set<uint64_t>& changes) {
  Channel& channel = channels_.at(name);
  // A value that is taken over without its last donor, who lives but is suspected, is lowered below what that
  // donor has (Membership::attainable). It is then out of the next view; the end of a schedule says so.
  rolled_back_ = rolled_back_ || channel.reported() > decision.last_completed;
  if (decision.next <= channel.called) fault("next would reuse a seq");
  for (uint64_t seq = channel.base() + 1; seq <= decision.last_completed; ++seq) {
    if (channel.results.contains(seq)) continue;
    const auto caught_up = channel.provisional.find(seq);
    if (caught_up == channel.provisional.end()) {
      fault("N* installed without its result");
      return;
    }
    channel.results[seq] = caught_up->second;
  }
  if (decision.last_completed >= channel.next)
    channel.done = std::max(channel.done, decision.last_completed);
  while (!channel.pending.empty() && channel.pending.begin()->first <= decision.last_completed) {
    const auto [seq, call] = *channel.pending.begin();
    channel.pending.erase(channel.pending.begin());
    tell_result(name, &channel, seq, call, channel.results.at(seq));
  }
  if (!affected) return;
  add_decision(&channel, {decision.last_completed, decision.next - 1, changes});
  for (const auto& [seq, call] : channel.pending) {
    const Decision* met = meets(channel, seq);
    if (met == nullptr || met->changes.empty()) {
      fault("a pending call was cut off by a change that it cannot report");
      continue;
    }
    tell(name, &channel, seq, {Answer::kChanged, call.step, {}, met->changes});
  }
  channel.pending.clear();
  channel.next = decision.next;
}

void ChannelTable::install(const membership::InstallView& install) {
  std::map<uint64_t, std::set<uint64_t>> affected;  // comm -> what its calls report
  for (auto& [id, comm] : comms_) comm.free = false;
  for (const auto& change : install.affected) {
    Comm& comm = comms_.at(change.comm);
    if (change.new_epoch != comm.epoch + 1) fault("a comm epoch skipped or repeated");
    comm.epoch = change.new_epoch;
    comm.moved = false;
    std::set<uint64_t>& changes = affected[change.comm];
    bool told = (change.why & ~uint32_t{membership::kAffectedByMembers}) != 0;
    for (const auto& removal : install.decision->removed)
      told = told || comm.members.has(removal.slot);
    if (told) changes.insert(install.view->epoch);
  }
  for (const auto& settled : install.decision->settled)
    if (!comms_.contains(settled.comm)) settled_unknown_.insert(settled.comm);
  for (const uint64_t revoked : install.decision->revoked)
    if (!comms_.contains(revoked)) settled_unknown_.insert(revoked);
  for (const ChannelDecision& decision : install.decision->channels) {
    const ChannelName name{decision.comm, decision.channel};
    if (!channels_.contains(name)) continue;
    const auto changes = affected.find(decision.comm);
    settle(decision, name, changes != affected.end(),
           changes != affected.end() ? changes->second : std::set<uint64_t>{});
  }
  for (auto& [name, channel] : channels_) {
    channel.provisional.clear();
    const uint64_t epoch = comms_.at(name.comm).epoch;
    std::erase_if(channel.arrived, [&](const auto& entry) { return entry.first.second < epoch; });
  }
  plan_items_.clear();
  frozen_ = false;
  for (auto& [name, channel] : channels_) try_complete(name, &channel, *install.view);
}

}  // namespace mep::sim

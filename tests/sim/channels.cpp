#include "sim/channels.hpp"

#include <algorithm>

namespace mep::sim {

using membership::ChannelState;
using membership::ChannelVerdict;
using membership::FlushItem;
using membership::SlotSet;
using membership::View;

void ChannelTable::create(uint64_t comm, uint64_t comm_epoch, const SlotSet& members,
                          const std::vector<std::pair<uint64_t, Kind>>& channels) {
  comms_[comm] = Comm{comm_epoch, members, false};
  for (const auto& [id, kind] : channels) channels_[{comm, id}].kind = kind;
}

bool ChannelTable::call(const ChannelName& name, const View& view, Contribution* send) {
  Channel& channel = channels_.at(name);
  const Comm& comm = comms_.at(name.comm);
  if (wedged_ || channel.pending || comm.revoked) return false;
  uint64_t seq = channel.entered + 1;
  while (seq <= channel.answered && !channel.results.contains(seq)) ++seq;  // failed for good
  send->slot = membership::kNoSlot;
  if (seq <= channel.answered) {
    channel.entered = seq;
    channel.verdicts[seq] = {true, comm.epoch, channel.results.at(seq)};
    return true;
  }
  channel.entered = std::max(seq, channel.next);
  channel.pending = true;
  *send = {name, channel.entered, comm.epoch, slot_, incarnation_};
  arrive(*send, view);
  return true;
}

void ChannelTable::arrive(const Contribution& contribution, const View& view) {
  const auto found = channels_.find(contribution.name);
  if (found == channels_.end()) return;
  Channel& channel = found->second;
  channel.arrived[{contribution.seq, contribution.comm_epoch}][contribution.slot] =
      contribution.incarnation;
  try_complete(contribution.name, &channel, view);
}

void ChannelTable::try_complete(const ChannelName& name, Channel* channel, const View& view) {
  if (!channel->pending || (wedged_ && !complete_after_wedge_)) return;
  const Comm& comm = comms_.at(name.comm);
  const auto arrived = channel->arrived.find({channel->entered, comm.epoch});
  if (arrived == channel->arrived.end()) return;
  SlotSet needed = view.members & comm.members;
  if (channel->kind == Kind::kRoot) {
    const uint32_t root = needed.lowest();
    needed = {};
    needed.add(root);
  }
  Contributors used;
  bool all = true;
  needed.each([&](uint32_t slot) {
    const auto one = arrived->second.find(slot);
    if (one == arrived->second.end() || one->second != view.incarnation(slot)) {
      all = false;
    } else {
      used[slot] = one->second;
    }
  });
  if (!all) return;
  channel->pending = false;
  channel->done = channel->entered;
  channel->results[channel->done] = used;
  channel->verdicts[channel->done] = {true, comm.epoch, used};
}

std::vector<ChannelState> ChannelTable::wedge() {
  wedged_ = true;
  std::vector<ChannelState> table;
  for (auto& [name, channel] : channels_) {
    channel.frozen_done = channel.done;
    const uint64_t entered = std::max(channel.entered, channel.next - 1);
    table.push_back({name.comm, name.channel, channel.done, entered});
  }
  return table;
}

bool ChannelTable::plan(const membership::FlushReceive& plan) {
  plan_ = plan.plan;
  plan_items_ = plan.items;
  return plan_complete();
}

bool ChannelTable::plan_complete() const {
  for (const FlushItem& item : plan_items_) {
    const Channel& channel = channels_.at({item.comm, item.channel});
    for (uint64_t seq = item.from_seq; seq <= item.to_seq; ++seq)
      if (!channel.provisional.contains(seq) && !channel.results.contains(seq)) return false;
  }
  return true;
}

bool ChannelTable::take_flush(const FlushData& data) {
  const auto found = channels_.find(data.name);
  if (found == channels_.end() || !wedged_) return false;
  for (const auto& [seq, result] : data.results) found->second.provisional[seq] = result;
  return !plan_items_.empty() && plan_complete();
}

FlushData ChannelTable::give_flush(const membership::FlushSend& order) const {
  FlushData data{{order.comm, order.channel}, {}};
  const Channel& channel = channels_.at(data.name);
  for (uint64_t seq = order.from_seq; seq <= order.to_seq; ++seq) {
    const auto done = channel.results.find(seq);
    const auto flushed = channel.provisional.find(seq);
    if (done != channel.results.end()) {
      data.results[seq] = done->second;
    } else if (flushed != channel.provisional.end()) {
      data.results[seq] = flushed->second;
    }
  }
  return data;
}

// N* and next of one channel; `why` is 0 if its comm is not affected.
std::string ChannelTable::settle(const ChannelVerdict& verdict, Channel* channel, uint32_t why,
                                 uint64_t old_epoch) {
  if (channel->done > verdict.n_star) return "rolled back an operation that had succeeded";
  if (verdict.next <= channel->entered || verdict.next <= verdict.n_star)
    return "next would reuse a seq";
  for (uint64_t seq = channel->done + 1; seq <= verdict.n_star; ++seq) {
    const auto flushed = channel->provisional.find(seq);
    if (flushed == channel->provisional.end()) return "N* installed without its result";
    channel->results[seq] = flushed->second;
    if (seq <= channel->entered) channel->verdicts[seq] = {true, old_epoch, flushed->second};
  }
  channel->done = verdict.n_star;
  channel->answered = verdict.n_star;
  if (channel->pending && channel->entered <= verdict.n_star) channel->pending = false;
  if (why == 0) return {};
  if (channel->pending) {
    channel->verdicts[channel->entered] = {false, old_epoch, {}};
    channel->pending = false;
  }
  // What lies between N* and next has failed for good: nobody will ever need it.
  channel->done = verdict.next - 1;
  channel->next = verdict.next;
  return {};
}

std::string ChannelTable::install(const membership::InstallView& install) {
  std::map<uint64_t, uint64_t> old_epochs;
  std::map<uint64_t, uint32_t> why;
  for (const auto& [id, comm] : comms_) old_epochs[id] = comm.epoch;
  for (const auto& affected : install.affected) {
    Comm& comm = comms_.at(affected.comm);
    if (affected.new_epoch != comm.epoch + 1) return "a comm epoch skipped or repeated";
    comm.epoch = affected.new_epoch;
    comm.revoked = comm.revoked || (affected.why & membership::kAffectedByRevoke) != 0;
    why[affected.comm] = affected.why;
  }
  std::string wrong;
  for (const ChannelVerdict& verdict : install.decision->channels) {
    const auto found = channels_.find({verdict.comm, verdict.channel});
    if (found == channels_.end()) continue;
    const std::string bad =
        settle(verdict, &found->second, why[verdict.comm], old_epochs[verdict.comm]);
    if (wrong.empty()) wrong = bad;
  }
  for (auto& [name, channel] : channels_) {
    channel.provisional.clear();
    const uint64_t epoch = comms_.at(name.comm).epoch;
    std::erase_if(channel.arrived, [&](const auto& entry) { return entry.first.second < epoch; });
  }
  plan_items_.clear();
  wedged_ = false;
  return wrong;
}

}  // namespace mep::sim

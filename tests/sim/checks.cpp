// Checks of what must hold when the faults have ended.
#include <algorithm>

#include "sim/simulator.hpp"

namespace mep::sim {

// At rest: every living process is out or in one stable view whose members are all alive and in,
// and operations go on there.
bool Simulator::settled(std::string* why) {
  const Node* in = nullptr;
  uint32_t count = 0;
  for (const auto& node : nodes_) {
    if (!node->alive || node->out || node->joiner) continue;
    if (node->frozen) {
      *why = "a process is still stopped";
      return false;
    }
    if (node->machine->phase() != membership::Phase::kStable) {
      *why = "slot " + std::to_string(node->slot) + " is in a view change";
      return false;
    }
    if (in == nullptr || node->machine->view().epoch > in->machine->view().epoch) in = node.get();
    ++count;
  }
  if (in == nullptr) return true;
  const membership::View& view = in->machine->view();
  for (const auto& node : nodes_) {
    if (!node->alive || node->out || node->joiner) continue;
    if (node->machine->view().epoch != view.epoch ||
        view.incarnation(node->slot) != node->incarnation) {
      *why = "slot " + std::to_string(node->slot) + " is in another view";
      return false;
    }
  }
  if (view.members.count() != count) {
    *why = "the view has members that are gone";
    return false;
  }
  return operations_go_on(why);
}

// From here on each permanent channel must get one operation done, in the latest epoch of its comm, and what is being closed be closed.
bool Simulator::operations_go_on(std::string* why) {
  const auto in = [](const Node& node) { return node.alive && !node.out && !node.joiner; };
  if (settled_since_ == 0) {
    settled_since_ = now_;
    for (uint32_t i = 0; i < nodes_.size(); ++i)
      for (const auto& [name, channel] : nodes_[i]->channels->channels())
        if (in(*nodes_[i]) && name.comm < kFirstChild)
          settled_done_[{i, name}] = std::max(channel.called + 1, channel.next);
  }
  for (const auto& node : nodes_) {
    for (const auto& [comm, closing] : node->closings) {
      if (!in(*node) || closing.since >= settled_since_) continue;
      *why = "slot " + std::to_string(node->slot) + " does not get to close comm " +
             std::to_string(comm);
      return false;
    }
  }
  for (const auto& [key, least] : settled_done_) {
    const auto& [index, name] = key;
    const Node& node = *nodes_[index];
    if (!in(node)) continue;
    const auto& told = node.channels->channels().at(name).told;
    const bool on = std::any_of(told.lower_bound(least), told.end(), [](const auto& entry) {
      return entry.second.answer == Answer::kSuccess;
    });
    if (!on) {
      *why = "operations do not go on at slot " + std::to_string(node.slot) + " comm " +
             std::to_string(name.comm) + " channel " + std::to_string(name.channel);
      return false;
    }
  }
  return true;
}

namespace {
struct Heard {
  const std::map<uint64_t, Told>* told = nullptr;
  const Channel* channel = nullptr;  // nullptr: closed
};

Heard heard(const Node& node, const ChannelName& name) {
  const auto open = node.channels->channels().find(name);
  if (open != node.channels->channels().end()) return {&open->second.told, &open->second};
  const auto closed = node.channels->closed().find(name);
  if (closed != node.channels->closed().end()) return {&closed->second, nullptr};
  return {};
}

std::string call_name(const ChannelName& name, uint64_t seq) {
  return "seq " + std::to_string(seq) + " of comm " + std::to_string(name.comm) + " channel " +
         std::to_string(name.channel);
}
}  // namespace

// Two members of the last view were told the same of every call that both have made: the same result
// over the same contributors, and the same changes.
void Simulator::compare(uint32_t a, uint32_t b, const ChannelName& name) {
  const Heard one = heard(*nodes_[a], name);
  const Heard two = heard(*nodes_[b], name);
  if (one.told == nullptr || two.told == nullptr) return;
  for (const auto& [seq, told] : *one.told) {
    const auto at = two.told->find(seq);
    if (at == two.told->end()) {
      const Channel* channel = two.channel;
      if (channel != nullptr && channel->called >= seq && seq >= channel->first &&
          !channel->pending.contains(seq))
        wrong(b, "it has passed over " + call_name(name, seq) + ", another was told of it");
      continue;
    }
    const Told& other = at->second;
    if (other.answer != told.answer) wrong(b, "two answers for " + call_name(name, seq));
    if (told.step != 0 && other.step != 0 && told.step != other.step)
      wrong(b, "two steps at " + call_name(name, seq));
    if (told.contributors != other.contributors) wrong(b, "two results of " + call_name(name, seq));
    // A rank that came too late to make a comm knows that it was cut off, not by which change.
    if (told.changes != other.changes && !told.changes.empty() && !other.changes.empty())
      wrong(b, "two reports by " + call_name(name, seq));
  }
}

void Simulator::check_decisions() {
  std::map<ChannelName, uint32_t> first;
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = *nodes_[i];
    if (!node.alive || node.out || node.joiner) continue;
    const auto check = [&](const ChannelName& name) {
      const auto [at, is_first] = first.try_emplace(name, i);
      if (is_first) return;
      compare(at->second, i, name);
      compare(i, at->second, name);
    };
    for (const auto& [name, channel] : node.channels->channels()) check(name);
    for (const auto& [name, told] : node.channels->closed()) check(name);
    check_reported(i);
  }
}

// Each change of a comm was reported by some call on each of its channels.
void Simulator::check_reported(uint32_t index) {
  const Node& node = *nodes_[index];
  for (const auto& [name, channel] : node.channels->channels()) {
    std::set<uint64_t> reported;
    for (const auto& [seq, told] : channel.told) {
      reported.insert(told.changes.begin(), told.changes.end());
      outcome_.reports += told.changes.empty() ? 0 : 1;
      outcome_.shared += told.changes.size() > 1 ? 1 : 0;
    }
    const auto due = node.to_report.find(name.comm);
    if (due == node.to_report.end() || name.comm >= kFirstChild) continue;
    for (const auto& [epoch, when] : due->second)
      if (when < settled_since_ && !reported.contains(epoch))
        wrong(index, "no call has reported the change to view " + std::to_string(epoch) +
                         ", comm " + std::to_string(name.comm) + " channel " +
                         std::to_string(name.channel));
  }
}

void Simulator::check_end() {
  check_decisions();
  uint32_t in = 0;
  uint32_t core = 0;
  uint32_t alive = 0;
  for (const auto& node : nodes_) {
    if (!node->alive) continue;
    ++alive;
    const bool member = !node->out && !node->joiner;
    in += member ? 1 : 0;
    if (member && node->channels->rolled_back())
      wrong(0, "rolled back an operation that had succeeded: slot " + std::to_string(node->slot));
    if (!node->touched && !node->joiner) ++core;
    if (!node->out) continue;
    // A stopped rank that wakes up takes nobody's place.
    if (node->evicted && !node->touched && !link_faults_ && !requests_ && joins_ == 0 && one_host_)
      wrong(0, "a healthy rank was evicted: slot " + std::to_string(node->slot));
    // Killed, stopped for less than the threshold or slowed 20-fold: nobody living loses its place.
    if (one_host_ && !link_faults_ && !long_freeze_ && !node->touched && joins_ == 0)
      wrong(0, "a rank that was only slow was evicted: slot " + std::to_string(node->slot));
  }
  if (one_host_ && !link_faults_ && !long_freeze_ && joins_ == 0 && alive > 0 && in == 0 &&
      core > 0)
    wrong(0, "somebody lives, nobody is in");
  // An untouched majority of the first view stays whatever happens to the others.
  if (joins_ == 0 && 2 * core > ranks_ && in < core) wrong(0, "an untouched majority was not kept");
}

}  // namespace mep::sim

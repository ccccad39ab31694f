// What must hold when the faults have ended.
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
  // Under policy kNone two parts of a cut world may both go on.
  if (in == nullptr || options_.quorum == membership::QuorumPolicy::kNone) return true;
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
  if (settled_since_ == 0) {
    settled_since_ = now_;
    for (uint32_t i = 0; i < nodes_.size(); ++i) {
      if (!nodes_[i]->alive || nodes_[i]->out || nodes_[i]->joiner) continue;
      for (auto& [name, channel] : nodes_[i]->channels->channels())
        settled_done_[{i, name}] = channel.done;
    }
  }
  for (const auto& [key, done] : settled_done_) {
    const auto& [index, name] = key;
    const Node& node = *nodes_[index];
    if (!node.alive || node.out) continue;
    if (name.comm == 2 && revoked_) continue;
    if (node.channels->channels().at(name).done < done + 1) {
      *why = "operations do not go on at slot " + std::to_string(node.slot) + " comm " +
             std::to_string(name.comm) + " channel " + std::to_string(name.channel);
      return false;
    }
  }
  return true;
}

// Two members of the last view were told the same of every operation, over the same contributors.
void Simulator::check_verdicts() {
  std::map<std::tuple<uint64_t, uint64_t, uint64_t>, std::pair<uint32_t, const Verdict*>> told;
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = *nodes_[i];
    if (!node.alive || node.out || node.joiner) continue;
    for (const auto& [name, channel] : node.channels->channels()) {
      for (const auto& [seq, verdict] : channel.verdicts) {
        const auto [at, first] = told.try_emplace({name.comm, name.channel, seq}, i, &verdict);
        if (first) continue;
        const Verdict& other = *at->second.second;
        if (other.success != verdict.success)
          wrong(i, "one rank succeeded, another failed, seq " + std::to_string(seq));
        if (verdict.success && other.contributors != verdict.contributors)
          wrong(i, "two results of one operation, seq " + std::to_string(seq));
      }
    }
  }
}

void Simulator::check_end() {
  if (options_.quorum == membership::QuorumPolicy::kNone) return;
  check_verdicts();
  uint32_t in = 0;
  uint32_t core = 0;
  uint32_t alive = 0;
  for (const auto& node : nodes_) {
    if (!node->alive) continue;
    ++alive;
    const bool member = !node->out && !node->joiner;
    in += member ? 1 : 0;
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

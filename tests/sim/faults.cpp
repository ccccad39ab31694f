// The fault plan of a schedule: what goes wrong and when, often again while the last change runs.
#include <algorithm>

#include "sim/simulator.hpp"

namespace mep::sim {

using membership::SlotSet;

namespace {
enum Choice : uint64_t {
  kCrashNow = 0,
  kProcessExit = 1,
  kCrashSending = 2,
  kFreezeShort = 3,
  kFreezeLong = 4,
  kSlow = 5,
  kBreak = 6,
  kCutOne = 7,
  kPartition = 8,
  kHeal = 9,
  kRejoin = 10,
  kRecoverCall = 11,
  kLeave = 12,
  kEvict = 13,
  kRevoke = 14,
  kSettle = 15,
  kLinkUp = 17,
  kGrow = 18,
  kSplitAndKill = 19,
  kKillWinners = 20,
};
}  // namespace

void Simulator::plan_one(uint64_t time, uint32_t choice) {
  post(time - now_, {.kind = EventKind::kFault, .a = choice, .b = random_.bits()});
  faults_end_ = std::max(faults_end_, time);
}

void Simulator::plan_faults() {
  std::vector<uint32_t> menu;
  const auto offer = [&](uint32_t kind, std::initializer_list<uint32_t> choices) {
    if ((options_.faults & kind) != 0) menu.insert(menu.end(), choices);
  };
  offer(kCrashes, {kCrashNow, kCrashSending, kCrashSending});
  offer(kFreezes, {kFreezeShort, kFreezeLong});
  offer(kSlowness, {kSlow});
  offer(kLinks, {kBreak, kCutOne, kPartition});
  offer(kJoins, {kRejoin, kRejoin, kGrow});
  if ((options_.faults & kLinks) != 0 && (options_.faults & kCrashes) != 0)
    offer(kLinks, {kSplitAndKill});
  offer(kRequests, {kLeave, kEvict, kRevoke, kSettle});
  const uint32_t count = 1 + random_.below(ranks_ > 8 ? 6 : 4);
  uint64_t time = now_ + random_.between(20'000, 400'000);
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t choice = menu[random_.below(static_cast<uint32_t>(menu.size()))];
    if (choice == kRejoin && random_.percent(60)) plan_one(time - random_.below(20'000), kCrashNow);
    plan_one(time, choice);
    time += random_.percent(60) ? random_.below(20'000) : random_.between(50'000, 1'500'000);
  }
  post(faults_end_ - now_ + 300'000, {.kind = EventKind::kCheck});
}

// A node that is alive; with `running` also neither frozen nor out.
uint32_t Simulator::pick_node(bool running) {
  std::vector<uint32_t> able;
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = *nodes_[i];
    if (node.alive && (!running || (!node.frozen && !node.out))) able.push_back(i);
  }
  if (able.empty()) return membership::kNoSlot;
  return able[random_.below(static_cast<uint32_t>(able.size()))];
}

// Mostly soon; now and then long after, when a successor may be there already.
uint64_t Simulator::late_or(uint32_t bound) {
  return random_.percent(4) ? random_.between(100'000, 3'000'000) : random_.below(bound);
}

void Simulator::split(uint64_t side) {
  link_faults_ = true;
  for (uint32_t a = 0; a < nodes_.size(); ++a)
    for (uint32_t b = 0; b < nodes_.size(); ++b) {
      if (((side >> (a % 64)) & 1) == ((side >> (b % 64)) & 1)) continue;
      nodes_[a]->touched = nodes_[b]->touched = true;
      set_cut(a, b, true);
    }
}

void Simulator::crash(uint32_t index) {
  Node& node = *nodes_[index];
  if (!node.alive) return;
  node.alive = false;
  node.backlog.clear();
  trace_line(node, "dies");
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    const Node& other = *nodes_[i];
    if (i == index || !other.alive) continue;
    if (other.host == node.host)
      post(late_or(4000), {.kind = EventKind::kExit, .node = i, .from = index});
    Link& path = link(index, i);
    if (path.broken) continue;
    if (path.cut) {
      path.held.push_back({.kind = EventKind::kLost, .node = i, .from = index});
      continue;
    }
    const uint64_t after = std::max(path.last_control, now_) - now_;
    post(after + late_or(3000), {.kind = EventKind::kLost, .node = i, .from = index});
  }
}

void Simulator::freeze(uint32_t index, uint64_t duration) {
  Node& node = *nodes_[index];
  if (!node.alive || node.frozen) return;
  node.frozen = true;
  trace_line(node, "is stopped");
  if (duration > 1'200'000) {
    node.touched = true;
    long_freeze_ = true;
  }
  post(duration, {.kind = EventKind::kThaw, .node = index});
  faults_end_ = std::max(faults_end_, now_ + duration);
}

void Simulator::thaw(uint32_t index) {
  Node& node = *nodes_[index];
  if (random_.percent(25)) {
    // Still starved: its clock is looked at once, its mail is not read yet.
    node.machine->tick(now_);
    drain(index);
    if (node.alive)
      post(random_.between(25'000, 100'000), {.kind = EventKind::kThaw, .node = index});
    return;
  }
  node.frozen = false;
  // Events that have piled up are worked off in an order that only keeps that of each sender.
  std::vector<Event> backlog;
  backlog.swap(node.backlog);
  if (!backlog.empty() && random_.percent(50)) {
    const auto tick = std::find_if(backlog.begin(), backlog.end(), [](const Event& event) {
      return event.kind == EventKind::kTick;
    });
    if (tick != backlog.end()) std::rotate(backlog.begin(), tick, tick + 1);
  }
  for (Event& event : backlog) post(random_.below(2), std::move(event));
}

void Simulator::break_link(uint32_t a, uint32_t b) {
  if (link(a, b).broken) return;
  for (const auto& [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
    Link& path = link(from, to);
    path.broken = true;
    path.held.clear();
    const uint64_t late = random_.percent(20) ? random_.below(2'000'000) : random_.below(5000);
    post(late, {.kind = EventKind::kLost, .node = to, .from = from});
  }
}

void Simulator::set_cut(uint32_t from, uint32_t to, bool cut) {
  Link& path = link(from, to);
  path.cut = cut;
  if (cut) return;
  std::vector<Event> held;
  held.swap(path.held);
  for (Event& event : held) {
    path.last_control = std::max(path.last_control, now_) + 1;
    path.last_data = path.last_control;
    post(path.last_control - now_, std::move(event));
  }
}

// The joiner connects to whoever lives, gets a view and is announced once its links are tested. Joiners may miss each
// other, for some time or for good.
void Simulator::announce(uint32_t joiner) {
  for (uint32_t i = 0; i < joiner; ++i) {
    const Node& node = *nodes_[i];
    if (!node.alive || node.out) continue;
    if (node.joiner) {
      const uint32_t luck = random_.below(4);
      if (luck == 0) continue;
      const uint64_t after = luck == 1 ? 600'000 : 0;
      post(after + random_.between(500, 40'000),
           {.kind = EventKind::kReady, .node = joiner, .from = i});
      post(after + random_.between(500, 40'000),
           {.kind = EventKind::kReady, .node = i, .from = joiner});
    } else {
      post(random_.between(500, 40'000), {.kind = EventKind::kReady, .node = i, .from = joiner});
    }
  }
}

void Simulator::respawn(uint32_t slot) {
  const uint32_t old = present(slot);
  if (old != membership::kNoSlot && nodes_[old]->alive) {
    if (!nodes_[old]->out) return;
    crash(old);
  }
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = *nodes_[i];
    if (!node.alive || node.out || node.joiner || node.frozen) continue;
    ++joins_;
    const uint32_t joiner = add_node(slot, node.machine->view(), true);
    announce(joiner);
    return;
  }
}

void Simulator::ask_recover(const Event& event) {
  uint64_t seq = 1;
  for (const auto& node : nodes_)
    if (node->alive) seq = std::max(seq, node->recover_done + 1);
  if (seq == recover_seq_) {
    // One is under way; the next comes after it.
    if (event.c == 20) return;
    post(100'000, {.kind = EventKind::kFault, .a = kRecoverCall, .b = event.b, .c = event.c + 1});
    faults_end_ = std::max(faults_end_, now_ + 100'000);
    return;
  }
  recover_seq_ = seq;
  recover_slots_ = std::max<uint64_t>(ranks_, event.b);
  stops_.clear();
}

void Simulator::inject(const Event& event) {
  const uint32_t target = pick_node(true);
  const uint32_t other = pick_node(false);
  switch (event.a) {
    case kProcessExit:
      crash(static_cast<uint32_t>(event.b));
      return;
    case kHeal:
      for (auto& [pair, path] : links_)
        if (path.cut) set_cut(pair.first, pair.second, false);
      return;
    case kLinkUp: {
      for (auto& [pair, path] : links_) {
        if (!path.broken) continue;
        const Node& from = *nodes_[pair.first];
        if (!from.alive || !nodes_[pair.second]->alive) continue;
        path.broken = false;
        nodes_[pair.second]->machine->on_connection_up(from.slot, from.incarnation);
        post(0, {.kind = EventKind::kStep, .node = pair.second});
      }
      return;
    }
    case kRecoverCall:
      ask_recover(event);
      return;
    default:
      break;
  }
  if (target == membership::kNoSlot) return;
  Node& node = *nodes_[target];
  switch (event.a) {
    case kCrashNow:
      crash(target);
      break;
    case kCrashSending:
      node.sends_left = random_.below(3 * ranks_);
      break;
    case kFreezeShort:
      freeze(target, random_.between(10'000, 1'000'000));
      break;
    case kFreezeLong:
      freeze(target, random_.between(1'300'000, 12'000'000));
      break;
    case kSlow:
      // Runs 20 ms, stands 380 ms.
      for (uint64_t at = 0; at < 4'000'000; at += 400'000) {
        post(at, {.kind = EventKind::kFault, .a = 100, .b = target});
      }
      faults_end_ = std::max(faults_end_, now_ + 4'000'000);
      break;
    case 100:
      freeze(static_cast<uint32_t>(event.b), 380'000);
      break;
    case kBreak:
      if (other == target || other == membership::kNoSlot) break;
      link_faults_ = true;
      node.touched = nodes_[other]->touched = true;
      break_link(target, other);
      if (random_.percent(20)) plan_one(now_ + random_.between(1000, 3'000'000), kLinkUp);
      break;
    case kCutOne:
      if (other == target || other == membership::kNoSlot) break;
      link_faults_ = true;
      node.touched = nodes_[other]->touched = true;
      set_cut(target, other, true);
      if (random_.percent(30)) set_cut(other, target, true);
      plan_one(now_ + random_.between(10'000, 8'000'000), kHeal);
      break;
    case kPartition:
      split(random_.bits());
      plan_one(now_ + random_.between(10'000, 9'000'000), kHeal);
      break;
    case kSplitAndKill: {
      // The larger side goes on alone; then all of it but its lowest slot dies, and the smaller
      // side knows of these deaths.
      const uint32_t winners = ranks_ / 2 + 1;
      split(~uint64_t{0} << winners);
      const uint64_t when = now_ + random_.between(1'800'000, 3'500'000);
      post(when - now_, {.kind = EventKind::kFault, .a = kKillWinners, .b = winners});
      plan_one(when + random_.between(3'000'000, 9'000'000), kHeal);
      break;
    }
    case kKillWinners:
      for (uint32_t i = 1; i < event.b && i < nodes_.size(); ++i) {
        nodes_[i]->host = nodes_.back()->host;
        crash(i);
      }
      break;
    case kRejoin:
    case kGrow: {
      uint32_t slot = membership::kNoSlot;
      for (uint32_t s = 0; s < (event.a == kGrow ? max_slots_ : ranks_); ++s) {
        const uint32_t at = present(s);
        if (at == membership::kNoSlot || !nodes_[at]->alive || nodes_[at]->out) slot = s;
      }
      if (slot != membership::kNoSlot) respawn(slot);
      const uint64_t when = now_ + random_.below(60'000);
      post(when - now_, {.kind = EventKind::kFault,
                         .a = kRecoverCall,
                         .b = event.a == kGrow ? max_slots_ : ranks_});
      faults_end_ = std::max(faults_end_, when + 20'000);
      break;
    }
    case kLeave:
      requests_ = true;
      node.machine->on_leave();
      node.left = true;
      node.touched = true;
      drain(target);
      leave(target, true);
      break;
    case kEvict:
      requests_ = true;
      if (other == membership::kNoSlot || other == target) break;
      node.machine->on_evict(nodes_[other]->slot, nodes_[other]->incarnation);
      nodes_[other]->touched = true;
      drain(target);
      break;
    case kRevoke:
      node.machine->on_revoke(kSubComm);
      drain(target);
      break;
    case kSettle:
      if (!node.joiner) {
        node.machine->on_deadline(kWorldComm, random_.below(2),
                                  node.machine->comm_epoch(kWorldComm));
        drain(target);
      }
      break;
    default:
      break;
  }
}

}  // namespace mep::sim

// Carries out the actions of the simulated processes' state machines.
#include <algorithm>
#include <cstdio>

#include "sim/simulator.hpp"

namespace mep::sim {

using membership::SlotSet;

void Simulator::drain(uint32_t index) {
  Node& node = *nodes_[index];
  const std::vector<membership::Action> actions = node.machine->take_actions();
  for (const membership::Action& action : actions) {
    if (!node.alive || !carry_out(index, action)) return;
    note(action.index() + 77);
  }
  if (!node.alive || node.out || node.joiner) return;
  const bool stable = node.machine->phase() == membership::Phase::kStable;
  if (stable)
    node.frozen_since = 0;
  else if (node.frozen_since == 0)
    node.frozen_since = now_;
}

void Simulator::push_row(uint32_t index, const membership::PushRow& push) {
  Node& node = *nodes_[index];
  if (options_.trace) {
    const membership::Row& row = *push.row;
    std::printf("%9s    slot %u/%llu row v%llu epoch %llu round %u suspected", "", row.slot,
                static_cast<unsigned long long>(row.incarnation),
                static_cast<unsigned long long>(row.version),
                static_cast<unsigned long long>(row.epoch), row.round);
    row.suspected.each([](uint32_t slot) { std::printf(" %u", slot); });
    std::printf(" down");
    row.link_down.each([](uint32_t slot) { std::printf(" %u", slot); });
    std::printf(" silent");
    row.silent.each([](uint32_t slot) { std::printf(" %u", slot); });
    std::printf(
        " standing %d frozen %d offer %d(%u.%u) accepted %d(%u.%u) recover %llu ready %zu\n",
        static_cast<int>(row.standing), row.frozen, row.offer.value != nullptr,
        row.offer.ballot.round, row.offer.ballot.suspected, row.accepted.value != nullptr,
        row.accepted.ballot.round, row.accepted.ballot.suspected,
        static_cast<unsigned long long>(row.recover_seq), row.ready.size());
  }
  for (uint32_t to = 0; to < nodes_.size(); ++to) {
    if (to == index || !push.to.has(nodes_[to]->slot)) continue;
    if (node.sends_left == 0) {
      crash(index);
      return;
    }
    --node.sends_left;
    send(index, to, {.kind = EventKind::kRow, .row = push.row}, true);
  }
}

// False if the process is gone now.
bool Simulator::carry_out(uint32_t index, const membership::Action& action) {
  Node& node = *nodes_[index];
  if (const auto* push = std::get_if<membership::PushRow>(&action)) {
    push_row(index, *push);
  } else if (const auto* beat = std::get_if<membership::SendHeartbeat>(&action)) {
    for (uint32_t to = 0; to < nodes_.size(); ++to)
      if (to != index && nodes_[to]->alive && beat->to.has(nodes_[to]->slot))
        send(index, to, {.kind = EventKind::kHeartbeat}, true);
  } else if (const auto* give = std::get_if<membership::SendView>(&action)) {
    for (uint32_t to = 0; to < nodes_.size(); ++to)
      if (to != index && give->to.has(nodes_[to]->slot))
        send(index, to, {.kind = EventKind::kView, .view = give->view}, true);
  } else if (const auto* freeze = std::get_if<membership::Freeze>(&action)) {
    post(random_.below(2000), {.kind = EventKind::kFrozen, .node = index, .a = freeze->epoch});
  } else if (const auto* plan = std::get_if<membership::CatchUpReceive>(&action)) {
    if (node.channels->plan(*plan))
      post(0, {.kind = EventKind::kFlushed, .node = index, .a = plan->plan});
  } else if (const auto* order = std::get_if<membership::CatchUpSend>(&action)) {
    auto data = std::make_shared<const CatchUpData>(node.channels->give_catch_up(*order));
    for (uint32_t to = 0; to < nodes_.size(); ++to)
      if (nodes_[to]->slot == order->to)
        send(index, to, {.kind = EventKind::kCatchUp, .catch_up = data}, false);
  } else if (const auto* fence = std::get_if<membership::FenceOut>(&action)) {
    for (const auto& other : nodes_) {
      if (fence->confirmed && other->slot == fence->slot &&
          other->incarnation == fence->incarnation && other->alive && !other->left)
        wrong(index, "a living process was taken for dead");
    }
    post(random_.below(5000),
         {.kind = EventKind::kFenced, .node = index, .a = fence->slot, .b = fence->incarnation});
  } else if (const auto* prepare = std::get_if<membership::Prepare>(&action)) {
    post(random_.below(1000), {.kind = EventKind::kPrepared, .node = index, .a = prepare->token});
  } else if (const auto* installed = std::get_if<membership::InstallView>(&action)) {
    install(index, *installed);
  } else if (const auto* ask = std::get_if<membership::AskWitness>(&action)) {
    witness_.try_emplace(ask->epoch, ask->digest);
    post(random_.below(3000), {.kind = EventKind::kWitness, .node = index, .a = ask->epoch});
  } else if (const auto* report = std::get_if<membership::PeerReport>(&action)) {
    if (report->health == membership::PeerHealth::kDead) {
      for (const auto& other : nodes_)
        if (other->slot == report->slot && other->incarnation == report->incarnation &&
            other->alive && !other->left)
          wrong(index, "a living process was reported dead");
    }
  } else {
    if (options_.trace)
      std::printf("slot %u is out: %s\n", node.slot,
                  std::holds_alternative<membership::NoQuorum>(action) ? "no quorum" : "evicted");
    node.evicted = std::holds_alternative<membership::SelfEvicted>(action);
    leave(index, true);
  }
  return node.alive;
}

// The process takes no more part; it exits some time later.
void Simulator::leave(uint32_t index, bool own_statement) {
  Node& node = *nodes_[index];
  node.out = true;
  node.left = node.left || own_statement;
  if (random_.percent(70))
    post(random_.between(20'000, 200'000), {.kind = EventKind::kFault, .a = 1, .b = index});
}

void Simulator::install(uint32_t index, const membership::InstallView& decision) {
  Node& node = *nodes_[index];
  ++outcome_.installs;
  if (options_.trace) {
    std::printf(
        "%9.3f ms slot %u installs epoch %llu:", static_cast<double>(now_ - 1'000'000) / 1000,
        node.slot, static_cast<unsigned long long>(decision.view->epoch));
    decision.view->members.each([](uint32_t slot) { std::printf(" %u", slot); });
    std::printf("\n");
  }
  check_install(index, decision);
  check_added(index, *decision.decision);
  if (decision.recover_answered != 0) node.recover_done = decision.recover_answered;
  if (decision.joined) {
    node.joiner = false;
    create_comms(&node, &decision);
  } else {
    node.channels->install(decision);
    note_reports(&node, decision);
  }
  if (node.frozen_since != 0)
    outcome_.longest_change_us = std::max(outcome_.longest_change_us, now_ - node.frozen_since);
  node.frozen_since = 0;
  if (!decision.joined) return;
  ++outcome_.joined;
  for (const auto& [name, channel] : node.channels->channels())
    start_calls(index, name, 1 + random_.below(1000));
}

// Which changes the calls of each comm have to report; those that only add members are none.
void Simulator::note_reports(Node* node, const membership::InstallView& decision) const {
  for (const membership::AffectedComm& affected : decision.affected) {
    const SlotSet& members = node->channels->comms().at(affected.comm).members;
    bool told = affected.why != membership::kAffectedByMembers;
    for (const membership::Removal& removal : decision.decision->removed)
      told = told || members.has(removal.slot);
    if (told) node->to_report[affected.comm][decision.view->epoch] = now_;
  }
}

// One view per epoch among the living; the same consequences for each comm; nobody is taken in
// before the excluded are fenced out.
void Simulator::check_install(uint32_t index, const membership::InstallView& decision) {
  Node& node = *nodes_[index];
  membership::Row carrier;
  auto value = std::make_shared<membership::Proposal>(*decision.decision);
  for (membership::ChannelDecision& channel : value->channels)
    channel.donor = membership::kNoSlot;  // a hint, which may change from ballot to ballot
  carrier.committed = std::move(value);
  std::vector<uint8_t> bytes = membership::encode_row(carrier);
  const std::vector<uint8_t> view = membership::encode_view(*decision.view);
  bytes.insert(bytes.end(), view.begin(), view.end());
  const uint64_t epoch = decision.view->epoch;
  for (const auto& other : nodes_) {
    if (!other->alive || other.get() == &node) continue;
    const auto same = other->installed.find(epoch);
    if (same != other->installed.end() && same->second != bytes)
      wrong(index, "two views of epoch " + std::to_string(epoch));
  }
  node.installed[epoch] = std::move(bytes);
  if (decision.view->incarnation(node.slot) != node.incarnation)
    wrong(index, "a view without its own rank");
  for (const membership::AffectedComm& affected : decision.affected) {
    const uint64_t what = affected.new_epoch * 8 + affected.why;
    node.affected[{epoch, affected.comm}] = what;
    for (const auto& other : nodes_) {
      const auto found = other->affected.find({epoch, affected.comm});
      if (other->alive && found != other->affected.end() && found->second != what)
        wrong(index, "a comm changes differently on two ranks");
    }
  }
  if (decision.joined) return;
  for (const membership::Removal& removal : decision.decision->removed)
    if (!node.fenced.contains({removal.slot, removal.incarnation}) &&
        node.machine->view().epoch == epoch)
      wrong(index, "a view before the excluded were fenced out");
}

void Simulator::check_added(uint32_t index, const membership::Proposal& value) {
  for (const membership::Member& joiner : value.added)
    for (const membership::Member& other : value.added)
      if (joiner != other && !met_.contains({joiner.incarnation, other.incarnation}))
        wrong(index, "two joiners came in that have missed each other");
}

}  // namespace mep::sim

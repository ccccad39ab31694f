#include "sim/simulator.hpp"

#include <algorithm>
#include <cstdio>

namespace mep::sim {

using membership::Member;
using membership::Row;
using membership::SlotSet;
using membership::Start;
using membership::View;

constexpr uint64_t kStartUs = 1'000'000;

Outcome run_schedule(const Options& options) {
  return Simulator(options).run();
}

Simulator::Simulator(const Options& options) : options_(options), random_(options.seed) {
  now_ = kStartUs;
  const uint32_t size = random_.below(1000);
  ranks_ = size < 880   ? 2 + random_.below(4)
           : size < 995 ? 5 + random_.below(4)
                        : 9 + random_.below(24);
  if (options_.ranks != 0) ranks_ = options_.ranks;
  const uint32_t drawn[] = {kCrashes,
                            kCrashes | kRequests,
                            kFreezes | kCrashes,
                            kSlowness | kCrashes,
                            kLinks,
                            kLinks | kCrashes | kFreezes,
                            kJoins | kCrashes,
                            kJoins | kCrashes | kRequests | kFreezes,
                            kCrashes | kFreezes | kLinks | kJoins | kRequests | kSlowness,
                            kSlowness};
  const uint32_t choice = random_.below(10);
  if (options_.faults == 0) options_.faults = drawn[choice];
  max_slots_ = ranks_ + (options_.faults & kJoins ? random_.below(3) : 0);
  // Quicker than by default: a schedule holds more changes so.
  config_ = membership::config_for(50'000, 1'500'000);
  config_.quorum = options_.quorum;
  // Not drawn from random_: a seed stays the schedule that it was.
  if (options_.leads_only.value_or(options_.seed / 2 % 2 == 1)) {
    config_.rows_to_all_up_to = 0;
    config_.leads = options_.seed / 4 % 2 == 1 ? 3 : 2;
  }
  config_.heartbeat_interval_us = random_.percent(15) ? 50'000 : 250'000;
  if (config_.heartbeat_interval_us > 50'000) {
    config_.slow_after_us = 700'000;
    config_.late_tick_us = 350'000;
  }
  max_delay_us_ = random_.percent(20) ? 30'000 : random_.percent(50) ? 3000 : 300;
  think_us_ = random_.between(10'000, 200'000);
  const bool several_hosts = (options_.faults & kLinks) != 0 || random_.percent(20);
  const uint32_t hosts = several_hosts ? 1 + random_.below(ranks_) : 1;
  one_host_ = hosts == 1;
  View view;
  view.epoch = 1;
  for (uint32_t slot = 0; slot < ranks_; ++slot) {
    view.put({slot, 100 + slot, 1 + random_.below(hosts)});
    if (random_.percent(60)) sub_comm_.add(slot);
    if (random_.percent(50)) other_comm_.add(slot);
  }
  splits_ = random_.percent(60);
  for (uint32_t slot = 0; slot < ranks_; ++slot) add_node(slot, view, false);
  for (uint32_t node = 0; node < ranks_; ++node) create_comms(nodes_[node].get(), nullptr);
  for (uint32_t node = 0; node < ranks_; ++node)
    for (const auto& [name, channel] : nodes_[node]->channels->channels())
      start_calls(node, name, random_.below(5000));
  plan_faults();
  outcome_.ranks = ranks_;
  outcome_.faults = options_.faults;
}

uint32_t Simulator::add_node(uint32_t slot, const View& view, bool joining) {
  auto node = std::make_unique<Node>();
  node->slot = slot;
  node->incarnation = joining ? next_incarnation_++ : view.incarnation(slot);
  node->host = joining ? 1 : view.host(slot);
  node->joiner = joining;
  Start start;
  start.slot = slot;
  start.incarnation = node->incarnation;
  start.max_slots = max_slots_;
  start.now_us = now_;
  start.view = view;
  start.joining = joining;
  start.config = config_;
  start.mutations = options_.mutations;
  node->machine = std::make_unique<membership::Membership>(std::move(start));
  Wrong wrong = options_.wrong;
  wrong.complete_after_freeze = options_.mutations.complete_after_freeze;
  node->channels = std::make_unique<ChannelTable>(slot, node->incarnation, wrong);
  nodes_.push_back(std::move(node));
  const uint32_t index = static_cast<uint32_t>(nodes_.size() - 1);
  post(random_.below(static_cast<uint32_t>(config_.heartbeat_interval_us)),
       {.kind = EventKind::kTick, .node = index});
  post(0, {.kind = EventKind::kStep, .node = index});
  return index;
}

// At the start, or when a joiner comes in: comms that exist go on at the decision's numbers.
void Simulator::create_comms(Node* node, const membership::InstallView* entered) {
  const auto add = [&](uint64_t comm, const SlotSet& members, uint32_t channels) {
    uint64_t epoch = 1;
    if (entered != nullptr) {
      bool known = false;
      for (const auto& state : entered->decision->comms) {
        if (state.comm != comm) continue;
        known = true;
        epoch = state.epoch + 1;
      }
      if (!known) return;
    }
    node->machine->on_comm_created(comm, epoch, members);
    node->channels->create(comm, {epoch, members, {}, false, false}, channels,
                           node->machine->view());
  };
  add(kWorldComm, SlotSet::first(max_slots_), 2);
  if (sub_comm_.has(node->slot)) add(kSubComm, sub_comm_, 1);
  if (other_comm_.has(node->slot)) add(kOtherComm, other_comm_, 1);
  if (entered == nullptr) return;
  for (const auto& decision : entered->decision->channels) {
    const ChannelName name{decision.comm, decision.channel};
    if (!node->channels->channels().contains(name)) continue;
    Channel& channel = node->channels->channel(name);
    channel.called = channel.done = decision.next - 1;
    channel.next = channel.first = decision.next;
    channel.knows_step = false;
  }
}

void Simulator::post(uint64_t delay, Event event) {
  event.time = now_ + delay;
  event.order = order_++;
  queue_.push(std::move(event));
}

void Simulator::trace_line(const Node& node, const char* what) const {
  if (options_.trace)
    std::printf("%9.3f ms slot %u/%llu %s\n", static_cast<double>(now_ - kStartUs) / 1000,
                node.slot, static_cast<unsigned long long>(node.incarnation), what);
}

void Simulator::wrong(uint32_t node, const std::string& what) {
  if (!outcome_.violation.empty()) return;
  outcome_.violation = what + " (slot " + std::to_string(nodes_[node]->slot) + ", incarnation " +
                       std::to_string(nodes_[node]->incarnation) + ", at " +
                       std::to_string(now_ - kStartUs) + " us)";
}

uint32_t Simulator::present(uint32_t slot) const {
  for (uint32_t node = static_cast<uint32_t>(nodes_.size()); node > 0; --node)
    if (nodes_[node - 1]->slot == slot) return node - 1;
  return membership::kNoSlot;
}

void Simulator::send(uint32_t from, uint32_t to, Event event, bool control) {
  Link& path = link(from, to);
  if (path.broken) return;
  event.node = to;
  event.from = from;
  uint64_t& last = control ? path.last_control : path.last_data;
  const uint64_t delay =
      random_.percent(5) ? random_.below(10 * max_delay_us_) : random_.below(max_delay_us_);
  last = std::max(last, now_ + 1 + delay);
  if (path.cut) {
    path.held.push_back(std::move(event));
    return;
  }
  post(last - now_, std::move(event));
}

Outcome Simulator::run() {
  while (!queue_.empty() && outcome_.violation.empty()) {
    Event event = queue_.top();
    queue_.pop();
    now_ = event.time;
    if (event.kind == EventKind::kCheck) {
      std::string why;
      const bool done = settled(&why);
      if (done) break;
      if (now_ > faults_end_ + 120'000'000) {
        wrong(0, "the world does not come to rest: " + why);
        break;
      }
      post(100'000, {.kind = EventKind::kCheck});
      continue;
    }
    ++outcome_.events;
    if (event.kind == EventKind::kFault) {
      note(event.a * 31 + event.b);
      inject(event);
      continue;
    }
    dispatch(std::move(event));
  }
  if (outcome_.violation.empty()) check_end();
  outcome_.hash = hash_;
  outcome_.virtual_us = now_ - kStartUs;
  return outcome_;
}

void Simulator::dispatch(Event event) {
  Node& node = *nodes_[event.node];
  if (event.kind == EventKind::kThaw) {
    if (node.alive && node.frozen) thaw(event.node);
    return;
  }
  if (!node.alive) return;
  if (node.frozen) {
    // One late tick stands for all that were missed.
    if (event.kind == EventKind::kTick &&
        std::any_of(node.backlog.begin(), node.backlog.end(),
                    [](const Event& e) { return e.kind == EventKind::kTick; }))
      return;
    node.backlog.push_back(std::move(event));
    return;
  }
  note(static_cast<uint64_t>(event.kind) * 1000003 + event.node * 8191 + event.from + now_ * 17);
  if (options_.trace && event.kind != EventKind::kTick && event.kind != EventKind::kHeartbeat &&
      event.kind != EventKind::kData && event.kind != EventKind::kCall)
    std::printf("%9.3f ms slot %u/%llu event %d from slot %u a=%llu b=%llu\n",
                static_cast<double>(now_ - kStartUs) / 1000, node.slot,
                static_cast<unsigned long long>(node.incarnation), static_cast<int>(event.kind),
                nodes_[event.from]->slot, static_cast<unsigned long long>(event.a),
                static_cast<unsigned long long>(event.b));
  deliver(event);
  // Operations do not touch the state machine.
  if (event.kind != EventKind::kData && event.kind != EventKind::kCall) drain(event.node);
  after_event(event.node);
}

void Simulator::deliver(const Event& event) {
  Node& node = *nodes_[event.node];
  const Node& from = *nodes_[event.from];
  const bool message = event.kind == EventKind::kRow || event.kind == EventKind::kHeartbeat ||
                       event.kind == EventKind::kData || event.kind == EventKind::kCatchUp ||
                       event.kind == EventKind::kView || event.kind == EventKind::kClosing ||
                       event.kind == EventKind::kHeld;
  if (message && link(event.from, event.node).broken) return;
  switch (event.kind) {
    case EventKind::kTick:
      node.machine->tick(now_);
      if (!node.out)
        post(config_.heartbeat_interval_us - random_.below(5000),
             {.kind = EventKind::kTick, .node = event.node});
      break;
    case EventKind::kRow:
      node.machine->on_row(event.row);
      break;
    case EventKind::kHeartbeat:
      node.machine->on_heartbeat(from.slot, from.incarnation);
      break;
    case EventKind::kView:
      node.machine->on_view_snapshot(*event.view);
      break;
    case EventKind::kExit:
      node.machine->on_process_exit(from.slot, from.incarnation);
      break;
    case EventKind::kLost:
      node.machine->on_connection_lost(from.slot, from.incarnation);
      break;
    default:
      deliver_more(event);
      break;
  }
}

void Simulator::deliver_more(const Event& event) {
  Node& node = *nodes_[event.node];
  const Node& from = *nodes_[event.from];
  const ChannelName name{event.a, event.b};
  switch (event.kind) {
    case EventKind::kData:
      if (node.out || node.fenced.contains({from.slot, from.incarnation})) break;
      if (node.machine->view().members.has(from.slot) &&
          node.machine->view().incarnation(from.slot) > from.incarnation) {
        wrong(event.node, "a byte of an old incarnation landed after its successor came in");
        break;
      }
      node.channels->arrive(event.data, node.machine->view());
      break;
    case EventKind::kCatchUp:
      if (!node.out && node.channels->take_catch_up(*event.catch_up))
        node.machine->on_caught_up(node.channels->plan_number());
      break;
    case EventKind::kFrozen:
      if (node.machine->view().epoch == event.a && !node.out && !node.joiner)
        node.machine->on_frozen(event.a, node.channels->freeze(node.machine->view()));
      break;
    case EventKind::kFenced:
      node.fenced.insert({static_cast<uint32_t>(event.a), event.b});
      node.machine->on_fenced(static_cast<uint32_t>(event.a), event.b);
      break;
    case EventKind::kFlushed:
      node.machine->on_caught_up(event.a);
      break;
    case EventKind::kPrepared:
      node.machine->on_prepared(event.a);
      break;
    case EventKind::kWitness:
      node.machine->on_witness(event.a, witness_[event.a]);
      break;
    case EventKind::kReady:
      met_.insert({node.incarnation, from.incarnation});
      node.machine->on_joiner_ready({from.slot, from.incarnation, from.host});
      break;
    case EventKind::kGone:
      node.machine->on_joiner_gone(from.slot, from.incarnation, event.a != 0);
      node.machine->on_joiner_lost(from.slot);
      break;
    case EventKind::kRecover:
      if (!node.out && !node.joiner && node.recover_done < event.a) {
        SlotSet wanted = SlotSet::first(static_cast<uint32_t>(event.b));
        node.machine->on_recover(event.a, wanted, now_ + event.c);
      }
      break;
    case EventKind::kDeadline: {
      if (node.out || node.joiner) break;
      const auto channel = node.channels->channels().find(name);
      if (channel != node.channels->channels().end() && channel->second.pending.contains(event.c))
        node.machine->on_deadline(name.comm, name.channel,
                                  node.channels->comms().at(name.comm).epoch);
      break;
    }
    case EventKind::kCall:
      if (!node.out && !node.joiner) call_next(event.node, name);
      break;
    case EventKind::kBirth:
      if (!node.out) give_birth(event.node, event.a);
      break;
    case EventKind::kClosing:
      if (!node.out) node.questions.push_back({event.from, event.a, event.b});
      break;
    case EventKind::kHeld: {
      const auto closing = node.closings.find(event.a);
      if (closing != node.closings.end())
        closing->second.awaited.erase({from.slot, from.incarnation});
      break;
    }
    default:
      break;
  }
}

}  // namespace mep::sim

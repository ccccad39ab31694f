// Calls, splits, the closing of comms, and the pause that a recover call is.
#include "sim/script.hpp"

#include <algorithm>

#include "sim/simulator.hpp"

namespace mep::sim {

using membership::SlotSet;
using membership::View;
using mep_reference::mix;

namespace {
constexpr uint64_t kAskAgainUs = 1'000'000;
}  // namespace

// The same on all ranks for a step of the program.
Kind Simulator::kind_of(const ChannelName& name, uint64_t step) const {
  if (name.comm >= kFirstChild) return step % 3 == 2 ? Kind::kRoot : Kind::kAll;
  return name.channel == 1 ? Kind::kRoot : Kind::kAll;
}

uint64_t Simulator::last_step(uint64_t comm) const {
  return comm >= kFirstChild ? 2 + mix(options_.seed, comm) % 4 : UINT64_MAX;
}

void Simulator::call_next(uint32_t index, const ChannelName& name) {
  Node& node = *nodes_[index];
  const auto found = node.channels->channels().find(name);
  if (found == node.channels->channels().end() || node.closings.contains(name.comm)) return;
  const Channel& channel = found->second;
  if (channel.step >= last_step(name.comm)) return;
  const Pace& pace = node.paces[name];
  // When the faults are over nobody is slower than the deadlines allow.
  const bool quiet = now_ > faults_end_;
  const uint64_t pause = quiet ? think_us_ / 2 : think_us_ * pace.slowness;
  uint64_t think = pause / 2 + random_.below(static_cast<uint32_t>(pause));
  if (rests(node, name)) {
    try_recover(index);
    post(think / 2 + 1000,
         {.kind = EventKind::kCall, .node = index, .a = name.comm, .b = name.channel});
    return;
  }
  if (random_.percent(4)) {
    node.channels->refuse(name);
  } else if (channel.pending.size() < pace.window) {
    make_call(index, name);
    if (!quiet && random_.percent(2)) think += random_.between(100'000, 2'500'000);
    if (channel.pending.size() < pace.window) think /= 4;
  }
  post(think, {.kind = EventKind::kCall, .node = index, .a = name.comm, .b = name.channel});
}

void Simulator::make_call(uint32_t index, const ChannelName& name) {
  Node& node = *nodes_[index];
  const Channel& channel = node.channels->channels().at(name);
  Call call;
  call.kind = kind_of(name, channel.step + 1);
  if (call.kind == Kind::kAll && channel.step > 0 && random_.below(1000) < 4) call.what = 1;
  Contribution contribution;
  if (!node.channels->call(name, call, node.machine->view(), &contribution)) return;
  ++outcome_.operations;
  if (contribution.slot != membership::kNoSlot) {
    const SlotSet& members = node.channels->comms().at(name.comm).members;
    for (uint32_t to = 0; to < nodes_.size(); ++to)
      if (to != index && members.has(nodes_[to]->slot))
        send(index, to, {.kind = EventKind::kData, .data = contribution}, false);
  }
  if (channel.pending.contains(channel.called))
    post(random_.between(1'200'000, 3'000'000), {.kind = EventKind::kDeadline,
                                                 .node = index,
                                                 .a = name.comm,
                                                 .b = name.channel,
                                                 .c = channel.called});
}

void Simulator::trace_told(const Node& node, const ChannelName& name, uint64_t seq,
                           const Told& told) const {
  const char* const answers[] = {"success", "mismatch", "changed"};
  std::string line = "is told: comm " + std::to_string(name.comm) + " channel " +
                     std::to_string(name.channel) + " seq " + std::to_string(seq) + " step " +
                     std::to_string(told.step) + ": " + answers[static_cast<int>(told.answer)];
  for (const uint64_t change : told.changes) line += " view " + std::to_string(change);
  for (const auto& [slot, share] : told.contributors) line += " " + std::to_string(slot);
  trace_line(node, line.c_str());
}

// Acts on the calls that have returned since the last look.
void Simulator::after_event(uint32_t index) {
  Node& node = *nodes_[index];
  if (!node.alive || node.out || node.joiner) return;
  if (!node.channels->fault().empty()) wrong(index, node.channels->fault());
  for (const auto& [name, seq] : node.channels->take_fresh()) {
    const auto found = node.channels->channels().find(name);
    if (found == node.channels->channels().end()) continue;
    const Told told = found->second.told.at(seq);
    if (options_.trace) trace_told(node, name, seq, told);
    if (name.comm >= kFirstChild) {
      const bool failed = told.step == 1 && told.answer != Answer::kSuccess;
      if (failed || told.step >= last_step(name.comm)) start_closing(index, name.comm);
    } else if (splits_ && name == ChannelName{kWorldComm, 0} && told.step % 4 == 3 &&
               told.answer == Answer::kSuccess) {
      plan_birth(index, kFirstChild + seq, told.contributors);
    }
  }
  answer_questions(index);
  while (!node.closings.empty() && try_close(index)) {
  }
}

// --- Comms that a split makes ---------------------------------------------------------------------

void Simulator::plan_birth(uint32_t index, uint64_t comm, const Contributors& contributors) {
  Node& node = *nodes_[index];
  Birth birth{comm, {}};
  for (const auto& [slot, share] : contributors)
    if (mix(options_.seed + comm, slot) % 100 < 75) birth.members[slot] = share;
  if (birth.members.size() < 2 || !birth.members.contains(node.slot)) return;
  node.births.push_back(std::move(birth));
  post(random_.below(20'000), {.kind = EventKind::kBirth, .node = index, .a = comm});
}

// A comm is made between changes only, and only if its members are those of the split still and none
// of them has had it settled: else a change has cut its first operation off for all.
void Simulator::give_birth(uint32_t index, uint64_t comm) {
  Node& node = *nodes_[index];
  const auto birth = std::find_if(node.births.begin(), node.births.end(),
                                  [&](const Birth& each) { return each.comm == comm; });
  if (birth == node.births.end()) return;
  const bool changing =
      node.machine->phase() != membership::Phase::kStable || node.channels->frozen();
  if (changing && !options_.wrong.born_in_change) {
    post(2000, {.kind = EventKind::kBirth, .node = index, .a = comm});
    return;
  }
  const View& view = node.machine->view();
  Comm state;
  state.free = changing;
  bool complete = !node.channels->settled_before(comm) || options_.wrong.born_unaware;
  for (const auto& [slot, share] : birth->members) {
    state.members.add(slot);
    state.incarnations[slot] = share.incarnation;
    complete = complete && view.incarnation(slot) == share.incarnation;
  }
  node.births.erase(birth);
  trace_line(node, ("makes comm " + std::to_string(comm) + (complete ? "" : ", too late")).c_str());
  if (!complete && !options_.wrong.born_too_late) {
    node.channels->note_stillborn(comm);
    return;
  }
  node.machine->on_comm_created(comm, 1, state.members);
  node.channels->create(comm, state, 1, view);
  ++outcome_.children;
  start_calls(index, {comm, 0}, random_.below(3000));
}

void Simulator::start_calls(uint32_t index, const ChannelName& name, uint64_t after) {
  Pace& pace = nodes_[index]->paces[name];
  pace.window = random_.percent(60) ? 1 : 1 + random_.below(3);
  pace.slowness = random_.percent(12) ? 8 : 1;
  post(after, {.kind = EventKind::kCall, .node = index, .a = name.comm, .b = name.channel});
}

// --- Closing --------------------------------------------------------------------------------------

// A rank that closes a comm asks the other members whether they hold what is done here, and takes part in
// changes like a member until they do, or until a change has seen to it.
void Simulator::start_closing(uint32_t index, uint64_t comm) {
  Node& node = *nodes_[index];
  if (node.closings.contains(comm)) return;
  const Comm& state = node.channels->comms().at(comm);
  const View& view = node.machine->view();
  Closing closing{state.epoch, now_, now_, {}};
  if (state.moved && !options_.wrong.closes_at_once) {
    const uint64_t done = node.channels->channels().at({comm, 0}).reported();
    for (const auto& [slot, incarnation] : state.incarnations) {
      if (slot == node.slot || view.incarnation(slot) != incarnation) continue;
      closing.awaited.insert({slot, incarnation});
      for (uint32_t to = 0; to < nodes_.size(); ++to)
        if (nodes_[to]->slot == slot && nodes_[to]->incarnation == incarnation)
          send(index, to, {.kind = EventKind::kClosing, .a = comm, .b = done}, true);
    }
  }
  node.closings[comm] = std::move(closing);
}

// True if a comm was closed.
bool Simulator::try_close(uint32_t index) {
  Node& node = *nodes_[index];
  if (node.machine->phase() != membership::Phase::kStable || node.channels->frozen()) return false;
  const View& view = node.machine->view();
  for (auto& [comm, closing] : node.closings) {
    std::erase_if(closing.awaited, [&](const auto& one) {
      return view.incarnation(one.first) != one.second || node.machine->confirmed_dead(one.first);
    });
    const uint64_t epoch = node.channels->comms().at(comm).epoch;
    if (closing.awaited.empty() || epoch != closing.epoch) {
      close_now(index, comm);
      return true;
    }
    if (now_ < closing.asked_again + kAskAgainUs) continue;
    closing.asked_again = now_;
    node.machine->on_deadline(comm, 0, epoch);
    drain(index);
    return false;
  }
  return false;
}

void Simulator::close_now(uint32_t index, uint64_t comm) {
  Node& node = *nodes_[index];
  trace_line(node, ("has closed comm " + std::to_string(comm)).c_str());
  node.closings.erase(comm);
  node.machine->on_comm_destroyed(comm);
  node.channels->close(comm);
  ++outcome_.closed;
}

void Simulator::answer_questions(uint32_t index) {
  Node& node = *nodes_[index];
  std::erase_if(node.questions, [&](const Question& question) {
    if (!node.channels->holds({question.comm, 0}, question.done, node.machine->view()))
      return false;
    send(index, question.from, {.kind = EventKind::kHeld, .a = question.comm}, true);
    return true;
  });
}

// --- Recover --------------------------------------------------------------------------------------

// A recover call is one point of the program on all ranks, with nothing under way: once it is asked
// for, each channel goes on to where the furthest rank is by then.
bool Simulator::rests(const Node& node, const ChannelName& name) {
  if (node.recover_done >= recover_seq_) return false;
  uint64_t furthest = 0;
  const auto known = stops_.find(name);
  if (known != stops_.end()) {
    furthest = known->second;
  } else {
    for (const auto& other : nodes_) {
      if (!other->alive || other->out || other->joiner) continue;
      const auto found = other->channels->channels().find(name);
      if (found != other->channels->channels().end())
        furthest = std::max(furthest, found->second.called);
    }
    stops_[name] = furthest;
  }
  return node.channels->channels().at(name).called >= furthest;
}

void Simulator::try_recover(uint32_t index) {
  Node& node = *nodes_[index];
  if (node.recover_asked >= recover_seq_ || !node.births.empty() || !node.closings.empty()) return;
  for (const auto& [name, channel] : node.channels->channels())
    if (!channel.pending.empty() || !rests(node, name)) return;
  node.recover_asked = recover_seq_;
  post(0, {.kind = EventKind::kRecover,
           .node = index,
           .a = recover_seq_,
           .b = recover_slots_,
           .c = random_.between(50'000, 1'500'000)});
}

}  // namespace mep::sim

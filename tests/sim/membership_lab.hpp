// Some membership state machines that talk to each other without delay, for tests that look at single steps:
// messages take no time, time moves in steps of 10 ms.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "core/membership/membership.hpp"

namespace membership_lab {

using namespace mep::membership;  // NOLINT(google-build-using-namespace): it is about nothing else

constexpr uint64_t kStepUs = 10'000;

struct Rank {
  std::unique_ptr<Membership> machine;
  bool alive = true;
  bool stopped = false;
  bool stops_once_accepted = false;
  uint64_t tick_every_us = kStepUs;
  uint64_t ticked_us = 0;
  std::vector<std::pair<uint32_t, RowPtr>> backlog;  // row, or a heartbeat of that slot
  std::vector<InstallView> installed;
  std::vector<PeerReport> reports;
  std::vector<CatchUpSend> sends;
  std::vector<FenceOut> fences;
  uint64_t installed_us = 0;
  uint64_t no_quorum_us = 0;
  uint64_t evicted_us = 0;
  bool frozen = false;
  uint64_t done = 5;
  uint64_t ahead = 1;  // calls beyond `done`
};

class Lab {
 public:
  // Ranks are dealt to the hosts in turn. `siblings` are threads of one process.
  explicit Lab(uint32_t ranks, const Config& config = {}, uint32_t hosts = 1,
               const SlotSet& siblings = {})
      : config_(config), hosts_(hosts), siblings_(siblings) {
    view_.epoch = 1;
    for (uint32_t slot = 0; slot < ranks; ++slot) view_.put({slot, 100 + slot, host_of(slot)});
    for (uint32_t slot = 0; slot < ranks; ++slot) add(slot, 100 + slot, false);
    run_for(100'000);
  }

  uint32_t add(uint32_t slot, uint64_t incarnation, bool joining) {
    Start start;
    start.slot = slot;
    start.incarnation = incarnation;
    start.max_slots = kMaxSlots;
    start.config = config_;
    start.now_us = now_us;
    start.view = joining ? ranks[0].machine->view() : view_;
    start.joining = joining;
    if (!joining && siblings_.has(slot)) start.siblings = siblings_;
    Rank rank;
    rank.machine = std::make_unique<Membership>(std::move(start));
    rank.ticked_us = now_us;
    if (!joining) rank.machine->on_comm_created(1, 1, SlotSet::first(kMaxSlots));
    ranks.push_back(std::move(rank));
    return static_cast<uint32_t>(ranks.size() - 1);
  }

  void run_for(uint64_t us) {
    for (const uint64_t until = now_us + us; now_us < until;) {
      now_us += kStepUs;
      for (uint32_t i = 0; i < ranks.size(); ++i) {
        Rank& rank = ranks[i];
        if (!rank.alive || rank.stopped || now_us < rank.ticked_us + rank.tick_every_us) continue;
        rank.ticked_us = now_us;
        rank.machine->tick(now_us);
      }
      settle();
    }
  }

  // Carries out actions until there are none.
  void settle() {
    for (bool any = true; any;) {
      any = false;
      for (uint32_t i = 0; i < ranks.size(); ++i) {
        if (!ranks[i].alive || ranks[i].stopped) continue;
        const std::vector<Action> actions = ranks[i].machine->take_actions();
        for (const Action& action : actions) any = carry_out(i, action) || any;
      }
    }
  }

  void kill(uint32_t victim) {
    ranks[victim].alive = false;
    for (Rank& rank : ranks)
      if (rank.alive)
        rank.machine->on_process_exit(ranks[victim].machine->row().slot,
                                      ranks[victim].machine->row().incarnation);
    settle();
  }

  // Stopped for that time; it goes on afterwards.
  void stop(uint32_t index, uint64_t us) {
    ranks[index].stopped = true;
    run_for(us);
    resume(index);
  }

  // A joiner for the slot, tested by these members.
  uint32_t joiner(uint32_t slot, uint64_t incarnation, const std::vector<uint32_t>& tested_by) {
    const uint32_t index = add(slot, incarnation, true);
    for (const uint32_t i : tested_by) ranks[i].machine->on_joiner_ready({slot, incarnation, 1});
    return index;
  }

  void recover(const std::vector<uint32_t>& callers, uint64_t within_us) {
    for (const uint32_t i : callers)
      ranks[i].machine->on_recover(1, SlotSet::first(view_.members.count()), now_us + within_us);
  }

  // `ended`: their processes are gone by then, which it sees as it reads their last words.
  void resume(uint32_t index, const std::vector<uint32_t>& ended = {}) {
    Rank& rank = ranks[index];
    rank.stopped = false;
    rank.machine->tick(now_us);  // the worst order: the clock before the mail
    rank.ticked_us = now_us;
    const auto backlog = std::move(rank.backlog);
    rank.backlog.clear();
    for (const auto& [from, row] : backlog) deliver(index, from, row);
    for (const uint32_t each : ended) {
      ranks[each].alive = false;
      const Row& last = ranks[each].machine->row();
      rank.machine->on_process_exit(last.slot, last.incarnation);
    }
    settle();
  }

  std::vector<Rank> ranks;
  uint64_t now_us = 1'000'000;
  uint64_t rows_sent = 0;
  uint64_t witness = 0;  // the digest that its register holds; 0: none yet

 private:
  uint64_t host_of(uint32_t slot) const { return 1 + slot % hosts_; }
  void deliver(uint32_t to, uint32_t from, const RowPtr& row) {
    if (row != nullptr) {
      ranks[to].machine->on_row(row);
    } else {
      const Row& sender = ranks[from].machine->row();
      ranks[to].machine->on_heartbeat(sender.slot, sender.incarnation);
    }
  }
  void send(uint32_t from, const SlotSet& to, const RowPtr& row) {
    for (uint32_t i = 0; i < ranks.size(); ++i) {
      if (i == from || !ranks[i].alive || !to.has(ranks[i].machine->row().slot)) continue;
      if (ranks[i].stopped) {
        ranks[i].backlog.emplace_back(from, row);
      } else {
        deliver(i, from, row);
      }
    }
  }
  bool carry_out(uint32_t index, const Action& action) {
    Rank& rank = ranks[index];
    Membership& machine = *rank.machine;
    if (const auto* push = std::get_if<PushRow>(&action)) {
      rows_sent += push->to.count();
      // Through the codec, as between processes.
      send(index, push->to, decode_row(encode_row(*push->row), kMaxSlots, nullptr));
      rank.stopped = rank.stops_once_accepted && push->row->accepted.value != nullptr;
    } else if (const auto* beat = std::get_if<SendHeartbeat>(&action)) {
      send(index, beat->to, nullptr);
    } else if (const auto* freeze = std::get_if<Freeze>(&action)) {
      rank.frozen = true;
      machine.on_frozen(freeze->epoch, {{1, 0, rank.done, rank.done + rank.ahead}});
    } else if (const auto* plan = std::get_if<CatchUpReceive>(&action)) {
      machine.on_caught_up(plan->plan);
    } else if (const auto* give = std::get_if<CatchUpSend>(&action)) {
      rank.sends.push_back(*give);
    } else if (const auto* fence = std::get_if<FenceOut>(&action)) {
      rank.fences.push_back(*fence);
      machine.on_fenced(fence->slot, fence->incarnation);
    } else if (const auto* prepare = std::get_if<Prepare>(&action)) {
      machine.on_prepared(prepare->token);
    } else if (const auto* view = std::get_if<InstallView>(&action)) {
      rank.installed.push_back(*view);
      rank.installed_us = now_us;
      rank.frozen = false;
    } else if (const auto* report = std::get_if<PeerReport>(&action)) {
      rank.reports.push_back(*report);
      return false;
    } else if (const auto* ask = std::get_if<AskWitness>(&action)) {
      if (witness == 0) witness = ask->digest;
      machine.on_witness(ask->epoch, witness);
    } else if (std::holds_alternative<NoQuorum>(action)) {
      rank.no_quorum_us = now_us;
    } else if (std::holds_alternative<SelfEvicted>(action)) {
      rank.evicted_us = now_us;
    }
    return true;
  }

  static constexpr uint32_t kMaxSlots = 8;
  const Config config_;
  const uint32_t hosts_;
  const SlotSet siblings_;
  View view_;
};

}  // namespace membership_lab

// The cost of a view change against the number of ranks. In small views every member pushes its whole row to every
// other, in larger ones to the leads, so that messages grow with the number of ranks. Rounds are exchanges: all rows of one round are
// delivered before the next begins, replies to freeze, fence and prepare take no time.
#include "sim/soak.hpp"

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <vector>

#include "core/membership/membership.hpp"

namespace mep::sim {
namespace {

using membership::Action;
using membership::Membership;
using membership::RowPtr;
using membership::SlotSet;

struct Cost {
  uint64_t messages = 0;
  uint64_t bytes = 0;
  uint64_t largest_row = 0;
  uint32_t rounds = 0;
  uint32_t installed = 0;
  double seconds = 0;
};

struct Push {
  RowPtr row;
  SlotSet to;
};

class World {
 public:
  static constexpr uint64_t kMostRowsOfRank = 48;  // on average, in a view whose rows go to leads

  World(uint32_t ranks, uint32_t channels) : ranks_(ranks), channels_(channels) {
    membership::View view;
    view.epoch = 1;
    for (uint32_t slot = 0; slot < ranks; ++slot) view.put({slot, 1000 + slot, 1 + slot / 8});
    for (uint32_t slot = 0; slot < ranks; ++slot) {
      membership::Start start;
      start.slot = slot;
      start.incarnation = 1000 + slot;
      start.max_slots = ranks;
      start.now_us = 1'000'000;
      start.view = view;
      members_.push_back(std::make_unique<Membership>(std::move(start)));
      members_.back()->on_comm_created(1, 1, SlotSet::first(ranks));
    }
    dead_.resize(ranks, false);
  }

  // The processes of `victims` die; the others on their hosts see it.
  Cost change(const std::vector<uint32_t>& victims) {
    const auto start = std::chrono::steady_clock::now();
    Cost cost;
    for (const uint32_t victim : victims) dead_[victim] = true;
    for (uint32_t slot = 0; slot < ranks_; ++slot) take(slot, &cost);
    exchange();  // the first rows are not part of the change
    cost = {};
    const uint64_t epoch = members_[dead_[0] ? ranks_ - 1 : 0]->view().epoch + 1;
    for (const uint32_t victim : victims)
      for (uint32_t slot = 0; slot < ranks_; ++slot)
        if (!dead_[slot] && slot / 8 == victim / 8)
          members_[slot]->on_process_exit(victim, 1000 + victim);
    for (uint32_t slot = 0; slot < ranks_; ++slot) take(slot, &cost);
    const auto done = [&] {
      for (uint32_t slot = 0; slot < ranks_; ++slot)
        if (!dead_[slot] && members_[slot]->view().epoch < epoch) return false;
      return true;
    };
    while (!done() && cost.rounds < 100) {
      ++cost.rounds;
      exchange();
      for (uint32_t slot = 0; slot < ranks_; ++slot) take(slot, &cost);
    }
    for (uint32_t slot = 0; slot < ranks_; ++slot)
      if (!dead_[slot] && members_[slot]->view().epoch >= epoch) ++cost.installed;
    const std::chrono::duration<double> used = std::chrono::steady_clock::now() - start;
    cost.seconds = used.count();
    return cost;
  }

 private:
  void exchange() {
    std::vector<Push> pushes;
    pushes.swap(pushes_);
    for (const Push& push : pushes)
      push.to.each([&](uint32_t slot) {
        if (!dead_[slot]) members_[slot]->on_row(push.row);
      });
  }

  // Carries out what a member wants until it wants no more than to push rows.
  void take(uint32_t slot, Cost* cost) {
    if (dead_[slot]) return;
    Membership& member = *members_[slot];
    for (bool again = true; again;) {
      again = false;
      for (const Action& action : member.take_actions()) {
        if (const auto* push = std::get_if<membership::PushRow>(&action)) {
          const uint64_t bytes = membership::encode_row(*push->row).size();
          const uint64_t count = push->to.count();
          cost->messages += count;
          cost->bytes += count * bytes;
          cost->largest_row = std::max(cost->largest_row, bytes);
          pushes_.push_back({push->row, push->to});
        } else if (const auto* freeze = std::get_if<membership::Freeze>(&action)) {
          std::vector<membership::ChannelState> table;
          for (uint32_t channel = 0; channel < channels_; ++channel)
            table.push_back({1, channel, 100, 101});
          member.on_frozen(freeze->epoch, std::move(table));
          again = true;
        } else if (const auto* fence = std::get_if<membership::FenceOut>(&action)) {
          member.on_fenced(fence->slot, fence->incarnation);
          again = true;
        } else if (const auto* prepare = std::get_if<membership::Prepare>(&action)) {
          member.on_prepared(prepare->token);
          again = true;
        }
      }
    }
  }

  uint32_t ranks_;
  uint32_t channels_;
  std::vector<std::unique_ptr<Membership>> members_;
  std::vector<bool> dead_;
  std::vector<Push> pushes_;
};

void print(const char* what, uint32_t ranks, const Cost& cost) {
  std::printf("%-22s %6u %7u %12" PRIu64 " %10.1f %14.3f %10.1f %8" PRIu64 " %9.2f\n", what, ranks,
              cost.rounds, cost.messages, static_cast<double>(cost.messages) / ranks,
              static_cast<double>(cost.bytes) / 1e6, static_cast<double>(cost.bytes) / 1e3 / ranks,
              cost.largest_row, cost.seconds);
  std::fflush(stdout);
}

}  // namespace

int run_soak(uint32_t most_ranks) {
  std::printf("%-22s %6s %7s %12s %10s %14s %10s %8s %9s\n", "change", "ranks", "rounds",
              "messages", "per rank", "MB in all", "kB/rank", "row B", "seconds");
  int failed = 0;
  for (const uint32_t ranks : {2u, 4u, 8u, 16u, 32u, 64u, 256u, 1024u, 4096u}) {
    if (ranks > most_ranks) break;
    const auto one = [&](const char* what, const std::vector<uint32_t>& victims) {
      World world(ranks, 4);
      const Cost cost = world.change(victims);
      print(what, ranks, cost);
      const bool large = ranks > membership::Config{}.rows_to_all_up_to;
      if (large && cost.messages > ranks * World::kMostRowsOfRank) {
        ++failed;
        std::printf("more than %" PRIu64 " rows a member\n", World::kMostRowsOfRank);
      }
      if (cost.installed != ranks - victims.size()) {
        ++failed;
        std::printf("only %u of %zu members got to the new view\n", cost.installed,
                    ranks - victims.size());
      }
    };
    one("the highest slot dies", {ranks - 1});
    one("the lead dies", {0});
    if (ranks >= 16) {
      std::vector<uint32_t> host;
      for (uint32_t slot = 1; slot < 8; ++slot) host.push_back(slot);
      one("7 of a host die", host);
    }
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace mep::sim

// sim_membership --seeds N [--first S] | --seed S [--trace] | --mutants [--only NAME] [--list] | --quorum witness
// Prints the seed of what fails and how to see it again.
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "sim/simulator.hpp"
#include "sim/soak.hpp"

namespace {

using mep::sim::Options;
using mep::sim::Outcome;
using mep::sim::run_schedule;

struct Totals {
  uint64_t events = 0;
  uint64_t installs = 0;
  uint64_t operations = 0;
  uint64_t shared = 0;
  uint64_t reports = 0;
  uint64_t joined = 0;
  uint64_t closed = 0;
  uint64_t children = 0;
  uint64_t longest_change_us = 0;
  uint64_t schedules = 0;
  uint64_t failed = 0;
};

void report(const Options& options, const Outcome& outcome) {
  std::printf("seed %" PRIu64
              " FAILS: %s\n  ranks %u faults 0x%x; again with: "
              "sim_membership --seed %" PRIu64 " --trace\n",
              options.seed, outcome.violation.c_str(), outcome.ranks, outcome.faults, options.seed);
}

Totals run_range(Options options, uint64_t first, uint64_t count, uint64_t step, double seconds) {
  Totals totals;
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t i = 0; i < count; i += step) {
    options.seed = first + i;
    const Outcome outcome = run_schedule(options);
    ++totals.schedules;
    totals.events += outcome.events;
    totals.installs += outcome.installs;
    totals.operations += outcome.operations;
    totals.shared += outcome.shared;
    totals.reports += outcome.reports;
    totals.joined += outcome.joined;
    totals.closed += outcome.closed;
    totals.children += outcome.children;
    totals.longest_change_us = std::max(totals.longest_change_us, outcome.longest_change_us);
    if (!outcome.violation.empty()) {
      ++totals.failed;
      if (totals.failed <= 3) report(options, outcome);
    } else if (i % 997 == 0 && run_schedule(options).hash != outcome.hash) {
      ++totals.failed;
      std::printf("seed %" PRIu64 " does not replay\n", options.seed);
    }
    const std::chrono::duration<double> used = std::chrono::steady_clock::now() - start;
    if (seconds > 0 && used.count() > seconds) break;
  }
  return totals;
}

int run_seeds(const Options& options, uint64_t first, uint64_t count, double seconds,
              uint64_t least) {
  constexpr uint64_t kThreads = 2;
  Totals totals[kThreads];
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      totals[i] = run_range(options, first + i, count > i ? count - i : 0, kThreads, seconds);
    });
  for (std::thread& thread : threads) thread.join();
  Totals sum;
  for (const Totals& part : totals) {
    sum.schedules += part.schedules;
    sum.events += part.events;
    sum.installs += part.installs;
    sum.operations += part.operations;
    sum.shared += part.shared;
    sum.reports += part.reports;
    sum.joined += part.joined;
    sum.closed += part.closed;
    sum.children += part.children;
    sum.failed += part.failed;
    sum.longest_change_us = std::max(sum.longest_change_us, part.longest_change_us);
  }
  std::printf("%" PRIu64 " schedules from seed %" PRIu64 ": %" PRIu64 " events, %" PRIu64
              " views installed, %" PRIu64
              " operations, longest view change %.1f s (virtual), %" PRIu64 " failed\n",
              sum.schedules, first, sum.events, sum.installs, sum.operations,
              static_cast<double>(sum.longest_change_us) / 1e6, sum.failed);
  std::printf("%" PRIu64 " comms made by splits, %" PRIu64 " closed, %" PRIu64
              " joiners came in, %" PRIu64 " calls reported a change, %" PRIu64
              " of them more than one\n",
              sum.children, sum.closed, sum.joined, sum.reports, sum.shared);
  if (sum.schedules < least) std::printf("too few schedules, at least %" PRIu64 "\n", least);
  return sum.failed == 0 && sum.schedules >= least ? 0 : 1;
}

// Each deliberate fault must be caught within so many schedules.
int run_mutants(const Options& given, uint64_t first, uint64_t limit, const std::string& only,
                bool list) {
  using mep::membership::Mutations;
  using mep::sim::Wrong;
  struct Mutant {
    const char* name;
    bool Mutations::*in_machine;
    bool Wrong::*around;
  };
  const std::vector<Mutant> mutants = {
      {"N* is the minimum", &Mutations::last_completed_is_min, nullptr},
      {"accept before the flush", &Mutations::ack_before_catch_up, nullptr},
      {"ignore an earlier accepted value", &Mutations::ignore_earlier_accepted, nullptr},
      {"majority of the old view minus the confirmed dead", &Mutations::shrinking_majority,
       nullptr},
      {"wait for members suspected since", &Mutations::wait_for_suspected, nullptr},
      {"complete after the freeze", &Mutations::complete_after_freeze, nullptr},
      {"accept before the fence", &Mutations::ack_before_fence, nullptr},
      {"a closed connection confirms death", &Mutations::suspected_is_confirmed, nullptr},
      {"old incarnations are not told apart", &Mutations::ignore_incarnation, nullptr},
      {"accuse others after not being scheduled", &Mutations::accuse_when_late, nullptr},
      {"no call between N* and next", &Mutations::no_call_reports, nullptr},
      {"a donor shows its row to the leads alone", &Mutations::donor_stays_silent, nullptr},
      {"joiners come in that have missed each other", &Mutations::admit_unlinked, nullptr},
      {"a second change overwrites the first", nullptr, &Wrong::one_decision_only},
      {"who calls late is not told", nullptr, &Wrong::late_is_not_told},
      {"a later N* cuts nothing", nullptr, &Wrong::earlier_is_not_cut},
      {"a refused call consumes a seq", nullptr, &Wrong::refused_consumes},
      {"a closed comm is in no table", nullptr, &Wrong::closes_at_once},
      {"held is answered without a look", nullptr, &Wrong::held_unseen},
      {"what a closer was told binds nobody", nullptr, &Wrong::nothing_is_fixed},
      {"a comm is made that was settled before", nullptr, &Wrong::born_unaware},
      {"a comm made during a change takes part at once", nullptr, &Wrong::born_in_change},
      {"a comm is made after a member has gone", nullptr, &Wrong::born_too_late},
  };
  int missed = 0;
  for (const auto& [name, in_machine, around] : mutants) {
    if (std::string(name).find(only) == std::string::npos) continue;
    if (list) {
      std::printf("%s\n", name);
      continue;
    }
    Options options = given;
    if (in_machine != nullptr) options.mutations.*in_machine = true;
    if (around != nullptr) options.wrong.*around = true;
    std::string violation;
    uint64_t used = 0;
    while (violation.empty() && used < limit) {
      options.seed = first + used++;
      violation = run_schedule(options).violation;
      // A seed that fails without the fault as well proves nothing.
      Options sound;
      sound.seed = options.seed;
      sound.leads_only = options.leads_only;
      if (!violation.empty() && !run_schedule(sound).violation.empty()) violation.clear();
    }
    if (violation.empty()) {
      ++missed;
      std::printf("NOT CAUGHT in %" PRIu64 " schedules: %s\n", used, name);
    } else {
      std::printf("caught after %6" PRIu64 " schedules: %-52s %s\n", used, name, violation.c_str());
    }
    std::fflush(stdout);
  }
  return missed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  uint64_t first = 1;
  uint64_t count = 0;
  uint64_t least = 0;
  uint64_t limit = 60000;
  double seconds = 0;
  bool mutants = false;
  bool list = false;
  std::string only;  // of the mutants, by a part of the name
  bool one = false;
  bool soak = false;
  if (const char* seed = std::getenv("MEP_TEST_SEED")) first = std::strtoull(seed, nullptr, 0);
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const auto value = [&] { return i + 1 < argc ? argv[++i] : "0"; };
    if (arg == "--seeds")
      count = std::strtoull(value(), nullptr, 0);
    else if (arg == "--first")
      first = std::strtoull(value(), nullptr, 0);
    else if (arg == "--least")
      least = std::strtoull(value(), nullptr, 0);
    else if (arg == "--limit")
      limit = std::strtoull(value(), nullptr, 0);
    else if (arg == "--seconds")
      seconds = std::strtod(value(), nullptr);
    else if (arg == "--ranks")
      options.ranks = static_cast<uint32_t>(std::strtoul(value(), nullptr, 0));
    else if (arg == "--faults")
      options.faults = static_cast<uint32_t>(std::strtoul(value(), nullptr, 0));
    else if (arg == "--seed")
      first = std::strtoull(value(), nullptr, 0), one = true;
    else if (arg == "--trace")
      options.trace = true;
    else if (arg == "--mutants")
      mutants = true;
    else if (arg == "--list")
      list = true;
    else if (arg == "--only")
      only = value();
    else if (arg == "--rows")
      options.leads_only = std::string(value()) == "leads";
    else if (arg == "--soak")
      soak = true;
    else if (arg == "--quorum") {
      const std::string name = value();
      options.quorum = name == "witness" ? mep::membership::QuorumPolicy::kWitness
                                         : mep::membership::QuorumPolicy::kMajority;
    } else {
      std::fprintf(stderr, "unknown argument %s\n", arg.c_str());
      return 2;
    }
  }
  if (mutants) return run_mutants(options, first, limit, only, list);
  if (soak) return mep::sim::run_soak(options.ranks == 0 ? 4096 : options.ranks);
  if (one) {
    options.seed = first;
    const Outcome outcome = run_schedule(options);
    if (!outcome.violation.empty()) report(options, outcome);
    std::printf("seed %" PRIu64 " hash %016" PRIx64 " events %" PRIu64 " installs %" PRIu64
                " virtual %.3f s\n",
                first, outcome.hash, outcome.events, outcome.installs,
                static_cast<double>(outcome.virtual_us) / 1e6);
    return outcome.violation.empty() ? 0 : 1;
  }
  return run_seeds(options, first, count == 0 ? 100000 : count, seconds, least);
}

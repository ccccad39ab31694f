#include "timing.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>

namespace mep::perf {
namespace {

constexpr double kMinBlockSeconds =
    200e-6;                             // far above the clock's resolution and a barrier's skew
constexpr double kBudgetSeconds = 0.5;  // of one case when neither -i nor --seconds is given
constexpr uint64_t kMinBlocks = 10;
constexpr uint64_t kMinBlocksBySeconds = 3;
constexpr uint64_t kMaxBlocks = 200;
constexpr uint64_t kWarmUpIterations = 3;

struct Plan {
  uint64_t block_iterations = 1;
  uint64_t blocks = 1;
};

double run_block(Team& team, Case& subject, uint64_t iterations) {
  double seconds = 0;
  subject.sync();
  subject.run(iterations, &seconds);
  team.maximum(&seconds, 1);
  return seconds;
}

double budget_seconds(const Options& options) {
  return options.seconds > 0 ? options.seconds : kBudgetSeconds;
}

uint64_t block_count(const Options& options, double block_seconds) {
  const auto least = static_cast<double>(options.seconds > 0 ? kMinBlocksBySeconds : kMinBlocks);
  return static_cast<uint64_t>(
      std::clamp(budget_seconds(options) / block_seconds, least, static_cast<double>(kMaxBlocks)));
}

Plan plan_of_fixed_blocks(const Options& options, Team& team, Case& subject) {
  Plan plan;
  plan.block_iterations = subject.block_iterations();
  (void)run_block(team, subject, plan.block_iterations);
  if (options.iterations > 0) {
    plan.blocks = (options.iterations + plan.block_iterations - 1) / plan.block_iterations;
  } else {
    plan.blocks = block_count(options, run_block(team, subject, plan.block_iterations));
  }
  return plan;
}

// Finds the iterations that fill a block; all ranks see the same times, so all decide the same.
Plan make_plan(const Options& options, Team& team, Case& subject) {
  if (subject.block_iterations() > 0) return plan_of_fixed_blocks(options, team, subject);
  double warm_up = 0;
  for (uint64_t i = 0; i < kWarmUpIterations && warm_up < budget_seconds(options); ++i) {
    warm_up += run_block(team, subject, 1);
  }
  uint64_t iterations = 1;
  double seconds = run_block(team, subject, iterations);
  while (seconds < kMinBlockSeconds && iterations < (uint64_t{1} << 24)) {
    const double wanted = 1.2 * kMinBlockSeconds / std::max(seconds, 1e-9);
    iterations =
        static_cast<uint64_t>(static_cast<double>(iterations) * std::clamp(wanted, 1.5, 64.0)) + 1;
    seconds = run_block(team, subject, iterations);
  }
  // A few iterations even of long operations: the ranks leave the barrier before a block at
  // slightly different times.
  if (seconds / static_cast<double>(iterations) < 10e-3 && iterations < 4) {
    seconds *= 4.0 / static_cast<double>(iterations);
    iterations = 4;
  }
  Plan plan;
  if (options.iterations > 0) {
    plan.block_iterations = std::min(iterations, options.iterations);
    plan.blocks = (options.iterations + plan.block_iterations - 1) / plan.block_iterations;
  } else {
    plan.block_iterations = iterations;
    plan.blocks = block_count(options, seconds);
  }
  return plan;
}

std::vector<double> phase_seconds(const Case& subject) {
  std::vector<double> seconds;
  for (const Phase& phase : subject.phases()) seconds.push_back(phase.seconds);
  return seconds;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

// Each phase's median over blocks of the mean over ranks; `blocks` has this rank's seconds of
// one iteration, [phase][block].
std::vector<Phase> phase_medians(Team& team, const Case& subject,
                                 std::vector<std::vector<double>> blocks) {
  std::vector<Phase> phases = subject.phases();
  for (size_t i = 0; i < phases.size(); ++i) {
    team.sum(blocks[i].data(), blocks[i].size());
    phases[i].seconds = median(std::move(blocks[i])) / team.size();
  }
  return phases;
}

// Everything that is collected about one case while blocks run.
struct Collected {
  Plan plan;
  std::vector<double> block_us;
  std::vector<std::vector<double>> phase_seconds;  // [phase][block], of one iteration
  Switches switches;                               // of this rank, of all iterations
};

// Those of this rank so far: of its thread, or of its process with all threads of the libraries.
Switches count_switches(const Options& options) {
  rusage usage{};
  (void)getrusage(options.threads > 0 ? RUSAGE_THREAD : RUSAGE_SELF, &usage);
  return {static_cast<double>(usage.ru_nvcsw), static_cast<double>(usage.ru_nivcsw)};
}

void run_timed_block(const Options& options, Case& subject, Collected* collected) {
  const auto iterations = static_cast<double>(collected->plan.block_iterations);
  const std::vector<double> before = phase_seconds(subject);
  double seconds = 0;
  subject.sync();
  const Switches first = count_switches(options);
  subject.run(collected->plan.block_iterations, &seconds);
  const Switches last = count_switches(options);
  collected->switches.voluntary += last.voluntary - first.voluntary;
  collected->switches.involuntary += last.involuntary - first.involuntary;
  collected->block_us.push_back(1e6 * seconds / iterations);
  const std::vector<double> after = phase_seconds(subject);
  collected->phase_seconds.resize(after.size());
  for (size_t i = 0; i < after.size(); ++i) {
    collected->phase_seconds[i].push_back((after[i] - before[i]) / iterations);
  }
}

Switches mean_switches(Team& team, const Collected& collected) {
  double sums[] = {collected.switches.voluntary, collected.switches.involuntary};
  team.sum(sums, 2);
  const Plan& plan = collected.plan;
  const double operations = static_cast<double>(plan.block_iterations * plan.blocks) * team.size();
  return {sums[0] / operations, sums[1] / operations};
}

}  // namespace

Statistics statistics_of(std::vector<double> block_us) {
  Statistics statistics;
  if (block_us.empty()) return statistics;
  std::sort(block_us.begin(), block_us.end());
  const size_t count = block_us.size();
  statistics.min_us = block_us.front();
  statistics.p50_us = median(block_us);
  const auto rank = static_cast<size_t>(std::ceil(0.99 * static_cast<double>(count)));
  statistics.p99_us = block_us[rank - 1];
  return statistics;
}

void measure(const Options& options, Team& team, const std::vector<Case*>& cases,
             Progress& progress, std::vector<Statistics>* statistics) {
  std::vector<Collected> collected(cases.size());
  uint64_t rounds = 0;
  for (size_t side = 0; side < cases.size(); ++side) {
    collected[side].plan = make_plan(options, team, *cases[side]);
    rounds = std::max(rounds, collected[side].plan.blocks);
  }
  for (uint64_t round = 0; round < rounds; ++round) {
    for (size_t side = 0; side < cases.size(); ++side) {
      if (round < collected[side].plan.blocks) {
        run_timed_block(options, *cases[side], &collected[side]);
      }
    }
    progress.show_step(round + 1, rounds);
  }
  statistics->clear();
  for (size_t side = 0; side < cases.size(); ++side) {
    std::vector<double>& block_us = collected[side].block_us;
    team.maximum(block_us.data(), block_us.size());
    Statistics result = statistics_of(block_us);
    result.phases = phase_medians(team, *cases[side], std::move(collected[side].phase_seconds));
    if (options.show_switches) result.switches = mean_switches(team, collected[side]);
    statistics->push_back(std::move(result));
  }
}

}  // namespace mep::perf

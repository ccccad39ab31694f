#include "timing.hpp"

#include <algorithm>
#include <cmath>

namespace mep::perf {
namespace {

constexpr double kMinBlockSeconds =
    200e-6;                             // far above the clock's resolution and a barrier's skew
constexpr double kBudgetSeconds = 0.5;  // of one case when -i is not given
constexpr uint64_t kMinBlocks = 10;
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

// Finds the iterations that fill a block; all ranks see the same times, so all decide the same.
Plan make_plan(const Options& options, Team& team, Case& subject) {
  (void)run_block(team, subject, kWarmUpIterations);
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
    plan.blocks =
        std::clamp(static_cast<uint64_t>(kBudgetSeconds / seconds), kMinBlocks, kMaxBlocks);
  }
  return plan;
}

std::vector<double> phase_seconds(const Case& subject) {
  std::vector<double> seconds;
  for (const Phase& phase : subject.phases()) seconds.push_back(phase.seconds);
  return seconds;
}

// The mean time of one iteration's phases since `before`, over all ranks.
std::vector<Phase> phase_means(Team& team, const Case& subject, std::vector<double> before,
                               uint64_t iterations) {
  std::vector<Phase> phases = subject.phases();
  for (size_t i = 0; i < phases.size(); ++i) {
    double seconds = phases[i].seconds - before[i];
    team.sum(&seconds, 1);
    phases[i].seconds = seconds / static_cast<double>(iterations) / team.size();
  }
  return phases;
}

}  // namespace

Statistics statistics_of(std::vector<double> block_us) {
  Statistics statistics;
  if (block_us.empty()) return statistics;
  std::sort(block_us.begin(), block_us.end());
  const size_t count = block_us.size();
  statistics.min_us = block_us.front();
  statistics.p50_us = (block_us[(count - 1) / 2] + block_us[count / 2]) / 2;
  const auto rank = static_cast<size_t>(std::ceil(0.99 * static_cast<double>(count)));
  statistics.p99_us = block_us[rank - 1];
  return statistics;
}

void measure(const Options& options, Team& team, const std::vector<Case*>& cases,
             Progress& progress, std::vector<Statistics>* statistics) {
  std::vector<Plan> plans;
  std::vector<std::vector<double>> phases_before;
  uint64_t rounds = 0;
  for (Case* subject : cases) {
    plans.push_back(make_plan(options, team, *subject));
    phases_before.push_back(phase_seconds(*subject));
    rounds = std::max(rounds, plans.back().blocks);
  }
  std::vector<std::vector<double>> block_us(cases.size());
  for (uint64_t round = 0; round < rounds; ++round) {
    for (size_t side = 0; side < cases.size(); ++side) {
      const Plan& plan = plans[side];
      if (round >= plan.blocks) continue;
      double seconds = 0;
      cases[side]->sync();
      cases[side]->run(plan.block_iterations, &seconds);
      block_us[side].push_back(1e6 * seconds / static_cast<double>(plan.block_iterations));
    }
    progress.show_step(round + 1, rounds);
  }
  statistics->clear();
  for (size_t side = 0; side < cases.size(); ++side) {
    team.maximum(block_us[side].data(), block_us[side].size());
    Statistics result = statistics_of(block_us[side]);
    result.phases = phase_means(team, *cases[side], phases_before[side],
                                plans[side].block_iterations * plans[side].blocks);
    statistics->push_back(std::move(result));
  }
}

}  // namespace mep::perf

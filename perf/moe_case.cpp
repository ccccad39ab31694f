// The timed loops, the same for both sides.
#include <chrono>

#include "moe_check.hpp"
#include "moe_side.hpp"

namespace mep::perf {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

class MoeCase : public Case {
 public:
  MoeCase(MoeOperation operation, const Options& options, MoeSide& side, MoeProblem& problem)
      : operation_(operation),
        options_(options),
        replays_(operation == MoeOperation::kMoe && options.is_high_throughput),
        side_(side),
        problem_(problem) {}
  void sync() override { side_.sync(); }

  void run(uint64_t iterations, double* seconds) override {
    switch (operation_) {
      case MoeOperation::kDispatch:
        return run_dispatch(iterations, seconds);
      case MoeOperation::kCombine:
        return run_combine(iterations, seconds);
      case MoeOperation::kMoe:
        return run_moe(iterations, seconds);
    }
  }

  uint64_t verify(uint32_t round) override {
    problem_.load(round);
    problem_.poison_output();
    side_.sync();
    side_.dispatch();
    uint64_t errors = count_received_errors(problem_, side_, round, round);
    if (operation_ == MoeOperation::kDispatch) return errors;
    side_.expert();
    side_.combine();
    errors += count_output_errors(problem_);
    return replays_ ? errors + verify_replay(round) : errors;
  }
  void reset() override {
    problem_.load(0);
    for (uint32_t i = 0; !options_.run_expert && i < options_.buffers; ++i) {
      side_.dispatch();
      side_.expert();
      side_.combine();
    }
  }
  std::vector<Phase> phases() const override {
    if (operation_ != MoeOperation::kMoe) return {};
    std::vector<Phase> phases = {dispatch_};
    if (options_.run_expert) phases.push_back(expert_);
    phases.push_back(combine_);
    if (replays_) phases.push_back(replay_);
    return phases;
  }

 private:
  // Other rows by the routing of the last dispatch.
  uint64_t verify_replay(uint32_t round) {
    const uint32_t other = round + kReplayedRound;
    problem_.load_tokens(other);
    problem_.poison_output();
    side_.replay();
    uint64_t errors = count_received_errors(problem_, side_, other, round);
    side_.expert();
    side_.combine();
    errors += count_output_errors(problem_);
    problem_.load_tokens(round);
    return errors;
  }

  void run_dispatch(uint64_t iterations, double* seconds) {
    const auto start = Clock::now();
    for (uint64_t i = 0; i < iterations; ++i) side_.dispatch();
    *seconds += seconds_between(start, Clock::now());
  }

  // A combine needs a dispatch before it; only the combine counts, and all ranks enter it together.
  void run_combine(uint64_t iterations, double* seconds) {
    for (uint64_t i = 0; i < iterations; ++i) {
      side_.dispatch();
      side_.expert();
      side_.sync();
      const auto start = Clock::now();
      side_.combine();
      *seconds += seconds_between(start, Clock::now());
    }
  }

  void run_moe(uint64_t iterations, double* seconds) {
    auto start = Clock::now();
    for (uint64_t i = 0; i < iterations; ++i) {
      side_.dispatch();
      const auto dispatched = Clock::now();
      if (options_.run_expert) side_.expert();
      const auto computed = Clock::now();
      side_.combine();
      const auto end = Clock::now();
      dispatch_.seconds += seconds_between(start, dispatched);
      expert_.seconds += seconds_between(dispatched, computed);
      combine_.seconds += seconds_between(computed, end);
      *seconds += seconds_between(start, end);
      start = end;
    }
    if (replays_) run_replays(iterations);
  }

  // A phase of its own, outside the time of the iteration.
  void run_replays(uint64_t iterations) {
    for (uint64_t i = 0; i < iterations; ++i) {
      const auto start = Clock::now();
      side_.replay();
      replay_.seconds += seconds_between(start, Clock::now());
      if (options_.run_expert) side_.expert();
      side_.combine();
    }
  }

  static constexpr uint32_t kReplayedRound = 1000;  // beyond those of checks

  MoeOperation operation_;
  const Options& options_;
  bool replays_;
  MoeSide& side_;
  MoeProblem& problem_;
  Phase dispatch_{"dispatch"};
  Phase expert_{"expert"};
  Phase combine_{"combine"};
  Phase replay_{"replay"};
};

}  // namespace

std::unique_ptr<Case> make_moe_case(MoeOperation operation, const Options& options, MoeSide& side,
                                    MoeProblem& problem) {
  return std::make_unique<MoeCase>(operation, options, side, problem);
}

}  // namespace mep::perf

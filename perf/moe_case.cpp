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
  MoeCase(MoeOperation operation, MoeSide& side, MoeProblem& problem)
      : operation_(operation), side_(side), problem_(problem) {
    if (operation == MoeOperation::kMoe) phases_ = {{"dispatch"}, {"expert"}, {"combine"}};
  }
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
    uint64_t errors = count_received_errors(problem_, side_, round);
    if (operation_ == MoeOperation::kDispatch) return errors;
    side_.expert();
    side_.combine();
    return errors + count_output_errors(problem_);
  }
  void reset() override { problem_.load(0); }
  std::vector<Phase> phases() const override { return phases_; }

 private:
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
      side_.expert();
      const auto computed = Clock::now();
      side_.combine();
      const auto end = Clock::now();
      phases_[0].seconds += seconds_between(start, dispatched);
      phases_[1].seconds += seconds_between(dispatched, computed);
      phases_[2].seconds += seconds_between(computed, end);
      *seconds += seconds_between(start, end);
      start = end;
    }
  }

  MoeOperation operation_;
  MoeSide& side_;
  MoeProblem& problem_;
  std::vector<Phase> phases_;
};

}  // namespace

std::unique_ptr<Case> make_moe_case(MoeOperation operation, MoeSide& side, MoeProblem& problem) {
  return std::make_unique<MoeCase>(operation, side, problem);
}

}  // namespace mep::perf

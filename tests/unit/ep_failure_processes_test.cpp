// labels: gate
// A rank process is killed at a random moment of a round, most often in the middle of a copy or a wait,
// or at a named point, after some ranks have been told something and others not; the others go on, and
// what each of their operations says of itself must be true.
#include <sys/time.h>

#include "base/failpoint.hpp"
#include "support/ep_expanded.hpp"
#include "support/ep_failing.hpp"
#include "support/join_job.hpp"

using namespace mep_test;

namespace {

using ExpandedRun = FailingRunOf<ExpandedCase, ExpandedRound>;

struct Plan {
  ExpandedCase problem;
  bool expanded;
  int ranks;
  int victim;
  uint64_t round;
  int step;
  long delay_us;      // after that point
  std::string point;  // instead: the failpoint at which it dies
};

// At a failpoint the victim dies after it has told some ranks something and others not.
Plan make_plan(uint64_t seed, bool at_failpoints, bool expanded) {
  RandomStream random(seed);
  Plan plan;
  plan.ranks = static_cast<int>(random.below(4)) + 3;
  plan.expanded = expanded;
  const uint64_t problem = random.bits();
  if (expanded) plan.problem = expanded_failing_case(problem, plan.ranks);
  if (!expanded) static_cast<EpCase&>(plan.problem) = failing_case(problem, plan.ranks);
  if (random.one_in(2)) {
    plan.problem.max_tokens = 32;  // long enough to be hit in the middle
    plan.problem.hidden = 2048;
  }
  plan.victim = static_cast<int>(random.below(static_cast<uint64_t>(plan.ranks)));
  plan.round = random.below(3);
  plan.step = static_cast<int>(random.below(4));
  plan.delay_us = static_cast<long>(random.below(3000)) + 1;
  if (!at_failpoints) return plan;
  constexpr const char* kPoints[] = {"ep counts", "ep rows ready", "ep combine ready"};
  const uint64_t passage = random.below(static_cast<uint64_t>(plan.ranks)) + 1;
  plan.point = kPoints[random.below(3)];
  if (plan.point == "ep counts") plan.problem.slotted = false;
  plan.point += ":" + std::to_string(passage) + "=kill";
  plan.step = 0;
  return plan;
}

void die_later(const Plan& plan, Report& report) {
  if (!plan.point.empty()) {
    COLL_OK(report, mep::failpoint_arm(plan.point));
    return;
  }
  signal(SIGALRM, [](int) { kill(getpid(), SIGKILL); });
  itimerval timer{};
  timer.it_value.tv_usec = plan.delay_us;
  setitimer(ITIMER_REAL, &timer, nullptr);
}

// Until its end or that of the rounds.
template <typename Run>
void play(const Plan& plan, int rank, mep_comm_t comm, Page* page, Report& findings) {
  Run run(plan.problem, rank, plan.victim, comm, findings);
  if (findings.bad()) return;
  page->reach(0);
  if (rank != plan.victim) return run.survive();
  page->await(0, plan.ranks);
  run.live([&](uint64_t round, int step) {
    if (round == plan.round && step == plan.step) die_later(plan, findings);
    return false;
  });
}

void run_failures(uint32_t flags, mep_ep_loss_t on_loss, uint64_t first_seed,
                  bool at_failpoints = false, bool expanded = false) {
  const size_t cases = slice(at_failpoints ? 16 : 8, 500);
  for (size_t i = 0; i < cases; ++i) {
    Plan plan = make_plan(mix(test_seed() + first_seed, i), at_failpoints, expanded);
    plan.problem.on_loss = on_loss;
    mep_comm_config_t config = patient_config(flags);
    config.timeout_ms = 20'000;
    Report report;
    int killed = 0;
    // The victim dies in a round, not while others still make the object with it.
    const auto page = JoinJob::shared_page();
    with_rank_processes(
        plan.ranks, config, report,
        [&](int rank, mep_comm_t comm, Report& findings) {
          const auto play_rank = expanded ? play<ExpandedRun> : play<FailingRun>;
          play_rank(plan, rank, comm, page.get(), findings);
        },
        [&](int rank, int status) {
          if (rank != plan.victim) return false;
          killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
          return killed == 1;
        });
    if (report.bad() || killed != 1) {
      fail_msg(
          "seed %llu, failure %zu: victim %d of %d in round %llu at step %d + %ld us %s, killed "
          "%d%s",
          static_cast<unsigned long long>(test_seed()), i, plan.victim, plan.ranks,
          static_cast<unsigned long long>(plan.round), plan.step, plan.delay_us, plan.point.c_str(),
          killed, report.text().c_str());
    }
  }
}

void mapped(void**) {
  run_failures(0, MEP_EP_LOSS_FAILS, 41);
}
void mapped_partial(void**) {
  run_failures(0, MEP_EP_LOSS_PARTIAL, 42);
}
void by_put_alone_partial(void**) {
  run_failures(kPutOnly, MEP_EP_LOSS_PARTIAL, 43);
}

void at_failpoints(void**) {
  run_failures(0, MEP_EP_LOSS_FAILS, 44, true);
}
void at_failpoints_partial(void**) {
  run_failures(0, MEP_EP_LOSS_PARTIAL, 45, true);
}
void at_failpoints_by_put_alone(void**) {
  run_failures(kPutOnly, MEP_EP_LOSS_FAILS, 46, true);
}

void expanded_at_failpoints(void**) {
  run_failures(0, MEP_EP_LOSS_FAILS, 47, true, true);
}
void expanded_at_failpoints_by_put_alone_partial(void**) {
  run_failures(kPutOnly, MEP_EP_LOSS_PARTIAL, 48, true, true);
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {cmocka_unit_test(mapped),
                              cmocka_unit_test(mapped_partial),
                              cmocka_unit_test(by_put_alone_partial),
                              cmocka_unit_test(at_failpoints),
                              cmocka_unit_test(at_failpoints_partial),
                              cmocka_unit_test(at_failpoints_by_put_alone),
                              cmocka_unit_test(expanded_at_failpoints),
                              cmocka_unit_test(expanded_at_failpoints_by_put_alone_partial)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

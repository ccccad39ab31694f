// A rank process is killed at a random moment of a round, most often in the middle of a copy or a wait;
// the others go on, and what each of their operations says of itself must be true.
#include <sys/time.h>

#include "support/ep_failing.hpp"

using namespace mep_test;

namespace {

struct Plan {
  EpCase problem;
  int ranks;
  int victim;
  uint64_t round;
  int step;
  long delay_us;  // after that point
};

Plan make_plan(uint64_t seed) {
  RandomStream random(seed);
  Plan plan;
  plan.ranks = static_cast<int>(random.below(4)) + 3;
  plan.problem = failing_case(random.bits(), plan.ranks);
  if (random.one_in(2)) {
    plan.problem.max_tokens = 32;  // long enough to be hit in the middle
    plan.problem.hidden = 2048;
  }
  plan.victim = static_cast<int>(random.below(static_cast<uint64_t>(plan.ranks)));
  plan.round = random.below(3);
  plan.step = static_cast<int>(random.below(4));
  plan.delay_us = static_cast<long>(random.below(3000)) + 1;
  return plan;
}

void die_later(long delay_us) {
  signal(SIGALRM, [](int) { kill(getpid(), SIGKILL); });
  itimerval timer{};
  timer.it_value.tv_usec = delay_us;
  setitimer(ITIMER_REAL, &timer, nullptr);
}

void run_failures(uint32_t flags, uint64_t first_seed) {
  const size_t cases = slice(8, 500);
  for (size_t i = 0; i < cases; ++i) {
    const Plan plan = make_plan(mix(test_seed() + first_seed, i));
    const bool opted_in = (flags & MEP_COMM_PARTIAL) != 0;
    mep_comm_config_t config = patient_config(flags);
    config.timeout_ms = 20'000;
    Report report;
    int killed = 0;
    with_rank_processes(plan.ranks, config, report,
                        [&](int rank, mep_comm_t comm, Report& findings) {
                          FailingRun run(plan.problem, rank, plan.victim, comm, opted_in, findings);
                          if (findings.bad()) return;
                          if (rank != plan.victim) return run.survive();
                          run.live([&](uint64_t round, int step) {
                            if (round == plan.round && step == plan.step) die_later(plan.delay_us);
                            return false;
                          });
                        },
                        [&](int rank, int status) {
                          if (rank != plan.victim) return false;
                          killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
                          return killed == 1;
                        });
    if (report.bad() || killed != 1) {
      fail_msg("seed %llu, failure %zu: victim %d of %d in round %llu at step %d + %ld us, killed %d%s",
               static_cast<unsigned long long>(test_seed()), i, plan.victim, plan.ranks,
               static_cast<unsigned long long>(plan.round), plan.step, plan.delay_us, killed,
               report.text().c_str());
    }
  }
}

void mapped(void**) { run_failures(0, 41); }
void mapped_partial(void**) { run_failures(MEP_COMM_PARTIAL, 42); }
void by_put_alone_partial(void**) { run_failures(MEP_COMM_PUT_ONLY | MEP_COMM_PARTIAL, 43); }

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {cmocka_unit_test(mapped), cmocka_unit_test(mapped_partial),
                              cmocka_unit_test(by_put_alone_partial)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

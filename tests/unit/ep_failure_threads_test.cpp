// A rank ends its part by mep_comm_abort at a random point of a round; the others go on, and what each
// of their operations says of itself must be true.
// labels: small threads
#include "support/ep_failing.hpp"

using namespace mep_test;

namespace {

void run_failures(uint32_t flags, uint64_t first_seed) {
  const size_t cases = slice(12, 500);
  for (size_t i = 0; i < cases; ++i) {
    RandomStream random(mix(test_seed() + first_seed, i));
    const int ranks = static_cast<int>(random.below(4)) + 3;
    const EpCase c = failing_case(random.bits(), ranks);
    const int victim = static_cast<int>(random.below(static_cast<uint64_t>(ranks)));
    const uint64_t round = random.below(4);
    const int step = static_cast<int>(random.below(4));
    Report report;
    mep_comm_config_t config = patient_config(flags);
    config.timeout_ms = 20'000;
    with_rank_threads(ranks, config, report, [&](int rank, mep_comm_t comm, Report& findings) {
      const bool opted_in = (flags & MEP_COMM_PARTIAL) != 0;
      FailingRun run(c, rank, victim, comm, opted_in, findings);
      if (findings.bad()) return;
      if (rank != victim) return run.survive();
      run.live([&](uint64_t at, int now) { return at == round && now == step; });
      COLL_OK(findings, mep_comm_abort(comm));
    });
    if (report.bad()) {
      fail_msg("seed %llu, failure %zu: victim %d of %d in round %llu at step %d%s",
               static_cast<unsigned long long>(test_seed()), i, victim, ranks,
               static_cast<unsigned long long>(round), step, report.text().c_str());
    }
  }
}

void mapped(void**) {
  run_failures(0, 31);
}
void mapped_partial(void**) {
  run_failures(MEP_COMM_PARTIAL, 32);
}
void by_put_alone(void**) {
  run_failures(MEP_COMM_PUT_ONLY, 33);
}
void by_put_alone_partial(void**) {
  run_failures(MEP_COMM_PUT_ONLY | MEP_COMM_PARTIAL, 34);
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {cmocka_unit_test(mapped), cmocka_unit_test(mapped_partial),
                              cmocka_unit_test(by_put_alone),
                              cmocka_unit_test(by_put_alone_partial)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

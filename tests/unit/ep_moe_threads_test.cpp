// Dispatch and combine of random EP problems on ranks as threads, mapped and by put alone, against a
// plain reference.
// labels: gate threads tsan asan
#include "support/ep_rounds.hpp"

using namespace mep_test;

namespace {

void run_cases(uint32_t flags, bool delays, uint64_t first_seed) {
  on_random_cases(flags, slice(delays ? 3 : 6, 200), first_seed,
                  [=](uint64_t seed, int ranks, int rank, mep_comm_t comm, Report& findings) {
                    run_ep_case(random_ep_case(seed, ranks), rank, comm, 6, delays, findings);
                  });
}

void mapped(void**) {
  run_cases(0, false, 1);
}
void by_put_alone(void**) {
  run_cases(kPutOnly, false, 2);
}
void mapped_with_delays(void**) {
  run_cases(0, true, 3);
}
void by_put_alone_with_delays(void**) {
  run_cases(kPutOnly, true, 4);
}

// Rows as long as real ones, so that the paths past the caches are taken.
void large_rows(void**) {
  for (const bool own_memory : {false, true}) {
    EpCase c;
    c.seed = test_seed() + (own_memory ? 1 : 0);
    c.ranks = 2;
    c.max_tokens = 48;
    c.hidden = 7168;
    c.top_k = 8;
    c.experts = 16;
    c.local_experts = 8;
    c.own_memory = own_memory;
    Report report;
    with_rank_threads(2, patient_config(0), report,
                      [&](int rank, mep_comm_t comm, Report& findings) {
                        run_ep_case(c, rank, comm, 3, false, findings);
                      });
    report.require_clean();
  }
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {cmocka_unit_test(mapped), cmocka_unit_test(by_put_alone),
                              cmocka_unit_test(mapped_with_delays),
                              cmocka_unit_test(by_put_alone_with_delays),
                              cmocka_unit_test(large_rows)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

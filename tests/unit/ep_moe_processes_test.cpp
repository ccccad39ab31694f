// labels: quick
// Dispatch and combine of random EP problems on ranks as processes, mapped and by put alone, against a
// plain reference.
#include "support/ep_rounds.hpp"

using namespace mep_test;

namespace {

void run_cases(uint32_t flags, uint64_t first_seed) {
  const size_t cases = slice(4, 200);
  for (const int ranks : {2, 3, 4, 8}) {
    if (only_size() != 0 && ranks != only_size()) continue;
    Report report;
    with_rank_processes(
        ranks, patient_config(flags), report, [&](int rank, mep_comm_t comm, Report& findings) {
          for (size_t i = 0; i < cases && !findings.bad(); ++i) {
            const uint64_t seed =
                mix(test_seed() + first_seed, i * 100 + static_cast<uint64_t>(ranks));
            run_ep_case(random_ep_case(seed, ranks), rank, comm, 6, i % 2 == 1, findings);
          }
        });
    report.require_clean();
  }
}

void mapped(void**) {
  run_cases(0, 11);
}
void by_put_alone(void**) {
  run_cases(kPutOnly, 12);
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {cmocka_unit_test(mapped), cmocka_unit_test(by_put_alone)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

// labels: gate
// Every collective, type, operator and size on ranks that are processes, mapped and put only,
// against the plain reference.
#include "support/coll_matrix.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

void matrix(uint32_t flags) {
  for (const int size : kRankCounts) {
    if (only_size() != 0 && size != only_size()) continue;
    for (const bool nonblocking : {false, true}) {
      // Ranks that are threads have this form at every size.
      if (nonblocking && !soak_flag() && only_size() == 0 && size != 3 && size != 8) continue;
      Report report;
      with_rank_processes(size, patient_config(flags), report,
                          [&](int rank, mep_comm_t comm, Report& found) {
                            run_matrix(rank, size, comm, nonblocking, found);
                          });
      report.require_clean();
    }
  }
}

void test_mapped(void**) {
  matrix(0);
}
void test_put_only(void**) {
  matrix(kPutOnly);
}
// One rank maps nobody: then nobody may take it for one that does.
void test_one_maps_nobody(void**) {
  before_rank() = [](int rank) {
    if (rank == 1) setenv("MEP_MAP", "0", 1);
  };
  matrix(0);
  before_rank() = nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  (void)mep_test::test_seed();
  const CMUnitTest tests[] = {cmocka_unit_test(test_mapped), cmocka_unit_test(test_put_only),
                              cmocka_unit_test(test_one_maps_nobody)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

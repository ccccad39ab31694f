// labels: gate threads tsan
// Every collective, type, operator and size on ranks that are threads, mapped and put only, against
// the plain reference. Every rank is compared with it byte by byte, so ranks agree with each other
// too, and mapped with put only.
#include "support/coll_matrix.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

void matrix(uint32_t flags, bool nonblocking) {
  for (const int size : kRankCounts) {
    // The two forms share their operations: a sanitizer sees each form at rank counts of its own.
    if (kIsSanitized && !soak_flag() && nonblocking != (size == 3)) continue;
    require_on_rank_threads(size, flags, [&](int rank, mep_comm_t comm, Report& found) {
      run_matrix(rank, size, comm, nonblocking, found);
    });
  }
}

void test_mapped(void**) {
  matrix(0, false);
}
void test_put_only(void**) {
  matrix(kPutOnly, false);
}
void test_nonblocking(void**) {
  matrix(0, true);
}
void test_nonblocking_put_only(void**) {
  matrix(kPutOnly, true);
}

void test_unsupported_pairs(void**) {
  require_on_rank_threads(
      2, 0, [](int, mep_comm_t comm, Report& found) { check_unsupported_pairs(comm, found); });
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(test_mapped),
      cmocka_unit_test(test_put_only),
      cmocka_unit_test(test_nonblocking),
      cmocka_unit_test(test_nonblocking_put_only),
      cmocka_unit_test(test_unsupported_pairs),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

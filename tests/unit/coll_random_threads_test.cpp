// labels: quick threads
// Random sequences of mixed operations on ranks that are threads, with delays at every phase where
// the build has the points for them.
#include "support/coll_sequence.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

void sequences(uint32_t flags) {
  const size_t rounds = slice(1, 200);
  for (size_t round = 0; round < rounds; ++round) {
    for (const int size : {2, 3, 4, 7, 8}) {
      const uint64_t seed = mix(mix(test_seed(), round), static_cast<uint64_t>(size) + flags);
      enable_delays(seed, 16);
      require_on_rank_threads(size, flags, [&](int rank, mep_comm_t comm, Report& found) {
        run_sequence(rank, comm, seed, 120, found);
      });
      enable_delays(0, 0);
    }
  }
}

void test_mapped(void**) {
  sequences(0);
}
void test_put_only(void**) {
  sequences(kPutOnly);
}

void test_delay_points_are_passed(void**) {
#if defined(MEP_TEST_HOOKS)
  assert_true(mep::test_delay_passages() > 1000);
#else
  skip();
#endif
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(test_mapped),
      cmocka_unit_test(test_put_only),
      cmocka_unit_test(test_delay_points_are_passed),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

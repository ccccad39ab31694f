// labels: gate threads
// Short jobs whose ranks end in any order and at any speed: nobody ever sees a failure.
#include "support/coll_jobs.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr size_t kJobs = 150;
#else
constexpr size_t kJobs = 1000;
#endif

void test_short_jobs(void**) {
  const size_t jobs = slice(kJobs, 20'000);
  for (size_t job = 0; job < jobs; ++job) {
    const ShortJob plan(mix(test_seed(), job));
    enable_delays(plan.seed, 64);
    Report report;
    with_rank_threads(
        plan.size, patient_config(plan.flags), report,
        [&](int rank, mep_comm_t comm, Report& found) { plan.run_rank(rank, comm, found); });
    enable_delays(0, 0);
    report.require_clean();
  }
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  const CMUnitTest tests[] = {cmocka_unit_test(test_short_jobs)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

// labels: gate
// Two replacements that members admit together, without a link to each other: nobody waits until time is over. About 2.2 s,
// of which the second looks 2 s for the first.
#include "support/join_job.hpp"

using namespace mep_test;

namespace {

// Barriers until one succeeds. False: this rank is out.
bool meet_who_stays(mep_comm_t comm, Report& found) {
  for (;;) {
    const mep_result_t result = mep_barrier(comm, nullptr);
    if (result == MEP_SUCCESS) return true;
    if (result == MEP_ERR_EVICTED) return false;
    COLL_EXPECT(found, MEP_ERR_PEER_FAILED, result);
    if (found.bad()) return false;
  }
}

// The joiner for rank 1 stands still while that for rank 2 looks for others, so neither has a link to the other.
void one_of_two_that_missed_each_other_stays(void**) {
  enum Stage { kIn };
  const auto page = JoinJob::shared_page();
  Meeting all(4);
  Report report;
  JoinJob job(4, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    lose_rank(1, rank, comm, all, found);
    if (rank == 2) die();
    meet_failure(comm, found);
    const int32_t victims[] = {1, 2};
    int32_t admitted = 0;
    COLL_OK(found, mep_recover_ranks(comm, victims, 2, kNeverMs, &admitted));
    COLL_CHECK(found, admitted == 2);
    COLL_CHECK(found, meet_who_stays(comm, found));
  });
  const auto body = [&](int, mep_comm_t comm, Report& found) {
    if (meet_who_stays(comm, found)) page->reach(kIn);
  };
  job.expect_killed(1);
  job.expect_killed(2);
  const size_t lower = job.join(1, body, "join ready=stop");
  job.await_stopped(lower);
  const size_t upper = job.join(2, body, "join ready=stop");
  job.await_stopped(upper);
  kill(job.pid(lower), SIGCONT);
  kill(job.pid(upper), SIGCONT);
  job.expect_clean_end();
  assert_int_equal(page->at[kIn].load(), 1);
  report.require_clean();
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(one_of_two_that_missed_each_other_stays),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

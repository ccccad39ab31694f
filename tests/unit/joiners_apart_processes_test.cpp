// labels: gate
// Two replacements that look for ranks at nearly one time and miss each other: the second of them asks again, and both come
// in together. About 2.7 s each, of which the second looks 2 s for the first, and waits 0.5 s for it.
#include "support/join_job.hpp"

using namespace mep_test;

namespace {

void admit_both(mep_comm_t comm, int rank, Report& found) {
  const int32_t victims[] = {1, 2};
  int32_t admitted = 0;
  COLL_OK(found, mep_recover_ranks(comm, victims, 2, kNeverMs, &admitted));
  COLL_CHECK(found, admitted == 2);
  check_contributors(rank, comm, 0x1111, found);
}

void work_with_all(int rank, mep_comm_t comm, Report& found) {
  check_contributors(rank, comm, 0x1111, found);
}

// The joiner for rank 1 stands still while that for rank 2 looks for others.
void one_of_two_stands_still(void**) {
  Meeting all(4);
  Report report;
  JoinJob job(4, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    lose_rank(1, rank, comm, all, found);
    if (rank == 2) die();
    meet_failure(comm, found);
    admit_both(comm, rank, found);
  });
  job.expect_killed(1);
  job.expect_killed(2);
  const size_t lower = job.join(1, work_with_all, "join ready=stop");
  job.await_stopped(lower);
  const size_t upper = job.join(2, work_with_all, "join ready=stop");
  job.await_stopped(upper);
  kill(job.pid(lower), SIGCONT);
  kill(job.pid(upper), SIGCONT);
  job.expect_clean_end();
  report.require_clean();
}

// The joiner for rank 1 listens, but answers nobody before a member has welcomed it. No member does while rank 1 itself, which
// stands still, is in the view.
void one_of_two_waits_for_its_welcome(void**) {
  enum Stage { kTold };
  const auto page = JoinJob::shared_page();
  Meeting all(4);
  Report report;
  JoinJob job(4, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    lose_rank(2, rank, comm, all, found);
    if (rank == 1) raise(SIGSTOP);
    page->reach(kTold);
    meet_failure(comm, found);
    admit_both(comm, rank, found);
  });
  job.expect_killed(2);
  job.await_stopped(1);
  page->await(kTold, 2);
  const size_t lower = job.join(1, work_with_all, "join connected=stop");
  job.await_stopped(lower);
  kill(job.pid(lower), SIGCONT);
  const size_t upper = job.join(2, work_with_all, "join connected=stop");
  job.await_stopped(upper);
  kill(job.pid(1), SIGKILL);
  job.expect_killed(1);
  kill(job.pid(upper), SIGCONT);
  job.expect_clean_end();
  report.require_clean();
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(one_of_two_stands_still),
      cmocka_unit_test(one_of_two_waits_for_its_welcome),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

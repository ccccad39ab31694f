// labels: quick
// Short jobs as processes, random sequences of operations on them, and what a child of fork gets.
#include "support/coll_jobs.hpp"
#include "support/request_waits.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

void test_short_jobs(void**) {
  const size_t jobs = slice(200, 10'000);
  for (size_t job = 0; job < jobs; ++job) {
    const ShortJob plan(mix(test_seed(), job + 1'000'000));
    Report report;
    with_rank_processes(
        plan.size, patient_config(plan.flags), report,
        [&](int rank, mep_comm_t comm, Report& found) { plan.run_rank(rank, comm, found); });
    report.require_clean();
  }
}

void test_sequences(void**) {
  const size_t rounds = slice(1, 100);
  for (size_t round = 0; round < rounds; ++round) {
    for (const uint32_t flags : {0u, kPutOnly}) {
      for (const int size : {2, 4, 8}) {
        const uint64_t seed = mix(test_seed() + round, static_cast<uint64_t>(size) * 2 + flags);
        Report report;
        with_rank_processes(size, patient_config(flags), report,
                            [&](int rank, mep_comm_t comm, Report& found) {
                              enable_delays(seed + static_cast<uint64_t>(rank), 16);
                              run_sequence(rank, comm, seed, 120, found);
                            });
        report.require_clean();
      }
    }
  }
}

// Status of the child: how many answers were not MEP_ERR_FORKED.
int calls_of_child(mep_comm_t comm, mep_request_t request) {
  int wrong = 0;
  uint32_t value = 1;
  int32_t number = 0;
  uint64_t epoch = 0;
  mep_op_info_t info;
  mep_op_info_defaults(&info);
  void* memory = nullptr;
  mep_comm_t child = nullptr;
  mep_request_t made = nullptr;
  for (uint32_t each = 0; each < mep::kCollectiveCount; ++each) {
    const auto kind = static_cast<Kind>(each);
    const mep::OperationCall call{&value, &value, 1, MEP_UINT32, MEP_SUM, 0};
    wrong += mep::call_collective(kind, call, comm, nullptr) != MEP_ERR_FORKED;
    if (!mep::facts_of(kind).is_nonblocking_too) continue;
    wrong += mep::start_collective(kind, call, comm, nullptr, &made) != MEP_ERR_FORKED;
  }
  wrong += wait_in(&request, 0) != MEP_ERR_FORKED;
  wrong += mep_request_test(&request, &number, nullptr) != MEP_ERR_FORKED;
  wrong += mep_request_info(request, &info) != MEP_ERR_FORKED;
  wrong += mep_comm_rank(comm, &number) != MEP_ERR_FORKED;
  wrong += mep_comm_epoch(comm, &epoch) != MEP_ERR_FORKED;
  wrong += mep_comm_last_op(comm, &info) != MEP_ERR_FORKED;
  wrong += mep_comm_split(comm, 0, 0, &child) != MEP_ERR_FORKED;
  wrong += mep_mem_alloc(comm, 100, 0, 0, &memory) != MEP_ERR_FORKED;
  wrong += mep_comm_abort(comm) != MEP_ERR_FORKED;
  wrong += mep_comm_destroy(comm) != MEP_ERR_FORKED;
  return wrong;
}

void test_fork(void**) {
  Report report;
  with_rank_processes(2, patient_config(0), report, [](int rank, mep_comm_t comm, Report& found) {
    mep_request_t request = nullptr;
    COLL_OK(found, mep_ibarrier(comm, nullptr, &request));
    const pid_t child = fork();
    if (child == 0) _exit(calls_of_child(comm, request));
    int status = -1;
    COLL_CHECK(found, child > 0 && waitpid(child, &status, 0) == child);
    COLL_CHECK(found, WIFEXITED(status) && WEXITSTATUS(status) == 0);
    // The parent is not disturbed.
    COLL_OK(found, mep_request_wait(&request, MEP_TIMEOUT_DEFAULT, nullptr, nullptr));
    const Case c{Kind::k_allreduce, MEP_FLOAT64, MEP_AVG, 100'000, 0, false, 9};
    CaseRun run(c, rank, 2);
    COLL_OK(found, run.run(comm));
    run.check(found);
  });
  report.require_clean();
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  (void)mep_test::test_seed();
  const CMUnitTest tests[] = {cmocka_unit_test(test_short_jobs), cmocka_unit_test(test_sequences),
                              cmocka_unit_test(test_fork)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

// labels: quick
// The progress thread on ranks that are processes: they watch memory and descriptors alone, one of them dies, or
// has children by fork.
#include <cstring>

#include "base/clock.hpp"
#include "support/meeting.hpp"
#include "support/progress_watch.hpp"
#include "support/request_waits.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

// The result comes while the program looks at nothing but its own memory.
void test_memory_alone(void**) {
  Report report;
  with_rank_processes(3, progress_config(), report, [](int rank, mep_comm_t comm, Report& found) {
    if (rank == 2) pause_us(20'000);
    for (int64_t round = 1; round <= 20 && !found.bad(); ++round) {
      int64_t own = round;
      alignas(64) int64_t sum = 0;
      mep_request_t request = nullptr;
      COLL_OK(found, mep_iallreduce(&own, &sum, 1, MEP_INT64, MEP_SUM, comm, nullptr, &request));
      const mep::Deadline limit = mep::Deadline::after_ms(60'000);
      const std::atomic_ref<int64_t> seen(sum);
      while (seen.load(std::memory_order_relaxed) != 3 * round && !limit.expired()) pause_us(50);
      COLL_CHECK(found, seen.load(std::memory_order_relaxed) == 3 * round);
      COLL_OK(found, mep_request_wait(&request, MEP_TIMEOUT_DEFAULT, nullptr, nullptr));
    }
  });
  report.require_clean();
}

// By the variable, on one rank of two: it is each rank's own choice.
void test_by_environment(void**) {
  Report report;
  before_rank() = [](int rank) {
    if (rank == 0) setenv("MEP_PROGRESS_THREAD", "1", 1);
  };
  with_rank_processes(2, patient_config(0), report, [](int rank, mep_comm_t comm, Report& found) {
    const Case c{Kind::k_allreduce, MEP_INT64, MEP_SUM, 100'000, 0, false, 3};
    if (rank == 0) return Watched(c, comm, rank, 2, found).succeed();
    CaseRun run(c, rank, 2);
    COLL_OK(found, run.run(comm));
    run.check(found);
  });
  before_rank() = {};
  report.require_clean();
}

// A member dies while nobody calls.
void test_death(void**) {
  Report report;
  const auto body = [](Meeting& all, int rank, mep_comm_t world, Report& found) {
    mep_comm_t comm = nullptr;
    COLL_OK(found, mep_comm_split(world, 0, rank, &comm));
    if (comm == nullptr) return;
    COLL_OK(found, mep_barrier(comm, nullptr));
    all.pass(found);
    if (rank == 1) {
      pause_us(10'000);
      kill(getpid(), SIGKILL);
    }
    const Case small{Kind::k_allreduce, MEP_INT64, MEP_SUM, 1, 0, false, 3};
    const Case large{Kind::k_allreduce, MEP_INT64, MEP_SUM, 100'000, 0, false, 4};
    Watched first(small, comm, rank, 3, found);
    Watched second(large, world, rank, 3, found);
    for (Watched* each : {&first, &second}) {
      COLL_CHECK(found, each->await());
      COLL_EXPECT(found, MEP_ERR_PEER_FAILED, each->end());
      COLL_CHECK(found, strstr(mep_last_error(), "rank 1 of comm world") != nullptr);
    }
    // Both go on, without calls too.
    for (const mep_comm_t each : {comm, world}) {
      int64_t one = 1;
      int64_t sum = 0;
      mep_request_t request = nullptr;
      int32_t event = -1;
      COLL_OK(found, mep_iallreduce(&one, &sum, 1, MEP_INT64, MEP_SUM, each, nullptr, &request));
      COLL_OK(found, mep_request_event_fd(request, &event));
      pollfd polled{event, POLLIN, 0};
      COLL_CHECK(found, poll(&polled, 1, 60'000) == 1);
      COLL_OK(found, wait_in(&request, 0));
      COLL_CHECK(found, sum == 2);
    }
    COLL_OK(found, mep_comm_destroy(comm));
  };
  for (size_t round = 0; round < slice(3, 100); ++round) {
    Meeting all(3);
    with_rank_processes(
        3, progress_config(), report,
        [&](int rank, mep_comm_t world, Report& found) { body(all, rank, world, found); },
        [](int rank, int) { return rank == 1; });
    report.require_clean();
  }
}

// Children of a process whose progress thread is in the middle of something.
void test_fork(void**) {
  Report report;
  with_rank_processes(2, progress_config(), report, [](int rank, mep_comm_t comm, Report& found) {
    for (uint64_t round = 0; round < 10 && !found.bad(); ++round) {
      const Case c{Kind::k_allreduce, MEP_INT64, MEP_SUM, 60'000, 0, false, round};
      Watched pending(c, comm, rank, 2, found);
      const pid_t child = fork();
      if (child == 0) {
        mep_request_t made = nullptr;
        mep_comm_t own = nullptr;
        int wrong = mep_ibarrier(comm, nullptr, &made) != MEP_ERR_FORKED;
        wrong += mep_comm_destroy(comm) != MEP_ERR_FORKED;
        // A world of its own with a thread of its own.
        mep_comm_config_t alone = progress_config();
        wrong += mep_comm_init_all(1, &alone, &own) != MEP_SUCCESS;
        wrong += mep_ibarrier(own, nullptr, &made) != MEP_SUCCESS;
        wrong += mep_request_wait(&made, MEP_TIMEOUT_DEFAULT, nullptr, nullptr) != MEP_SUCCESS;
        wrong += mep_comm_destroy(own) != MEP_SUCCESS;
        _exit(wrong);
      }
      int status = -1;
      COLL_CHECK(found, child > 0 && waitpid(child, &status, 0) == child);
      COLL_CHECK(found, WIFEXITED(status) && WEXITSTATUS(status) == 0);
      pending.succeed();
    }
  });
  report.require_clean();
}

// A process that ends with operations pending and a thread in the middle of them ends as it wanted to.
void test_exit(void**) {
  Report report;
  const auto ends_by_itself = [](int, int status) {
    return WIFEXITED(status) && WEXITSTATUS(status) == 7;
  };
  const auto body = [](int rank, mep_comm_t comm, Report&) {
    // They live as long as the process: the thread goes on with them while it ends.
    auto* const from = new std::vector<int64_t>(400'000, rank);
    auto* const to = new std::vector<int64_t>(400'000);
    mep_request_t request = nullptr;
    (void)mep_iallreduce(from->data(), to->data(), from->size(), MEP_INT64, MEP_SUM, comm, nullptr,
                         &request);
    exit(request != nullptr ? 7 : 1);  // NOLINT(concurrency-mt-unsafe)
  };
  with_rank_processes(2, progress_config(), report, body, ends_by_itself);
  report.require_clean();
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(test_memory_alone), cmocka_unit_test(test_by_environment),
      cmocka_unit_test(test_death),        cmocka_unit_test(test_fork),
      cmocka_unit_test(test_exit),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

// labels: gate
// Communicators that are closed, and such that cannot be made: what succeeded on one rank succeeds on all,
// also when that rank has closed the communicator and another dies; a rank without descriptors is an error
// on all; nothing stays behind.
#include <dirent.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "base/clock.hpp"
#include "support/join_job.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

mep_comm_t split_off(mep_comm_t comm, Report& report) {
  mep_comm_t child = nullptr;
  COLL_OK(report, mep_comm_split(comm, 0, 0, &child));
  return child;
}

enum Stage { kArmed, kSucceeded };

// Rank 2 stops after its contribution has reached rank 0 alone, which has all then, closes the communicator,
// and would forget what it has.
void what_succeeded_outlives_the_comm(void**) {
  const auto page = JoinJob::shared_page();
  Report report;
  JoinJob job(3, patient_config(0), report, [&](int rank, mep_comm_t world, Report& found) {
    const mep_comm_t child = split_off(world, found);
    if (child == nullptr) return;
    COLL_OK(found, mep_barrier(child, nullptr));
    COLL_OK(found, mep_barrier(child, nullptr));
    if (rank == 2) {
      COLL_OK(found, mep::failpoint_arm("signal:2=stop"));
      page->reach(kArmed);
    }
    page->await(kArmed, 1);
    uint64_t value = uint64_t{1} << (4 * rank);
    uint64_t sum = 0;
    COLL_OK(found, mep_allreduce(&value, &sum, 1, MEP_UINT64, MEP_SUM, child, nullptr));
    COLL_CHECK(found, sum == 0x111);
    page->reach(kSucceeded);
    COLL_OK(found, mep_comm_destroy(child));
    meet_failure(world, found);
    check_contributors(rank, world, 0x11, found);
  });
  job.await_stopped(2);
  page->await(kSucceeded, 1);
  // Long enough to close it; what must hold does so whether it has or not.
  pause_us(100'000);
  kill(job.pid(2), SIGKILL);
  job.expect_killed(2);
  job.expect_clean_end();
  report.require_clean();
}

// A member that stands still keeps nobody from closing for longer than a view change takes.
void closing_ends_without_answers(void**) {
  const auto page = JoinJob::shared_page();
  Report report;
  mep_comm_config_t config = patient_config(0);
  config.timeout_ms = 3'000;
  config.suspect_ms = 2'000;
  JoinJob job(3, config, report, [&](int rank, mep_comm_t world, Report& found) {
    const mep_comm_t child = split_off(world, found);
    if (child == nullptr) return;
    COLL_OK(found, mep_barrier(child, nullptr));
    if (rank == 2) {
      COLL_OK(found, mep::failpoint_arm("signal:1=stop"));
      (void)mep_barrier(child, nullptr);
      return;
    }
    page->await(kArmed, 1);
    COLL_OK(found, mep_comm_destroy(child));
    meet_failure(world, found);
    check_contributors(rank, world, 0x11, found);
  });
  job.await_stopped(2);
  page->reach(kArmed);
  for (const size_t rank : {size_t{0}, size_t{1}}) {
    const int status = job.status_of(rank);
    if (status != 0) report.add("rank %zu ended with status 0x%x", rank, status);
  }
  kill(job.pid(2), SIGKILL);
  job.expect_killed(2);
  report.require_clean();
}

// Acts as if the network had failed, which no process on this host sees of another.
void break_all_connections() {
  for (int fd = 3; fd < 1024; ++fd) (void)shutdown(fd, SHUT_RDWR);
}

// Rank 2 is lost but nobody knows that it has ended. Ranks 0 and 1 leave just then: rank 3 could not go on
// with rank 2 in its view, half of which it is, so they see to it first.
void leavers_see_the_lost_out(void**) {
  const auto page = JoinJob::shared_page();
  Report report;
  mep_comm_config_t config = patient_config(0);
  config.suspect_ms = 2'000;
  Meeting all(4);
  JoinJob job(4, config, report, [&](int rank, mep_comm_t world, Report& found) {
    COLL_OK(found, mep_barrier(world, nullptr));
    all.pass(found);
    if (rank == 2) {
      break_all_connections();
      page->reach(kArmed);
      raise(SIGSTOP);
    }
    page->await(kArmed, 1);
    if (rank != 3) return;
    page->await(kSucceeded, 2);
    mep_result_t result = MEP_ERR_PEER_FAILED;
    for (int change = 0; change < 4 && result != MEP_SUCCESS; ++change) {
      result = mep_barrier(world, nullptr);
      COLL_CHECK(found, result == MEP_SUCCESS || result == MEP_ERR_PEER_FAILED ||
                            result == MEP_ERR_PEER_LEFT);
    }
    check_contributors(rank, world, 0x1000, found);
  });
  for (const size_t rank : {size_t{0}, size_t{1}}) {
    const int status = job.status_of(rank);
    if (status != 0) report.add("rank %zu ended with status 0x%x", rank, status);
    page->reach(kSucceeded);
  }
  const int status = job.status_of(3);
  if (status != 0) report.add("rank 3 ended with status 0x%x", status);
  kill(job.pid(2), SIGKILL);
  job.expect_killed(2);
  report.require_clean();
}

rlimit allow_no_descriptors() {
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const int lowest = dup(0);
  close(lowest);
  const rlimit narrow{static_cast<rlim_t>(lowest), before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &narrow);
  return before;
}

// One rank has room for no descriptor: all get its error, soon, also those of another color that have made
// their part; and all go on as before.
void no_descriptors_on_one_rank(void**) {
  constexpr int kSize = 3;
  Report report;
  with_rank_processes(kSize, patient_config(0), report,
                      [](int rank, mep_comm_t world, Report& found) {
                        for (int round = 0; round < 3; ++round) {
                          rlimit before{};
                          if (rank == 1) before = allow_no_descriptors();
                          mep_comm_t child = nullptr;
                          const uint64_t begun = mep::now_ns();
                          COLL_EXPECT(found, MEP_ERR_NO_MEMORY,
                                      mep_comm_split(world, rank == 1 ? 1 : 0, 0, &child));
                          COLL_CHECK(found, mep::now_ns() - begun < 30'000'000'000);
                          COLL_CHECK(found, child == nullptr);
                          if (rank == 1) setrlimit(RLIMIT_NOFILE, &before);
                          if (child != nullptr) COLL_OK(found, mep_comm_destroy(child));
                          check_contributors(rank, world, 0x111, found);
                          child = split_off(world, found);
                          if (child == nullptr) return;
                          check_contributors(rank, child, 0x111, found);
                          COLL_OK(found, mep_comm_destroy(child));
                        }
                      });
  report.require_clean();
}

size_t open_descriptors() {
  size_t count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (folder != nullptr && readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

size_t resident_bytes() {
  size_t pages = 0;
  FILE* const file = fopen("/proc/self/statm", "r");
  if (file == nullptr || fscanf(file, "%*u %zu", &pages) != 1) pages = 0;
  if (file != nullptr) fclose(file);
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

void nothing_stays_behind(void**) {
  const size_t cycles = slice(1'000, 100'000);
  Report report;
  with_rank_processes(3, patient_config(0), report, [&](int rank, mep_comm_t world, Report& found) {
    size_t descriptors = 0;
    size_t bytes = 0;
    const size_t warm = cycles / 10;
    for (size_t cycle = 0; cycle < cycles && !found.bad(); ++cycle) {
      if (cycle == warm) {
        descriptors = open_descriptors();
        bytes = resident_bytes();
      }
      const mep_comm_t child = split_off(world, found);
      if (child == nullptr) return;
      check_contributors(rank, child, 0x111, found);
      COLL_OK(found, mep_comm_destroy(child));
    }
    // A peer may just be closing its last one.
    COLL_OK(found, mep_barrier(world, nullptr));
    const size_t now = open_descriptors();
    if (now > descriptors + 8) found.add("%zu descriptors, %zu before", now, descriptors);
    const size_t grown = resident_bytes() - std::min(bytes, resident_bytes());
    if (grown > (size_t{2} << 20)) found.add("%zu bytes more", grown);
  });
  report.require_clean();
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  (void)mep_test::test_seed();
  const CMUnitTest tests[] = {
      cmocka_unit_test(what_succeeded_outlives_the_comm),
      cmocka_unit_test(closing_ends_without_answers), cmocka_unit_test(leavers_see_the_lost_out),
      cmocka_unit_test(no_descriptors_on_one_rank), cmocka_unit_test(nothing_stays_behind)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

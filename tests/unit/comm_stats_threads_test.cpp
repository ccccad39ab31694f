// labels: quick threads tsan asan
// mep_comm_stats against counts of the test's own: operations of each kind, errors, and a reader beside them. Ranks
// wait for each other outside the library before they leave, since a rank that leaves counts on the others.
#include <barrier>

#include "support/comm_stats.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

void calls_and_bytes(void**) {
  for (const int size : {1, 2, 3}) {
    std::barrier all(size);
    require_on_rank_threads(size, 0, [&](int rank, mep_comm_t comm, Report& found) {
      CountedCalls calls(rank, size, comm, found);
      check_stats(comm, calls.expected, "at first", found);
      for (int form = 0; form < 3; ++form) {
        for (const size_t count : {0, 1, 7}) calls.collectives(count, form);
      }
      check_stats(comm, calls.expected, "collectives", found);
      for (const size_t count : {0, 5, 20'000}) calls.messages(count);
      check_stats(comm, calls.expected, "messages", found);
      calls.moe(static_cast<uint32_t>(3 + rank));
      check_stats(comm, calls.expected, "moe", found);
      all.arrive_and_wait();
    });
  }
}

// A child counts for itself, and what its making takes counts nowhere.
void communicators_count_for_themselves(void**) {
  std::barrier all(3);
  require_on_rank_threads(3, 0, [&](int rank, mep_comm_t comm, Report& found) {
    mep_comm_t child = nullptr;
    COLL_OK(found, mep_comm_split(comm, rank == 2 ? 1 : 0, 0, &child));
    uint64_t agreed = 0;
    COLL_OK(found, mep_comm_agree(comm, 3, &agreed));
    check_stats(comm, no_stats(), "the parent", found);
    CountedCalls calls(rank == 2 ? 0 : rank, rank == 2 ? 1 : 2, child, found);
    calls.collectives(3, 0);
    calls.messages(3);
    check_stats(child, calls.expected, "the child", found);
    check_stats(comm, no_stats(), "the parent beside it", found);
    all.arrive_and_wait();
    COLL_OK(found, mep_comm_destroy(child));
  });
}

void errors_by_kind(void**) {
  std::barrier all(2);
  Report report;
  with_rank_threads(2, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    Stats expected = no_stats();
    int32_t in[4] = {};
    int32_t out[4] = {};
    COLL_EXPECT(found, MEP_ERR_MISMATCH,
                mep_allreduce(in, out, rank == 0 ? 1 : 2, MEP_INT32, MEP_SUM, comm, nullptr));
    ++expected.collectives;
    ++expected.errors_mismatch;
    check_stats(comm, expected, "mismatch", found);

    COLL_EXPECT(found, MEP_ERR_INVALID_ARGUMENT,
                mep_allreduce(in, out, 1, 99, MEP_SUM, comm, nullptr));
    mep_request_t request = nullptr;
    COLL_EXPECT(found, MEP_ERR_INVALID_ARGUMENT,
                mep_iallreduce(in, out, 1, 99, MEP_SUM, comm, nullptr, &request));
    expected.collectives += 2;
    COLL_EXPECT(found, MEP_ERR_INVALID_ARGUMENT, mep_send(in, 1, MEP_INT32, 7, 0, comm, nullptr));
    COLL_EXPECT(found, MEP_ERR_INVALID_ARGUMENT,
                mep_isend(in, 1, MEP_INT32, 7, 0, comm, nullptr, &request));
    expected.sends += 2;
    expected.errors_other += 4;
    check_stats(comm, expected, "refused", found);

    COLL_OK(found, mep_comm_set_timeout(comm, 100));
    COLL_EXPECT(found, MEP_ERR_TIMEOUT,
                mep_recv(out, 1, MEP_INT32, 1 - rank, 5, comm, nullptr, nullptr));
    COLL_OK(found, mep_irecv(out, 1, MEP_INT32, 1 - rank, 5, comm, nullptr, nullptr, &request));
    COLL_EXPECT(found, MEP_ERR_TIMEOUT,
                mep_request_wait(&request, MEP_TIMEOUT_DEFAULT, nullptr, nullptr));
    expected.receives += 2;
    expected.errors_timeout += 2;
    check_stats(comm, expected, "timeout", found);

    COLL_OK(found, mep_comm_set_timeout(comm, 60'000));
    COLL_OK(found, mep_barrier(comm, nullptr));
    ++expected.collectives;
    check_stats(comm, expected, "before a rank leaves", found);
    all.arrive_and_wait();
    if (rank == 1) return;
    COLL_EXPECT(found, MEP_ERR_PEER_LEFT, mep_barrier(comm, nullptr));
    ++expected.collectives;
    ++expected.errors_peer_left;
    ++expected.view_changes;
    ++expected.ranks_lost;
    check_stats(comm, expected, "after a rank has left", found);
  });
  report.require_clean();
}

// A timeout is a change of the epoch that takes no rank away.
void a_timeout_loses_no_rank(void**) {
  Report report;
  std::atomic<bool> over{false};
  with_rank_threads(2, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    if (rank == 0) COLL_OK(found, mep_comm_set_timeout(comm, 100));
    while (rank == 1 && !over.load()) pause_us(500);
    COLL_EXPECT(found, MEP_ERR_TIMEOUT, mep_barrier(comm, nullptr));
    over.store(true);
    Stats expected = no_stats();
    expected.collectives = 1;
    expected.errors_timeout = 1;
    expected.view_changes = 1;
    check_stats(comm, expected, "timeout", found);
    COLL_OK(found, mep_comm_set_timeout(comm, 60'000));
    COLL_OK(found, mep_barrier(comm, nullptr));
  });
  report.require_clean();
}

// Another thread reads while this one is inside calls: no count goes back, and none is lost.
void a_thread_reads_beside_calls(void**) {
  constexpr uint64_t kCalls = 2000;
  std::barrier all(2);
  require_on_rank_threads(2, 0, [&](int, mep_comm_t comm, Report& found) {
    std::atomic<bool> stop{false};
    std::thread reader([&] {
      Stats before = no_stats();
      while (!stop.load()) {
        Stats now = no_stats();
        COLL_OK(found, mep_comm_stats(comm, &now));
        COLL_CHECK(found, now.collectives >= before.collectives && now.collectives <= kCalls &&
                              now.collective_bytes >= before.collective_bytes);
        before = now;
      }
    });
    int64_t in = 1;
    int64_t out = 0;
    for (uint64_t i = 0; i < kCalls; ++i) {
      COLL_OK(found, mep_allreduce(&in, &out, 1, MEP_INT64, MEP_SUM, comm, nullptr));
    }
    stop.store(true);
    reader.join();
    Stats expected = no_stats();
    expected.collectives = kCalls;
    expected.collective_bytes = 8 * kCalls;
    check_stats(comm, expected, "at the end", found);
    all.arrive_and_wait();
  });
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(calls_and_bytes),
      cmocka_unit_test(communicators_count_for_themselves),
      cmocka_unit_test(errors_by_kind),
      cmocka_unit_test(a_timeout_loses_no_rank),
      cmocka_unit_test(a_thread_reads_beside_calls),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

// labels: quick threads tsan
// The progress thread on ranks that are threads: operations end without calls of the user, calls beside it are
// never refused because of it, and what an operation says is right on whichever thread it ended.
#include <cstring>

#include "support/progress_watch.hpp"
#include "support/request_waits.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

// On both sides of each size from which an operation is done in another way.
constexpr size_t kBytes[] = {0, 8, 4088, 4096, 40'000, 300'000, 1'200'000};

Case sum_of(size_t bytes, uint64_t seed) {
  return {Kind::k_allreduce, MEP_INT64, MEP_SUM, bytes / sizeof(int64_t), 0, false, seed};
}

// On several comms at once, several outstanding on each.
void start_and_watch(int rank, int size, mep_comm_t world, Report& found) {
  mep_comm_t all = nullptr;
  mep_comm_t half = nullptr;
  COLL_OK(found, mep_comm_split(world, 0, -rank, &all));
  COLL_OK(found, mep_comm_split(world, rank % 2, rank, &half));
  if (found.bad()) return;
  for (int round = 0; round < 3 && !found.bad(); ++round) {
    std::vector<std::unique_ptr<Watched>> watched;
    uint64_t seed = static_cast<uint64_t>(round) * 100;
    for (const size_t bytes : kBytes) {
      for (const mep_comm_t comm : {world, all, half}) {
        int32_t own = 0;
        int32_t of = 0;
        COLL_OK(found, mep_comm_rank(comm, &own));
        COLL_OK(found, mep_comm_size(comm, &of));
        const Case c = sum_of(bytes, ++seed + (comm == half ? rank % 2 * 1000 : 0));
        watched.push_back(std::make_unique<Watched>(c, comm, own, of, found));
      }
      if ((static_cast<size_t>(rank) + bytes) % static_cast<size_t>(size) == 0) pause_us(700);
    }
    for (const auto& each : watched) (void)each->await();
    for (const auto& each : watched) each->succeed();
  }
  COLL_OK(found, mep_comm_destroy(half));
  COLL_OK(found, mep_comm_destroy(all));
}

void test_without_calls(void**) {
  for (const uint32_t flags : {0u, kPutOnly}) {
    for (const int size : {1, 2, 3}) {
      enable_delays(test_seed() + static_cast<uint64_t>(size), 64);
      Report report;
      with_rank_threads(size, progress_config(flags), report,
                        [&](int rank, mep_comm_t comm, Report& found) {
                          start_and_watch(rank, size, comm, found);
                        });
      enable_delays(0, 0);
      report.require_clean();
    }
  }
}

// A descriptor is readable too when another call ended the operation, and when it is asked for afterwards.
void test_ended_by_a_call(void**) {
  Report report;
  with_rank_threads(2, progress_config(), report, [&](int rank, mep_comm_t comm, Report& found) {
    Watched first(sum_of(300'000, 1), comm, rank, 2, found);
    mep_request_t late = nullptr;
    COLL_OK(found, mep_ibarrier(comm, nullptr, &late));
    COLL_OK(found, mep_barrier(comm, nullptr));
    COLL_CHECK(found, first.await(0));
    first.succeed();
    mep_op_info_t info;
    mep_op_info_defaults(&info);
    COLL_OK(found, mep_request_info(late, &info));
    COLL_CHECK(found, info.result == MEP_SUCCESS && info.seq == 2);
    int32_t event = -1;
    COLL_OK(found, mep_request_event_fd(late, &event));
    pollfd polled{event, POLLIN, 0};
    COLL_CHECK(found, poll(&polled, 1, 0) == 1);
    COLL_OK(found, wait_in(&late, 0));
  });
  report.require_clean();
}

// Blocking calls and tests on comms that the progress thread looks at: none is refused.
void race(int rank, int size, mep_comm_t comm, mep_comm_t other, size_t rounds, Report& found) {
  RandomStream shared(test_seed());
  RandomStream own(mix(test_seed(), static_cast<uint64_t>(rank)));
  for (size_t round = 0; round < rounds && !found.bad(); ++round) {
    const mep_comm_t pending_on = shared.one_in(2) ? comm : other;
    const mep_comm_t blocking_on = shared.one_in(2) ? comm : other;
    Watched first(sum_of(kBytes[shared.below(5)], round), pending_on, rank, size, found);
    Watched second(sum_of(kBytes[shared.below(5)], round + 1), pending_on, rank, size, found);
    if (own.one_in(3)) pause_us(static_cast<unsigned>(own.below(200)));
    for (uint64_t calls = shared.below(4); calls > 0; --calls) {
      CaseRun run(sum_of(kBytes[shared.below(4)], round + 2), rank, size);
      COLL_OK(found, run.run(blocking_on));
      run.check(found);
      mep_op_info_t info;
      mep_op_info_defaults(&info);
      COLL_OK(found, mep_comm_last_op(blocking_on, &info));
    }
    first.succeed();
    second.succeed();
  }
}

void test_calls_beside_it(void**) {
  for (const int size : {2, 3}) {
    enable_delays(test_seed() + static_cast<uint64_t>(size), 8);
    Report report;
    with_rank_threads(size, progress_config(), report,
                      [&](int rank, mep_comm_t comm, Report& found) {
                        mep_comm_t other = nullptr;
                        COLL_OK(found, mep_comm_split(comm, 0, rank, &other));
                        if (other == nullptr) return;
                        race(rank, size, comm, other, slice(60, 3000), found);
                        COLL_OK(found, mep_comm_destroy(other));
                      });
    enable_delays(0, 0);
    report.require_clean();
  }
}

void test_sequences(void**) {
  for (const int size : {2, 5}) {
    enable_delays(test_seed(), 16);
    Report report;
    with_rank_threads(size, progress_config(), report,
                      [&](int rank, mep_comm_t comm, Report& found) {
                        run_sequence(rank, comm, test_seed(), slice(80, 2000), found);
                      });
    enable_delays(0, 0);
    report.require_clean();
  }
}

// The time of an operation is over while nobody calls: the decision is asked for all the same.
void test_deadline(void**) {
  Report report;
  std::atomic<bool> over{false};
  with_rank_threads(2, progress_config(), report, [&](int rank, mep_comm_t comm, Report& found) {
    if (rank == 1) {
      while (!over.load()) pause_us(200);
      COLL_EXPECT(found, MEP_ERR_TIMEOUT, mep_barrier(comm, nullptr));
      COLL_OK(found, mep_barrier(comm, nullptr));
      return;
    }
    COLL_OK(found, mep_comm_set_timeout(comm, 100));
    Watched late(Case{}, comm, rank, 2, found);
    COLL_CHECK(found, late.await());
    COLL_EXPECT(found, MEP_ERR_TIMEOUT, late.end());
    COLL_CHECK(found, strstr(mep_last_error(), "ran out of time") != nullptr);
    over.store(true);
    COLL_OK(found, mep_comm_set_timeout(comm, 60'000));
    COLL_OK(found, mep_barrier(comm, nullptr));
  });
  report.require_clean();
}

// An error of this rank alone, found by the progress thread: its text is the request's, and what the user's
// thread has failed in meanwhile does not take its place.
void test_text_of_another_thread(void**) {
  Report report;
  with_rank_threads(2, progress_config(), report, [&](int rank, mep_comm_t comm, Report& found) {
    const size_t count = static_cast<size_t>(rank) + 1;
    Watched odd(sum_of(count * 8, 1), comm, rank, 2, found);
    COLL_CHECK(found, odd.await());
    COLL_EXPECT(found, MEP_ERR_INVALID_ARGUMENT, mep_comm_rank(comm, nullptr));
    COLL_EXPECT(found, MEP_ERR_MISMATCH, odd.end());
    COLL_CHECK(found, strstr(mep_last_error(), "called") != nullptr);
  });
  report.require_clean();
}

void test_revoke_and_abort(void**) {
  for (const bool abort : {false, true}) {
    Report report;
    std::atomic<int> ended{0};
    with_rank_threads(2, progress_config(), report, [&](int rank, mep_comm_t comm, Report& found) {
      if (rank == 0) {
        Watched pending(Case{}, comm, rank, 2, found);
        Watched behind(sum_of(300'000, 1), comm, rank, 2, found);
        // No call of this rank is inside when the operations end.
        COLL_OK(found, abort ? mep_comm_abort(comm) : mep_comm_revoke(comm));
        for (Watched* each : {&pending, &behind}) {
          COLL_CHECK(found, each->await());
          COLL_EXPECT(found, abort ? MEP_ERR_ABORTED : MEP_ERR_REVOKED, each->end());
          COLL_CHECK(found, strstr(mep_last_error(), abort ? "ended" : "revoked") != nullptr);
        }
        ended.store(1);
      }
      while (ended.load() == 0 && !found.bad()) pause_us(200);
    });
    report.require_clean();
  }
}

// A comm with requests stays, ended or not; then it goes at once, and so does the thread with the world.
void test_destroy(void**) {
  for (size_t round = 0; round < slice(15, 300); ++round) {
    enable_delays(test_seed() + round, 4);
    Report report;
    with_rank_threads(2, progress_config(), report, [&](int rank, mep_comm_t comm, Report& found) {
      mep_comm_t child = nullptr;
      COLL_OK(found, mep_comm_split(comm, 0, rank, &child));
      if (child == nullptr) return;
      {
        Watched pending(sum_of(kBytes[round % std::size(kBytes)], round), child, rank, 2, found);
        COLL_EXPECT(found, MEP_ERR_BUSY, mep_comm_destroy(child));
        COLL_CHECK(found, pending.await());
        COLL_EXPECT(found, MEP_ERR_BUSY, mep_comm_destroy(child));
        pending.succeed();
      }
      COLL_OK(found, mep_comm_destroy(child));
    });
    enable_delays(0, 0);
    report.require_clean();
  }
  assert_true(core_time_of("mep-progress") == 0);
}

// With nothing pending the thread does not run at all, and with something that does not come hardly.
void test_rests(void**) {
  Report report;
  std::atomic<bool> go{false};
  with_rank_threads(2, progress_config(), report, [&](int rank, mep_comm_t comm, Report& found) {
    if (rank == 1) {
      while (!go.load()) pause_us(500);
      COLL_OK(found, mep_barrier(comm, nullptr));
      return;
    }
    // Once, so that the thread has begun and come to rest.
    pause_us(50'000);
    const uint64_t before = core_time_of("mep-progress");
    COLL_CHECK(found, before != 0);
    pause_us(200'000);
    const uint64_t idle = core_time_of("mep-progress");
    COLL_CHECK(found, idle == before);
    Watched pending(Case{}, comm, rank, 2, found);
    pause_us(400'000);
    const uint64_t pended = core_time_of("mep-progress") - idle;
    if (pended > 80'000'000)
      found.add("it ran for %llu ns", static_cast<unsigned long long>(pended));
    go.store(true);
    pending.succeed();
  });
  report.require_clean();
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(test_without_calls),
      cmocka_unit_test(test_ended_by_a_call),
      cmocka_unit_test(test_calls_beside_it),
      cmocka_unit_test(test_sequences),
      cmocka_unit_test(test_deadline),
      cmocka_unit_test(test_text_of_another_thread),
      cmocka_unit_test(test_revoke_and_abort),
      cmocka_unit_test(test_destroy),
      cmocka_unit_test(test_rests),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

// labels: quick threads tsan asan
// Requests, what calls say about themselves, two threads on one comm, and memory of mep_mem_alloc.
#include <poll.h>

#include "support/coll_sequence.hpp"
#include "support/request_waits.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

struct Info {
  uint64_t contributors = ~uint64_t{0};
  uint64_t failed = ~uint64_t{0};
  mep_op_info_t info;
  Info(const Info&) = delete;
  Info& operator=(const Info&) = delete;
  Info() {
    mep_op_info_defaults(&info);
    info.contributors = &contributors;
    info.contributors_words = 1;
    info.failed = &failed;
    info.failed_words = 1;
  }
};

void test_wait_and_test(void**) {
  Report report;
  std::atomic<bool> go{false};
  with_rank_threads(2, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    if (rank == 1) {
      while (!go.load()) pause_us(200);
      COLL_OK(found, mep_barrier(comm, nullptr));
      return;
    }
    mep_request_t request = nullptr;
    COLL_OK(found, mep_ibarrier(comm, nullptr, &request));
    COLL_EXPECT(found, MEP_IN_PROGRESS, wait_in(&request, 0));
    COLL_EXPECT(found, MEP_IN_PROGRESS, wait_in(&request, 3));
    COLL_CHECK(found, request != nullptr);
    int32_t done = 7;
    COLL_OK(found, mep_request_test(&request, &done, nullptr));
    COLL_CHECK(found, done == 0 && request != nullptr);
    Info running;
    COLL_OK(found, mep_request_info(request, &running.info));
    COLL_CHECK(found, running.info.result == MEP_IN_PROGRESS && running.info.seq == 1 &&
                          running.info.epoch == 1 && running.contributors == 0);
    // A comm with a request that is not finished stays.
    COLL_EXPECT(found, MEP_ERR_BUSY, mep_comm_destroy(comm));
    int32_t fd = -1;
    COLL_OK(found, mep_request_event_fd(request, &fd));
    int32_t same = -1;
    COLL_OK(found, mep_request_event_fd(request, &same));
    COLL_CHECK(found, fd >= 0 && fd == same);
    go.store(true);
    Info finished;
    while (done == 0 && !found.bad()) {
      pollfd event{fd, POLLIN, 0};
      COLL_CHECK(found, poll(&event, 1, 60'000) == 1 && (event.revents & POLLIN) != 0);
      COLL_OK(found, mep_request_test(&request, &done, &finished.info));
    }
    COLL_CHECK(found, request == nullptr && finished.info.result == MEP_SUCCESS &&
                          finished.info.seq == 1 && finished.contributors == 3 &&
                          finished.failed == 0);
  });
  report.require_clean();
}

// Looks only when the descriptor says so: it does when its peers come, and when its time is over.
void test_event_of_deadline(void**) {
  Report report;
  mep_comm_config_t config = patient_config(0);
  std::atomic<bool> over{false};
  with_rank_threads(2, config, report, [&](int rank, mep_comm_t comm, Report& found) {
    if (rank == 1) {
      while (!over.load()) pause_us(200);
      // One call for each that was pending there.
      COLL_EXPECT(found, MEP_ERR_TIMEOUT, mep_barrier(comm, nullptr));
      COLL_EXPECT(found, MEP_ERR_TIMEOUT, mep_barrier(comm, nullptr));
      COLL_OK(found, mep_barrier(comm, nullptr));
      return;
    }
    mep_request_t requests[2] = {};
    COLL_OK(found, mep_comm_set_timeout(comm, 100));
    for (mep_request_t& request : requests) COLL_OK(found, mep_ibarrier(comm, nullptr, &request));
    for (mep_request_t& request : requests) {
      int32_t fd = -1;
      COLL_OK(found, mep_request_event_fd(request, &fd));
      for (int32_t done = 0; done == 0 && !found.bad();) {
        pollfd event{fd, POLLIN, 0};
        COLL_CHECK(found, poll(&event, 1, 60'000) == 1);
        const mep_result_t result = mep_request_test(&request, &done, nullptr);
        COLL_CHECK(found, result == (done == 0 ? MEP_SUCCESS : MEP_ERR_TIMEOUT));
      }
    }
    over.store(true);
    COLL_OK(found, mep_comm_set_timeout(comm, 60'000));
    COLL_OK(found, mep_barrier(comm, nullptr));
  });
  report.require_clean();
}

// Three are outstanding and the third cannot be done yet: waiting for the second finishes the
// first, which must say so at once and with its own numbers.
void test_out_of_order(void**) {
  Report report;
  std::atomic<bool> go{false};
  with_rank_threads(2, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    const Case first{Kind::k_allreduce, MEP_INT32, MEP_SUM, 12, 0, false, 1};
    const Case second{Kind::k_allgather, MEP_INT32, MEP_SUM, 50'000, 0, false, 2};
    CaseRun one(first, rank, 2);
    CaseRun two(second, rank, 2);
    if (rank == 1) {
      COLL_OK(found, one.run(comm));
      COLL_OK(found, two.run(comm));
      while (!go.load()) pause_us(200);
      COLL_OK(found, mep_barrier(comm, nullptr));
      return;
    }
    mep_request_t requests[3] = {};
    COLL_OK(found, one.start(comm, &requests[0]));
    COLL_OK(found, two.start(comm, &requests[1]));
    COLL_OK(found, mep_ibarrier(comm, nullptr, &requests[2]));
    Info info;
    COLL_OK(found, mep_request_wait(&requests[1], MEP_TIMEOUT_DEFAULT, nullptr, &info.info));
    COLL_CHECK(found, info.info.seq == 2 && info.contributors == 3);
    int32_t done = 0;
    Info earlier;
    COLL_OK(found, mep_request_test(&requests[0], &done, &earlier.info));
    COLL_CHECK(found, done == 1 && earlier.info.seq == 1 && earlier.contributors == 3);
    COLL_EXPECT(found, MEP_IN_PROGRESS, wait_in(&requests[2], 1));
    go.store(true);
    COLL_OK(found, mep_request_wait(&requests[2], MEP_TIMEOUT_DEFAULT, nullptr, nullptr));
    one.check(found);
    two.check(found);
  });
  report.require_clean();
}

void test_last_op(void**) {
  constexpr int kSize = 3;
  Report report;
  with_rank_threads(kSize, patient_config(0), report, [&](int, mep_comm_t comm, Report& found) {
    Info none;
    COLL_EXPECT(found, MEP_ERR_NOT_FOUND, mep_comm_last_op(comm, &none.info));
    for (uint64_t seq = 1; seq <= 20; ++seq) {
      uint32_t one = 1;
      uint32_t sum = 0;
      COLL_OK(found, mep_allreduce(&one, &sum, 1, MEP_UINT32, MEP_SUM, comm, nullptr));
      COLL_CHECK(found, sum == kSize);
      Info info;
      COLL_OK(found, mep_comm_last_op(comm, &info.info));
      COLL_CHECK(found, info.info.seq == seq && info.info.epoch == 1 &&
                            info.info.result == MEP_SUCCESS && info.contributors == 7 &&
                            info.failed == 0);
      COLL_CHECK(found, (info.info.flags & MEP_OP_INPUT_INTACT) != 0);
      // A refused call consumes no number.
      COLL_EXPECT(found, MEP_ERR_INVALID_ARGUMENT,
                  mep_allreduce(nullptr, &sum, 1, MEP_UINT32, MEP_SUM, comm, nullptr));
    }
    Info narrow;
    narrow.info.contributors_words = 0;
    COLL_EXPECT(found, MEP_ERR_CAPACITY, mep_comm_last_op(comm, &narrow.info));
    COLL_CHECK(found, narrow.info.seq == 20);
    uint64_t wide[3] = {~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}};
    Info info;
    info.info.contributors = wide;
    info.info.contributors_words = 3;
    COLL_OK(found, mep_comm_last_op(comm, &info.info));
    COLL_CHECK(found, wide[0] == 7 && wide[1] == 0 && wide[2] == 0);
  });
  report.require_clean();
}

// Two threads call at the same time and one is refused; whichever it is, the other's call works.
void test_second_thread(void**) {
  Report report;
  std::atomic<int> refused{0};
  with_rank_threads(2, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    if (rank == 1) {
      while (refused.load() == 0) pause_us(200);
      COLL_OK(found, mep_barrier(comm, nullptr));
      return;
    }
    std::atomic<int> started{0};
    std::atomic<int> succeeded{0};
    const auto call = [&](unsigned delay_us) {
      started.fetch_add(1);
      while (started.load() < 2) pause_us(100);
      pause_us(delay_us);
      const mep_result_t result = mep_barrier(comm, nullptr);
      if (result == MEP_ERR_THREAD) refused.fetch_add(1);
      if (result == MEP_SUCCESS) succeeded.fetch_add(1);
    };
    std::thread second(call, 30'000);
    call(0);
    second.join();
    COLL_CHECK(found, refused.load() == 1 && succeeded.load() == 1);
  });
  report.require_clean();
}

void test_source_memory(void**) {
  for (const uint32_t flags : {0u, kPutOnly}) {
    Report report;
    with_rank_threads(3, patient_config(flags), report, [&](int, mep_comm_t comm, Report& found) {
      constexpr size_t kCount = 300'001;
      void* memory = nullptr;
      void* result = nullptr;
      COLL_OK(found, mep_mem_alloc(comm, kCount * sizeof(float), 0, 0, &memory));
      COLL_OK(found, mep_mem_alloc(comm, kCount * sizeof(float), 0, 0, &result));
      auto* values = static_cast<float*>(memory);
      auto* sums = static_cast<float*>(result);
      COLL_CHECK(found, reinterpret_cast<uintptr_t>(memory) % 4096 == 0);
      COLL_CHECK(found, values[0] == 0 && values[kCount - 1] == 0);
      for (size_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(i % 1000);
      COLL_OK(found, mep_allreduce(values, sums, kCount, MEP_FLOAT32, MEP_SUM, comm, nullptr));
      for (size_t i = 0; i < kCount; ++i) {
        if (sums[i] != 3 * static_cast<float>(i % 1000)) {
          found.add("sum %zu is %f", i, static_cast<double>(sums[i]));
          break;
        }
      }
      COLL_EXPECT(found, MEP_ERR_BUSY, mep_comm_destroy(comm));
      COLL_EXPECT(found, MEP_ERR_INVALID_ARGUMENT, mep_mem_free(comm, &found));
      COLL_OK(found, mep_mem_free(comm, memory));
      COLL_OK(found, mep_mem_free(comm, result));
    });
    report.require_clean();
  }
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(test_wait_and_test), cmocka_unit_test(test_event_of_deadline),
      cmocka_unit_test(test_out_of_order),  cmocka_unit_test(test_last_op),
      cmocka_unit_test(test_second_thread), cmocka_unit_test(test_source_memory),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

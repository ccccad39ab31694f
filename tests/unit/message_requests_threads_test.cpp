// labels: quick threads tsan asan
// Messages under way: receives that are withdrawn, waiting for several requests, descriptors, and messages that
// are served while their rank is inside other calls on the comm.
#include <poll.h>

#include "support/message_ranks.hpp"
#include "support/request_waits.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

// A call that begins and waits for an operation of the comm, and so makes progress on it.
void stir(mep_comm_t comm, Report& found) {
  int32_t rank = 0;
  COLL_OK(found, mep_comm_rank(comm, &rank));
  COLL_OK(found, mep_sendrecv(nullptr, 0, rank, 1'000'000, nullptr, 0, rank, 1'000'000, MEP_INT8,
                              comm, nullptr, nullptr));
}

mep_result_t result_of(mep_request_t request, Report& found) {
  mep_op_info_t info;
  mep_op_info_defaults(&info);
  COLL_OK(found, mep_request_info(request, &info));
  return info.result;
}

// Until it has ended, without freeing it.
void await_end(mep_request_t request, mep_comm_t comm, Report& found) {
  const mep::Deadline limit = mep::Deadline::after_ms(60'000);
  while (result_of(request, found) == MEP_IN_PROGRESS && !found.bad()) {
    if (limit.expired()) found.add("a request did not end");
    stir(comm, found);
    pause_us(100);
  }
}

// --- Withdrawn receives -----------------------------------------------------------------------------

// Free, and its buffer is as it was; what comes then is for others.
void cancelled(uint32_t flags) {
  require_on_rank_threads(2, flags, [](int rank, mep_comm_t comm, Report& found) {
    for (const size_t bytes : {size_t{5}, kLargeBytes}) {
      if (rank == 0) {
        COLL_OK(found, mep_barrier(comm, nullptr));
        COLL_OK(found, send_bytes(bytes, 1, 1, 2, comm));
        continue;
      }
      std::vector<Inbox> withdrawn(3, Inbox(kLargeBytes));
      Inbox kept(kLargeBytes);
      mep_request_t requests[3] = {};
      mep_request_t stays = nullptr;
      COLL_OK(found, begin_receive(withdrawn[0], 0, 2, comm, &requests[0]));
      COLL_OK(found, begin_receive(withdrawn[1], MEP_ANY_SOURCE, MEP_ANY_TAG, comm, &requests[1]));
      COLL_OK(found, begin_receive(kept, 0, 2, comm, &stays));
      COLL_OK(found, begin_receive(withdrawn[2], 0, 2, comm, &requests[2]));
      for (mep_request_t& request : requests) {
        COLL_OK(found, cancel_now(&request));
        COLL_CHECK(found, request == nullptr);
      }
      COLL_OK(found, mep_barrier(comm, nullptr));
      COLL_OK(found, finish(&stays));
      kept.came(0, 2, bytes, found);
      kept.check(bytes, 1, found);
      for (const Inbox& each : withdrawn) each.check_untouched(found);
    }
  });
}

// The message has come: the request is as it was, and has it.
void cancelled_too_late(uint32_t flags) {
  Stages stages;
  require_on_rank_threads(2, flags, [&](int rank, mep_comm_t comm, Report& found) {
    if (rank == 0) {
      COLL_OK(found, send_bytes(5, 1, 1, 2, comm));
      COLL_OK(found, send_bytes(kLargeBytes, 2, 1, 3, comm));
      // Only a receive can be withdrawn.
      const Bytes content = message_bytes(kLargeBytes, 3);
      mep_request_t requests[2] = {};
      COLL_OK(found,
              mep_isend(content.data(), kLargeBytes, MEP_UINT8, 1, 4, comm, nullptr, &requests[0]));
      COLL_OK(found, mep_ibarrier(comm, nullptr, &requests[1]));
      for (mep_request_t& request : requests) {
        COLL_EXPECT(found, MEP_ERR_UNSUPPORTED, cancel_now(&request));
        COLL_CHECK(found, request != nullptr);
      }
      stages.reach(0);
      COLL_OK(found, mep_request_waitall(2, requests, MEP_TIMEOUT_DEFAULT, nullptr, nullptr));
      return;
    }
    Inbox inboxes[2] = {Inbox(5), Inbox(kLargeBytes)};
    mep_request_t requests[2] = {};
    for (int i = 0; i < 2; ++i) {
      COLL_OK(found, begin_receive(inboxes[i], 0, 2 + i, comm, &requests[i]));
      await_end(requests[i], comm, found);
      COLL_EXPECT(found, MEP_IN_PROGRESS, cancel_now(&requests[i]));
      COLL_CHECK(found, requests[i] != nullptr);
    }
    stages.await(0, 1, found);
    COLL_OK(found, mep_request_waitall(2, requests, MEP_TIMEOUT_DEFAULT, nullptr, nullptr));
    inboxes[0].check(5, 1, found);
    inboxes[1].check(kLargeBytes, 2, found);
    expect_message(kLargeBytes, 3, 0, 4, comm, found);
    COLL_OK(found, mep_barrier(comm, nullptr));
  });
}

// While it comes: either it was withdrawn in time and the next receive has the message, or it has it itself.
void cancelled_meanwhile(uint32_t flags) {
  require_on_rank_threads(2, flags, [](int rank, mep_comm_t comm, Report& found) {
    RandomStream shared(test_seed());
    RandomStream own(mix(test_seed(), static_cast<uint64_t>(rank)));
    for (uint64_t round = 0; round < slice(150, 5000) && !found.bad(); ++round) {
      const size_t bytes = shared.one_in(3) ? 100'000 : shared.below(300);
      COLL_OK(found, mep_barrier(comm, nullptr));
      pause_us(static_cast<unsigned>(own.below(60)));
      if (rank == 0) {
        COLL_OK(found, send_bytes(bytes, round, 1, 2, comm));
        continue;
      }
      Inbox inbox(bytes);
      mep_request_t request = nullptr;
      COLL_OK(found, begin_receive(inbox, 0, 2, comm, &request));
      if (own.one_in(2)) pause_us(static_cast<unsigned>(own.below(60)));
      if (own.one_in(2)) stir(comm, found);
      const mep_result_t result = cancel_now(&request);
      if (result == MEP_SUCCESS) {
        inbox.check_untouched(found);
        expect_message(bytes, round, 0, 2, comm, found);
        continue;
      }
      COLL_EXPECT(found, MEP_IN_PROGRESS, result);
      COLL_OK(found, finish(&request));
      inbox.check(bytes, round, found);
    }
  });
}

// --- Several requests -------------------------------------------------------------------------------

void wait_for_all(uint32_t flags) {
  require_on_rank_threads(2, flags, [](int rank, mep_comm_t comm, Report& found) {
    mep_comm_t other = nullptr;
    COLL_OK(found, mep_comm_dup(comm, &other));
    if (other == nullptr) return;
    mep_result_t results[6] = {7, 7, 7, 7, 7, 7};
    if (rank == 0) {
      COLL_OK(found, send_bytes(4, 1, 1, 1, comm));
      COLL_OK(found, send_bytes(40, 2, 1, 2, other));
      expect_message(kLargeBytes, 3, 1, 3, other, found);
      expect_message(40, 2, 1, 4, other, found);
      COLL_OK(found, mep_barrier(comm, nullptr));
    } else {
      Inbox whole(4);
      Inbox narrow(39);
      const Bytes content = message_bytes(kLargeBytes, 3);
      mep_request_t requests[6] = {};
      COLL_OK(found, begin_receive(whole, 0, 1, comm, &requests[0]));
      COLL_OK(found, begin_receive(narrow, 0, 2, other, &requests[2]));
      COLL_OK(found, mep_isend(content.data(), content.size(), MEP_UINT8, 0, 3, other, nullptr,
                               &requests[3]));
      COLL_OK(found, send_bytes(40, 2, 0, 4, other));
      COLL_OK(found, mep_ibarrier(comm, nullptr, &requests[5]));
      // The first error in their order, and each one's own result.
      COLL_EXPECT(found, MEP_ERR_CAPACITY,
                  mep_request_waitall(6, requests, MEP_TIMEOUT_DEFAULT, nullptr, results));
      for (const mep_request_t request : requests) COLL_CHECK(found, request == nullptr);
      for (int i = 0; i < 6; ++i) {
        COLL_CHECK(found, results[i] == (i == 2 ? MEP_ERR_CAPACITY : MEP_SUCCESS));
      }
      whole.check(4, 1, found);
      narrow.came(0, 2, 40, found);
      expect_message(40, 2, 0, 2, other, found);
      // Nothing to wait for.
      COLL_OK(found, wait_all_in(6, requests, 0, results));
      COLL_OK(found, mep_request_waitall(0, nullptr, MEP_TIMEOUT_DEFAULT, nullptr, nullptr));
    }
    COLL_OK(found, mep_comm_destroy(other));
  });
}

// Time is over: those that are done are freed, the others go on.
void wait_for_some_of_all(uint32_t flags) {
  Stages stages;
  require_on_rank_threads(2, flags, [&](int rank, mep_comm_t comm, Report& found) {
    if (rank == 0) {
      COLL_OK(found, send_bytes(4, 1, 1, 1, comm));
      stages.await(0, 1, found);
      COLL_OK(found, send_bytes(5, 2, 1, 2, comm));
      return;
    }
    Inbox inboxes[2] = {Inbox(5), Inbox(5)};
    mep_request_t requests[2] = {};
    mep_result_t results[2] = {7, 7};
    COLL_OK(found, begin_receive(inboxes[0], 0, 2, comm, &requests[0]));
    COLL_OK(found, begin_receive(inboxes[1], 0, 1, comm, &requests[1]));
    const mep::Deadline limit = mep::Deadline::after_ms(60'000);
    while (requests[1] != nullptr && !found.bad()) {
      COLL_EXPECT(found, MEP_IN_PROGRESS, wait_all_in(2, requests, 0, results));
      COLL_CHECK(found, requests[0] != nullptr && results[0] == MEP_IN_PROGRESS);
      COLL_CHECK(found, results[1] == (requests[1] == nullptr ? MEP_SUCCESS : MEP_IN_PROGRESS));
      if (limit.expired()) found.add("a message did not come");
    }
    inboxes[1].check(4, 1, found);
    COLL_EXPECT(found, MEP_IN_PROGRESS, wait_all_in(2, requests, 3, results));
    COLL_CHECK(found, results[0] == MEP_IN_PROGRESS && results[1] == MEP_SUCCESS);
    stages.reach(0);
    COLL_OK(found, mep_request_waitall(2, requests, MEP_TIMEOUT_DEFAULT, nullptr, nullptr));
    inboxes[0].check(5, 2, found);
  });
}

void wait_for_any(uint32_t flags) {
  Stages stages;
  require_on_rank_threads(2, flags, [&](int rank, mep_comm_t comm, Report& found) {
    mep_comm_t other = nullptr;
    COLL_OK(found, mep_comm_dup(comm, &other));
    if (other == nullptr) return;
    if (rank == 0) {
      COLL_OK(found, send_bytes(kLargeBytes, 2, 1, 2, other));
      stages.await(0, 1, found);
      COLL_OK(found, send_bytes(5, 1, 1, 1, comm));
      stages.await(1, 1, found);
      COLL_OK(found, send_bytes(9, 3, 1, 3, comm));
    } else {
      Inbox inboxes[3] = {Inbox(5), Inbox(kLargeBytes), Inbox(8)};
      mep_request_t requests[4] = {};
      int32_t index = 77;
      COLL_OK(found, begin_receive(inboxes[0], 0, 1, comm, &requests[0]));
      COLL_OK(found, begin_receive(inboxes[1], 0, 2, other, &requests[2]));
      COLL_OK(found, begin_receive(inboxes[2], 0, 3, comm, &requests[3]));
      mep_op_info_t info;
      mep_op_info_defaults(&info);
      COLL_OK(found, mep_request_waitany(4, requests, MEP_TIMEOUT_DEFAULT, nullptr, &index, &info));
      COLL_CHECK(found, index == 2 && requests[2] == nullptr && info.result == MEP_SUCCESS);
      inboxes[1].check(kLargeBytes, 2, found);
      for (const uint32_t ms : {0u, 3u}) {
        COLL_EXPECT(found, MEP_IN_PROGRESS, wait_any_in(4, requests, ms, &index));
        COLL_CHECK(found, index == -1 && requests[0] != nullptr && requests[3] != nullptr);
      }
      stages.reach(0);
      COLL_OK(found,
              mep_request_waitany(4, requests, MEP_TIMEOUT_DEFAULT, nullptr, &index, nullptr));
      COLL_CHECK(found, index == 0 && requests[0] == nullptr);
      inboxes[0].check(5, 1, found);
      stages.reach(1);
      COLL_EXPECT(found, MEP_ERR_CAPACITY,
                  mep_request_waitany(4, requests, MEP_TIMEOUT_DEFAULT, nullptr, &index, &info));
      COLL_CHECK(found, index == 3 && requests[3] == nullptr && info.result == MEP_ERR_CAPACITY);
      COLL_OK(found,
              mep_request_waitany(4, requests, MEP_TIMEOUT_DEFAULT, nullptr, &index, nullptr));
      COLL_CHECK(found, index == -1);
      expect_message(9, 3, 0, 3, comm, found);
    }
    COLL_OK(found, mep_comm_destroy(other));
  });
}

// Requests whose time is over before that of the wait end by their own timeouts.
void waits_end_by_the_timeouts_of_requests(uint32_t flags) {
  Stages stages;
  require_on_rank_threads(2, flags, [&](int rank, mep_comm_t comm, Report& found) {
    if (rank == 0) return stages.await(0, 1, found);
    Inbox inboxes[3] = {Inbox(5), Inbox(5), Inbox(5)};
    mep_request_t requests[3] = {};
    mep_result_t results[3] = {};
    COLL_OK(found, mep_comm_set_timeout(comm, 100));
    for (int i = 0; i < 3; ++i) {
      COLL_OK(found, begin_receive(inboxes[i], 0, i, comm, &requests[i]));
    }
    int32_t index = -1;
    COLL_EXPECT(found, MEP_ERR_TIMEOUT,
                mep_request_waitany(3, requests, MEP_TIMEOUT_DEFAULT, nullptr, &index, nullptr));
    COLL_CHECK(found, index >= 0 && index < 3);
    COLL_EXPECT(found, MEP_ERR_TIMEOUT,
                mep_request_waitall(3, requests, MEP_TIMEOUT_DEFAULT, nullptr, results));
    for (int i = 0; i < 3; ++i) {
      COLL_CHECK(found, results[i] == (i == index ? MEP_SUCCESS : MEP_ERR_TIMEOUT));
    }
    stages.reach(0);
  });
}

// --- Descriptors, and the comm's end ----------------------------------------------------------------

// A rank that looks only when the descriptor says so gets what comes.
void follow(mep_request_t* request, Report& found) {
  int32_t fd = -1;
  COLL_OK(found, mep_request_event_fd(*request, &fd));
  for (int32_t done = 0; done == 0 && !found.bad();) {
    pollfd event{fd, POLLIN, 0};
    COLL_CHECK(found, poll(&event, 1, 60'000) == 1);
    COLL_OK(found, mep_request_test(request, &done, nullptr));
  }
}

void descriptors(uint32_t flags) {
  for (const size_t bytes : {size_t{0}, size_t{300}, kLargeBytes}) {
    Stages stages;
    require_on_rank_threads(2, flags, [&](int rank, mep_comm_t comm, Report& found) {
      mep_request_t request = nullptr;
      Inbox inbox(bytes);
      const Bytes content = message_bytes(bytes, 4);
      // First a receive waits, then a send.
      for (const int sender : {0, 1}) {
        if (rank == sender) {
          stages.await(sender, 1, found);
          COLL_OK(found, mep_isend(content.data(), bytes, MEP_UINT8, 1 - rank, 1, comm, nullptr,
                                   &request));
        } else {
          COLL_OK(found, begin_receive(inbox, sender, 1, comm, &request));
          stages.reach(sender);
        }
        follow(&request, found);
        if (rank != sender) inbox.check(bytes, 4, found);
      }
    });
  }
}

// A comm stays as long as one of its messages is under way, or has ended and was not asked for.
void comm_with_requests_stays(uint32_t flags) {
  require_on_rank_threads(2, flags, [](int rank, mep_comm_t world, Report& found) {
    for (const bool is_world : {false, true}) {
      mep_comm_t comm = world;
      if (!is_world) COLL_OK(found, mep_comm_dup(world, &comm));
      if (comm == nullptr) return;
      Inbox inbox(5);
      mep_request_t request = nullptr;
      COLL_OK(found, begin_receive(inbox, 1 - rank, 1, comm, &request));
      COLL_EXPECT(found, MEP_ERR_BUSY, mep_comm_destroy(comm));
      COLL_OK(found, cancel_now(&request));
      COLL_OK(found, begin_receive(inbox, 1 - rank, 2, comm, &request));
      COLL_OK(found, send_bytes(5, 1, 1 - rank, 2, comm));
      await_end(request, comm, found);
      COLL_EXPECT(found, MEP_ERR_BUSY, mep_comm_destroy(comm));
      COLL_OK(found, finish(&request));
      inbox.check(5, 1, found);
      if (!is_world) COLL_OK(found, mep_comm_destroy(comm));
    }
  });
}

// --- Served inside other calls ----------------------------------------------------------------------

// Rank 1 has a receive, or a send, under way and is inside a collective until rank 0, which blocks in the other
// half of it, comes there too.
void served_in(mep_result_t (*collective)(mep_comm_t), uint32_t flags) {
  Stages stages;
  require_on_rank_threads(2, flags, [&](int rank, mep_comm_t comm, Report& found) {
    for (const int sender : {0, 1}) {
      if (rank == 0) {
        stages.await(sender, 1, found);
        if (sender == 0) COLL_OK(found, send_bytes(kLargeBytes, 1, 1, 1, comm));
        if (sender == 1) expect_message(kLargeBytes, 2, 1, 1, comm, found);
        COLL_OK(found, collective(comm));
        continue;
      }
      Inbox inbox(kLargeBytes);
      const Bytes content = message_bytes(kLargeBytes, 2);
      mep_request_t request = nullptr;
      if (sender == 0) COLL_OK(found, begin_receive(inbox, 0, 1, comm, &request));
      if (sender == 1) {
        COLL_OK(found,
                mep_isend(content.data(), kLargeBytes, MEP_UINT8, 0, 1, comm, nullptr, &request));
      }
      stages.reach(sender);
      COLL_OK(found, collective(comm));
      COLL_OK(found, finish(&request));
      if (sender == 0) inbox.check(kLargeBytes, 1, found);
    }
  });
}

mep_result_t sum_up(mep_comm_t comm, size_t count) {
  std::vector<int64_t> ones(count, 1);
  std::vector<int64_t> sums(count);
  return mep_allreduce(ones.data(), sums.data(), count, MEP_INT64, MEP_SUM, comm, nullptr);
}

void served_in_collectives(uint32_t flags) {
  served_in([](mep_comm_t comm) { return mep_barrier(comm, nullptr); }, flags);
  served_in([](mep_comm_t comm) { return sum_up(comm, 2); }, flags);
  served_in([](mep_comm_t comm) { return sum_up(comm, 100'000); }, flags);
}

// The other way round: a collective under way is carried on while its rank waits for a message, which its peer
// sends when that has ended.
void collectives_are_served_in_receives(uint32_t flags) {
  for (const size_t count : {size_t{2}, size_t{100'000}}) {
    require_on_rank_threads(2, flags, [&](int rank, mep_comm_t comm, Report& found) {
      std::vector<int64_t> ones(count, 1);
      std::vector<int64_t> sums(count);
      if (rank == 0) {
        mep_request_t request = nullptr;
        COLL_OK(found, mep_iallreduce(ones.data(), sums.data(), count, MEP_INT64, MEP_SUM, comm,
                                      nullptr, &request));
        expect_message(5, 1, 1, 1, comm, found);
        COLL_OK(found, finish(&request));
        COLL_CHECK(found, sums.front() == 2 && sums.back() == 2);
      } else {
        COLL_OK(found, sum_up(comm, count));
        COLL_OK(found, send_bytes(5, 1, 0, 1, comm));
      }
    });
  }
}

// A second thread is refused while one waits for a message, and that one goes on.
void a_second_thread(uint32_t flags) {
  require_on_rank_threads(2, flags, [](int rank, mep_comm_t comm, Report& found) {
    if (rank == 0) {
      COLL_OK(found, mep_probe(1, 9, comm, nullptr));  // until rank 1 was refused
      expect_message(0, 0, 1, 9, comm, found);
      return;
    }
    std::atomic<bool> refused{false};
    std::atomic<bool> over{false};
    COLL_OK(found, mep_comm_set_timeout(comm, 20));
    std::thread second([&] {
      while (!over.load()) {
        int32_t there = 0;
        const mep_result_t result = mep_iprobe(0, 1, comm, &there, nullptr);
        if (result == MEP_ERR_THREAD) refused.store(true);
        if (result != MEP_ERR_THREAD) COLL_OK(found, result);
        pause_us(100);
      }
    });
    const mep::Deadline limit = mep::Deadline::after_ms(60'000);
    while (!refused.load() && !found.bad()) {
      if (limit.expired()) found.add("a second thread was never refused");
      // Its time is over, as nobody sends that, or the other thread was inside.
      const mep_result_t result = mep_recv(nullptr, 0, MEP_INT8, 0, 1, comm, nullptr, nullptr);
      COLL_CHECK(found, result == MEP_ERR_TIMEOUT || result == MEP_ERR_THREAD);
    }
    over.store(true);
    second.join();
    COLL_OK(found, mep_comm_set_timeout(comm, 60'000));
    COLL_OK(found, mep_send(nullptr, 0, MEP_UINT8, 0, 9, comm, nullptr));
  });
}

// --- What calls say about themselves ----------------------------------------------------------------

// Messages have numbers of their own: collectives are counted as if there were none.
void collectives_are_counted_alone(uint32_t flags) {
  require_on_rank_threads(2, flags, [](int rank, mep_comm_t comm, Report& found) {
    mep_op_info_t info;
    mep_op_info_defaults(&info);
    const Bytes content = message_bytes(50, 1);
    for (uint64_t seq = 1; seq < 4; ++seq) {
      Inbox inbox(50);
      COLL_OK(found, mep_sendrecv(content.data(), 50, 1 - rank, 1, inbox.data(), 50, 1 - rank, 1,
                                  MEP_UINT8, comm, nullptr, nullptr));
      inbox.check(50, 1, found);
      const mep_result_t result = mep_comm_last_op(comm, &info);
      COLL_CHECK(found, result == (seq == 1 ? MEP_ERR_NOT_FOUND : MEP_SUCCESS));
      if (seq > 1) COLL_CHECK(found, info.seq == seq - 1);
      mep_request_t request = nullptr;
      COLL_OK(found, begin_receive(inbox, 1 - rank, 2, comm, &request));
      COLL_CHECK(found, result_of(request, found) == MEP_IN_PROGRESS);
      COLL_OK(found, cancel_now(&request));
      COLL_OK(found, mep_barrier(comm, nullptr));
      COLL_OK(found, mep_comm_last_op(comm, &info));
      COLL_CHECK(found, info.seq == seq && info.result == MEP_SUCCESS);
    }
  });
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(both<cancelled>),
      cmocka_unit_test(both<cancelled_too_late>),
      cmocka_unit_test(both<cancelled_meanwhile>),
      cmocka_unit_test(both<wait_for_all>),
      cmocka_unit_test(both<wait_for_some_of_all>),
      cmocka_unit_test(both<wait_for_any>),
      cmocka_unit_test(both<waits_end_by_the_timeouts_of_requests>),
      cmocka_unit_test(both<descriptors>),
      cmocka_unit_test(both<comm_with_requests_stays>),
      cmocka_unit_test(both<served_in_collectives>),
      cmocka_unit_test(both<collectives_are_served_in_receives>),
      cmocka_unit_test(both<a_second_thread>),
      cmocka_unit_test(both<collectives_are_counted_alone>),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

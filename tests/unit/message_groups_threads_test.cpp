// labels: quick threads tsan asan
// Groups of calls, messages on several comms, and arguments that are refused.
#include <cstring>

#include "protocol/types.hpp"
#include "support/message_ranks.hpp"
#include "support/request_waits.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

uint64_t seed_of(int source, int dest, uint64_t round) {
  return mix(mix(static_cast<uint64_t>(source), static_cast<uint64_t>(dest) + 17), round);
}

struct Group {
  explicit Group(Report& report) : found(report) { COLL_OK(found, mep_group_begin()); }
  void end(mep_result_t expected = MEP_SUCCESS) { COLL_EXPECT(found, expected, mep_group_end()); }
  Report& found;
};

// --- Groups -----------------------------------------------------------------------------------------

// Everybody sends to everybody, itself too, all sends first; large ones would wait for each other without a group.
void exchange_of_all(uint32_t flags) {
  for (const int size : {1, 2, 3, 8}) {
    require_on_rank_threads(size, flags, [size](int rank, mep_comm_t comm, Report& found) {
      uint64_t round = 0;
      for (const size_t bytes : {size_t{0}, size_t{200}, kEagerBytes, kLargeBytes / 2}) {
        ++round;
        std::vector<Bytes> contents;
        std::vector<Inbox> inboxes(static_cast<size_t>(size), Inbox(bytes));
        for (int dest = 0; dest < size; ++dest) {
          contents.push_back(message_bytes(bytes, seed_of(rank, dest, round)));
        }
        Group group(found);
        for (int dest = 0; dest < size; ++dest) {
          COLL_OK(found, mep_send(contents[static_cast<size_t>(dest)].data(), bytes, MEP_UINT8,
                                  dest, 1, comm, nullptr));
        }
        for (int source = 0; source < size; ++source) {
          COLL_OK(found, receive(inboxes[static_cast<size_t>(source)], source, 1, comm));
        }
        group.end();
        for (int source = 0; source < size; ++source) {
          const Inbox& inbox = inboxes[static_cast<size_t>(source)];
          inbox.came(source, 1, bytes, found);
          inbox.check(bytes, seed_of(source, rank, round), found);
        }
      }
    });
  }
}

// Collectives on two comms, which the ranks call in different orders, with messages between them. One after the
// other they would wait for each other.
void several_comms(uint32_t flags) {
  constexpr size_t kCount = 30'000;
  require_on_rank_threads(3, flags, [](int rank, mep_comm_t world, Report& found) {
    mep_comm_t other = nullptr;
    COLL_OK(found, mep_comm_split(world, 0, -rank, &other));
    if (other == nullptr) return;
    const std::vector<int64_t> ones(kCount, 1);
    std::vector<int64_t> sums[2] = {std::vector<int64_t>(kCount), std::vector<int64_t>(kCount)};
    const Bytes content = message_bytes(kLargeBytes, static_cast<uint64_t>(rank));
    Inbox inbox(kLargeBytes);
    const int next = (rank + 1) % 3;
    const int previous = (rank + 2) % 3;
    // Numbers on the other comm are the other way round.
    const auto on_other = [](int rank_of_world) { return 2 - rank_of_world; };
    for (int round = 0; round < 3; ++round) {
      Group group(found);
      for (int i = 0; i < 2; ++i) {
        const bool is_world = (i + rank + round) % 2 == 0;
        COLL_OK(found, mep_allreduce(ones.data(), sums[is_world].data(), kCount, MEP_INT64, MEP_SUM,
                                     is_world ? world : other, nullptr));
        if (i == 0) {
          COLL_OK(found, mep_sendrecv(content.data(), kLargeBytes, on_other(next), 3, inbox.data(),
                                      kLargeBytes, on_other(previous), 3, MEP_UINT8, other,
                                      &inbox.message, nullptr));
        }
      }
      COLL_OK(found, mep_barrier(world, nullptr));
      group.end();
      inbox.came(on_other(previous), 3, kLargeBytes, found);
      inbox.check(kLargeBytes, static_cast<uint64_t>(previous), found);
      for (std::vector<int64_t>& each : sums) {
        COLL_CHECK(found, each.front() == 3 && each.back() == 3);
        each.assign(kCount, 0);
      }
    }
    COLL_OK(found, mep_comm_destroy(other));
  });
}

// Ends of inner groups wait for nothing.
void nested(uint32_t flags) {
  Stages stages;
  require_on_rank_threads(2, flags, [&](int rank, mep_comm_t comm, Report& found) {
    if (rank == 1) {
      stages.await(0, 1, found);
      expect_message(kLargeBytes, 1, 0, 1, comm, found);
      expect_message(8, 2, 0, 2, comm, found);
      return;
    }
    const Bytes large = message_bytes(kLargeBytes, 1);
    const Bytes small = message_bytes(8, 2);
    Group outer(found);
    Group inner(found);
    COLL_OK(found, mep_send(large.data(), kLargeBytes, MEP_UINT8, 1, 1, comm, nullptr));
    inner.end();
    stages.reach(0);
    Group second(found);
    COLL_OK(found, mep_send(small.data(), 8, MEP_UINT8, 1, 2, comm, nullptr));
    second.end();
    outer.end();
  });
}

// The first error in the order of the calls is the group's, and all others of it have been done.
void errors_in_a_group(uint32_t flags) {
  require_on_rank_threads(2, flags, [](int rank, mep_comm_t comm, Report& found) {
    const int peer = 1 - rank;
    const auto own = static_cast<uint64_t>(rank);
    const Bytes content = message_bytes(kLargeBytes, own);
    const int32_t word = 5;
    Inbox narrow(kLargeBytes - 1);
    Inbox other_type(4);
    Inbox right(kLargeBytes);
    int64_t sum = 0;
    const int64_t one = 1;
    Group group(found);
    COLL_OK(found, mep_send(&word, 1, MEP_INT32, peer, 1, comm, nullptr));
    COLL_OK(found, mep_send(content.data(), kLargeBytes, MEP_UINT8, peer, 2, comm, nullptr));
    COLL_OK(found, receive(narrow, peer, 2, comm));
    COLL_OK(found, receive(other_type, peer, 1, comm));
    COLL_OK(found, receive(right, peer, 2, comm));
    COLL_OK(found, mep_allreduce(&one, &sum, 1, MEP_INT64, MEP_SUM, comm, nullptr));
    group.end(MEP_ERR_CAPACITY);
    narrow.came(peer, 2, kLargeBytes, found);
    other_type.came(peer, 1, 4, found, MEP_INT32);
    right.check(kLargeBytes, 1 - own, found);
    COLL_CHECK(found, sum == 2);
    int32_t got = 0;
    COLL_OK(found, mep_recv(&got, 1, MEP_INT32, peer, 1, comm, nullptr, nullptr));
    COLL_CHECK(found, got == 5);
    // The next group knows nothing of that.
    Group empty(found);
    empty.end();
  });
}

// Each call of a group has its own time.
void timeouts_in_a_group(uint32_t flags) {
  require_on_rank_threads(2, flags, [](int rank, mep_comm_t comm, Report& found) {
    if (rank == 0) {
      COLL_OK(found, mep_comm_set_timeout(comm, 150));
      Inbox none(8);
      const Bytes content = message_bytes(8, 1);
      Group group(found);
      COLL_OK(found, receive(none, 1, 9, comm));
      COLL_OK(found, mep_send(content.data(), 8, MEP_UINT8, 1, 1, comm, nullptr));
      group.end(MEP_ERR_TIMEOUT);
      none.check_untouched(found);
      COLL_OK(found, mep_comm_set_timeout(comm, 60'000));
    } else {
      expect_message(8, 1, 0, 1, comm, found);
    }
    expect_sum_of_ranks(comm, sum_of_all(2), found);
  });
}

void groups_without_beginning(void**) {
  assert_int_equal(mep_group_end(), MEP_ERR_INVALID_ARGUMENT);
  assert_int_equal(mep_group_begin(), MEP_SUCCESS);
  assert_int_equal(mep_group_begin(), MEP_SUCCESS);
  assert_int_equal(mep_group_end(), MEP_SUCCESS);
  assert_int_equal(mep_group_end(), MEP_SUCCESS);
  assert_int_equal(mep_group_end(), MEP_ERR_INVALID_ARGUMENT);
  // A group is of the thread that began it.
  assert_int_equal(mep_group_begin(), MEP_SUCCESS);
  mep_result_t of_other = MEP_SUCCESS;
  std::thread([&] { of_other = mep_group_end(); }).join();
  assert_int_equal(of_other, MEP_ERR_INVALID_ARGUMENT);
  assert_int_equal(mep_group_end(), MEP_SUCCESS);
}

// --- Several comms ----------------------------------------------------------------------------------

// The same tag between the same processes on four comms: each message is received on its own, whichever is asked
// for first, and its source is a number of that comm.
void comms_do_not_mix(uint32_t flags) {
  require_on_rank_threads(3, flags, [](int rank, mep_comm_t world, Report& found) {
    mep_comm_t comms[4] = {world, nullptr, nullptr, nullptr};
    COLL_OK(found, mep_comm_split(world, 0, -rank, &comms[1]));
    COLL_OK(found, mep_comm_split(world, rank == 1 ? 1 : 0, 0, &comms[2]));
    COLL_OK(found, mep_comm_dup(world, &comms[3]));
    if (found.bad()) return;
    if (rank != 1) {
      const int peers[2][4] = {{2, 0, 1, 2}, {0, 2, 0, 0}};
      const int* const peer = peers[rank / 2];
      for (const size_t bytes : {size_t{30}, kLargeBytes / 4}) {
        Sent sent;
        for (size_t i = 0; i < 4; ++i) {
          sent.start(bytes, 10 * i + static_cast<uint64_t>(rank), peer[i], 6, comms[i], found);
        }
        for (const size_t i : {size_t{2}, size_t{3}, size_t{0}, size_t{1}}) {
          expect_message(bytes, 10 * i + static_cast<uint64_t>(2 - rank), peer[i], 6, comms[i],
                         found);
        }
        sent.finish_all(found);
      }
    }
    for (const int i : {3, 1, 2}) COLL_OK(found, mep_comm_destroy(comms[i]));
  });
}

void duplicates(uint32_t flags) {
  require_on_rank_threads(3, flags, [](int rank, mep_comm_t world, Report& found) {
    mep_comm_t reversed = nullptr;
    mep_comm_t made[2] = {};
    COLL_OK(found, mep_comm_split(world, 0, -rank, &reversed));
    if (reversed == nullptr) return;
    COLL_OK(found, mep_comm_dup(reversed, &made[0]));
    if (made[0] == nullptr) return;
    COLL_OK(found, mep_comm_dup(made[0], &made[1]));
    COLL_OK(found, mep_comm_destroy(made[0]));
    if (made[1] == nullptr) return;
    int32_t own = -1;
    int32_t size = -1;
    COLL_OK(found, mep_comm_rank(made[1], &own));
    COLL_OK(found, mep_comm_size(made[1], &size));
    COLL_CHECK(found, own == 2 - rank && size == 3);
    expect_sum_of_ranks(made[1], sum_of_all(3), found);
    expect_sum_of_ranks(reversed, sum_of_all(3), found);
    Sent sent;
    sent.start(kLargeBytes, static_cast<uint64_t>(own), (own + 1) % 3, 1, made[1], found);
    expect_message(kLargeBytes, static_cast<uint64_t>((own + 2) % 3), (own + 2) % 3, 1, made[1],
                   found);
    sent.finish_all(found);
    COLL_OK(found, mep_comm_destroy(made[1]));
    COLL_OK(found, mep_comm_destroy(reversed));
    COLL_EXPECT(found, MEP_ERR_INVALID_ARGUMENT, mep_comm_dup(world, nullptr));
    COLL_EXPECT(found, MEP_ERR_INVALID_ARGUMENT, mep_comm_dup(nullptr, &reversed));
  });
}

// A group whose comm another thread is inside of is not lost: it is ended again.
void ended_while_in_use(uint32_t flags) {
  Stages stages;
  require_on_rank_threads(2, flags, [&](int rank, mep_comm_t comm, Report& found) {
    if (rank == 1) {
      stages.await(0, 1, found);
      COLL_OK(found, send_bytes(9, 2, 0, 2, comm));
      COLL_OK(found, send_bytes(7, 1, 0, 1, comm));
      return;
    }
    Inbox inbox(7);
    COLL_OK(found, mep_group_begin());
    COLL_OK(found, receive(inbox, 1, 1, comm));
    std::thread second([&] {
      Inbox other(9);
      mep_result_t result = MEP_ERR_THREAD;  // while the loop below looks
      while (result == MEP_ERR_THREAD && !found.bad()) result = receive(other, 1, 2, comm);
      COLL_OK(found, result);
      other.check(9, 2, found);
    });
    const mep::Deadline limit = mep::Deadline::after_ms(60'000);
    int32_t there = 0;
    while (mep_iprobe(1, 3, comm, &there, nullptr) != MEP_ERR_THREAD && !found.bad()) {
      if (limit.expired()) found.add("the second thread was never inside");
      pause_us(100);
    }
    COLL_EXPECT(found, MEP_ERR_THREAD, mep_group_end());
    stages.reach(0);
    second.join();
    COLL_OK(found, mep_group_end());
    inbox.check(7, 1, found);
    COLL_EXPECT(found, MEP_ERR_INVALID_ARGUMENT, mep_group_end());
  });
}

// A send has ended, so the message is its receiver's, whatever the sender does with the comm then.
void sent_before_a_comm_is_destroyed(uint32_t flags) {
  Stages stages;
  require_on_rank_threads(2, flags, [&](int rank, mep_comm_t world, Report& found) {
    mep_comm_t comm = nullptr;
    COLL_OK(found, mep_comm_dup(world, &comm));
    if (comm == nullptr) return;
    if (rank == 0) {
      for (uint64_t i = 0; i < 5; ++i) COLL_OK(found, send_bytes(100, i, 1, 1, comm));
    } else {
      stages.await(0, 1, found);
      for (uint64_t i = 0; i < 5; ++i) expect_message(100, i, 0, 1, comm, found);
    }
    if (rank == 0) stages.reach(0);
    COLL_OK(found, mep_comm_destroy(comm));
  });
}

// --- Arguments --------------------------------------------------------------------------------------

#define REFUSED(call) COLL_EXPECT(found, MEP_ERR_INVALID_ARGUMENT, call)

void refused_calls(mep_comm_t comm, Report& found) {
  uint8_t byte = 0;
  int on_no_stream = 0;
  mep_message_t unsized{};
  mep_request_t request = nullptr;
  const size_t too_many = SIZE_MAX / 2;
  for (const int dest : {-2, -1, 2, 1000}) {
    REFUSED(mep_send(&byte, 1, MEP_UINT8, dest, 0, comm, nullptr));
    REFUSED(mep_isend(&byte, 1, MEP_UINT8, dest, 0, comm, nullptr, &request));
    REFUSED(mep_sendrecv(&byte, 0, dest, 0, &byte, 0, 0, 0, MEP_UINT8, comm, nullptr, nullptr));
  }
  for (const int source : {-2, 2, 1000}) {
    REFUSED(mep_recv(&byte, 1, MEP_UINT8, source, 0, comm, nullptr, nullptr));
    REFUSED(mep_irecv(&byte, 1, MEP_UINT8, source, 0, comm, nullptr, nullptr, &request));
    REFUSED(mep_sendrecv(&byte, 0, 0, 0, &byte, 0, source, 0, MEP_UINT8, comm, nullptr, nullptr));
    REFUSED(mep_probe(source, 0, comm, nullptr));
  }
  for (const int tag : {-2, -1, INT32_MIN}) {
    REFUSED(mep_send(&byte, 1, MEP_UINT8, 0, tag, comm, nullptr));
    if (tag != MEP_ANY_TAG) REFUSED(mep_recv(&byte, 1, MEP_UINT8, 0, tag, comm, nullptr, nullptr));
  }
  for (const mep_dtype_t dtype : {mep_dtype_t{0}, mep::kTypeSlots, mep_dtype_t{~0u}}) {
    REFUSED(mep_send(&byte, 1, dtype, 0, 0, comm, nullptr));
    REFUSED(mep_recv(&byte, 1, dtype, 0, 0, comm, nullptr, nullptr));
  }
  REFUSED(mep_send(nullptr, 1, MEP_UINT8, 0, 0, comm, nullptr));
  REFUSED(mep_recv(nullptr, 1, MEP_UINT8, 0, 0, comm, nullptr, nullptr));
  void* const mark = MEP_IN_PLACE;  // NOLINT(performance-no-int-to-ptr): the header's, for C
  REFUSED(mep_isend(mark, 1, MEP_UINT8, 0, 0, comm, nullptr, &request));
  REFUSED(mep_irecv(mark, 1, MEP_UINT8, 0, 0, comm, nullptr, nullptr, &request));
  REFUSED(mep_send(mark, 0, MEP_UINT8, 0, 0, comm, nullptr));
  REFUSED(mep_recv(mark, 1, MEP_UINT8, 0, 0, comm, nullptr, nullptr));
  for (const bool is_send : {true, false}) {
    REFUSED(mep_sendrecv(is_send ? mark : &byte, 1, 0, 0, is_send ? &byte : mark, 1, 0, 0,
                         MEP_UINT8, comm, nullptr, nullptr));
    COLL_CHECK(found, std::strstr(mep_last_error(), is_send ? "of a send is MEP_IN_PLACE"
                                                            : "of a receive is MEP_IN_PLACE"));
  }
  REFUSED(mep_send(&byte, too_many, MEP_INT64, 0, 0, comm, nullptr));
  COLL_EXPECT(found, MEP_ERR_UNSUPPORTED, mep_send(&byte, 1, MEP_UINT8, 0, 0, comm, &on_no_stream));
  COLL_EXPECT(found, MEP_ERR_UNSUPPORTED,
              mep_recv(&byte, 1, MEP_UINT8, 0, 0, comm, nullptr, &on_no_stream));
  REFUSED(mep_recv(&byte, 1, MEP_UINT8, 0, 0, comm, &unsized, nullptr));
  REFUSED(mep_send(&byte, 1, MEP_UINT8, 0, 0, nullptr, nullptr));
  REFUSED(mep_recv(&byte, 1, MEP_UINT8, 0, 0, nullptr, nullptr, nullptr));
  REFUSED(mep_isend(&byte, 1, MEP_UINT8, 0, 0, comm, nullptr, nullptr));
  REFUSED(mep_irecv(&byte, 1, MEP_UINT8, 0, 0, comm, nullptr, nullptr, nullptr));
  REFUSED(mep_iprobe(0, 0, comm, nullptr, nullptr));
  REFUSED(mep_probe(0, 0, nullptr, nullptr));
  COLL_CHECK(found, request == nullptr);
}

void refused_waits(Report& found) {
  mep_request_t none = nullptr;
  int32_t index = 0;
  REFUSED(cancel_now(nullptr));
  REFUSED(cancel_now(&none));
  REFUSED(wait_all_in(-1, &none, 0));
  REFUSED(wait_all_in(1, nullptr, 0));
  REFUSED(wait_any_in(-1, &none, 0, &index));
  REFUSED(wait_any_in(1, nullptr, 0, &index));
  REFUSED(wait_any_in(1, &none, 0, nullptr));
}

// They change nothing: no message has come of them, and none was taken.
void refused_arguments(void**) {
  require_on_rank_threads(2, 0, [](int rank, mep_comm_t comm, Report& found) {
    refused_calls(comm, found);
    refused_waits(found);
    {
      Group group(found);
      REFUSED(mep_send(nullptr, 1, MEP_UINT8, 0, 0, comm, nullptr));
      group.end();
    }
    int32_t there = 1;
    COLL_OK(found, mep_iprobe(MEP_ANY_SOURCE, MEP_ANY_TAG, comm, &there, nullptr));
    COLL_CHECK(found, there == 0);
    COLL_OK(found, mep_barrier(comm, nullptr));
    // The largest tag is one like others.
    const auto own = static_cast<uint64_t>(rank);
    COLL_OK(found, send_bytes(9, own, 1 - rank, INT32_MAX, comm));
    expect_message(9, 1 - own, 1 - rank, INT32_MAX, comm, found);
  });
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(both<exchange_of_all>),
      cmocka_unit_test(both<several_comms>),
      cmocka_unit_test(both<nested>),
      cmocka_unit_test(both<errors_in_a_group>),
      cmocka_unit_test(both<timeouts_in_a_group>),
      cmocka_unit_test(groups_without_beginning),
      cmocka_unit_test(both<comms_do_not_mix>),
      cmocka_unit_test(both<duplicates>),
      cmocka_unit_test(both<sent_before_a_comm_is_destroyed>),
      cmocka_unit_test(both<ended_while_in_use>),
      cmocka_unit_test(refused_arguments),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

// labels: quick threads tsan asan
// One message, and which one a receive takes: order, tags, sources, sizes, probes, what does not fit, and timeouts,
// which concern one rank alone.
#include "support/message_ranks.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

// On both sides of each size from which a message may go in another way.
constexpr size_t kSizes[] = {0,      1,          kEagerBytes - 1, kEagerBytes, kEagerBytes + 1,
                             65'536, kLargeBytes};
constexpr uint32_t kShortMs = 150;

// The i-th size of a stream in which small and large ones follow each other.
size_t mixed_size(size_t i) {
  constexpr size_t kMixed[] = {10, kEagerBytes + 1, 0, 40'000, kEagerBytes, 3, 3, 200'001};
  return kMixed[i % std::size(kMixed)];
}

// --- Sizes ----------------------------------------------------------------------------------------

// The receive is called before the message comes, or when it has long been sent; with room to spare or without.
void send_in_turn(int rank, int sender, mep_comm_t comm, size_t bytes, int turn, Report& found) {
  const uint64_t seed = mix(bytes, static_cast<uint64_t>(turn) * 2 + static_cast<uint64_t>(sender));
  const bool receives_first = turn % 2 == 0;
  mep_request_t request = nullptr;
  if (rank == sender) {
    const Bytes content = message_bytes(bytes, seed);
    if (receives_first) COLL_OK(found, mep_barrier(comm, nullptr));
    COLL_OK(found,
            mep_isend(content.data(), bytes, MEP_UINT8, 1 - sender, turn, comm, nullptr, &request));
    if (!receives_first) COLL_OK(found, mep_barrier(comm, nullptr));
    COLL_OK(found, finish(&request));
    return;
  }
  Inbox inbox(bytes + (turn < 2 ? 0 : 1000));
  if (!receives_first) COLL_OK(found, mep_barrier(comm, nullptr));
  COLL_OK(found, begin_receive(inbox, sender, turn, comm, &request));
  if (receives_first) COLL_OK(found, mep_barrier(comm, nullptr));
  COLL_OK(found, finish(&request));
  inbox.came(sender, turn, bytes, found);
  inbox.check(bytes, seed, found);
}

void sizes(uint32_t flags) {
  require_on_rank_threads(2, flags, [](int rank, mep_comm_t comm, Report& found) {
    for (const size_t bytes : kSizes) {
      for (int turn = 0; turn < 4 && !found.bad(); ++turn) {
        send_in_turn(rank, turn / 2, comm, bytes, turn, found);
        send_in_turn(rank, 1 - turn / 2, comm, bytes, turn, found);
      }
    }
  });
}

// Up to the eager size a blocking send ends though its receiver makes no call at all.
void eager_sends_need_no_receiver(uint32_t flags) {
  for (const size_t bytes : kSizes) {
    if (bytes > kEagerBytes) continue;
    Stages stages;
    require_on_rank_threads(2, flags, [&](int rank, mep_comm_t comm, Report& found) {
      if (rank == 0) {
        COLL_OK(found, send_bytes(bytes, bytes + 1, 1, 0, comm));
        stages.reach(0);
      } else {
        stages.await(0, 1, found);
        expect_message(bytes, bytes + 1, 0, 0, comm, found);
      }
    });
  }
}

// Every type, in elements.
void types(void**) {
  require_on_rank_threads(2, 0, [](int rank, mep_comm_t comm, Report& found) {
    for (const mep_dtype_t dtype : kAllTypes) {
      for (const size_t count : {size_t{0}, size_t{7}, size_t{5000}}) {
        const size_t bytes = count * element_bytes(dtype);
        const Bytes content = message_bytes(bytes, dtype);
        if (rank == 0) {
          COLL_OK(found, mep_send(content.data(), count, dtype, 1, 4, comm, nullptr));
          continue;
        }
        Inbox inbox(bytes);
        COLL_OK(found, mep_recv(inbox.data(), count, dtype, 0, 4, comm, &inbox.message, nullptr));
        inbox.came(0, 4, bytes, found, dtype);
        inbox.check(bytes, dtype, found);
      }
    }
  });
}

// A buffer may be NULL where there is nothing in it.
void nothing_but_a_tag(uint32_t flags) {
  require_on_rank_threads(2, flags, [](int rank, mep_comm_t comm, Report& found) {
    if (rank == 0) {
      for (int tag = 0; tag < 3; ++tag) {
        COLL_OK(found, mep_send(nullptr, 0, MEP_INT32, 1, tag, comm, nullptr));
      }
      return;
    }
    COLL_OK(found, mep_recv(nullptr, 0, MEP_INT32, 0, 0, comm, nullptr, nullptr));
    Inbox inbox(12);
    COLL_OK(found, mep_recv(inbox.data(), 3, MEP_INT32, 0, 1, comm, &inbox.message, nullptr));
    inbox.came(0, 1, 0, found, MEP_INT32);
    inbox.check_untouched(found);
    COLL_OK(found, mep_recv(nullptr, 0, MEP_INT32, MEP_ANY_SOURCE, MEP_ANY_TAG, comm,
                            &inbox.message, nullptr));
    inbox.came(0, 2, 0, found, MEP_INT32);
  });
}

// --- Order ----------------------------------------------------------------------------------------

constexpr size_t kStream = 48;

// Small ones behind large ones do not come first.
void order_of_one_tag(uint32_t flags) {
  require_on_rank_threads(2, flags, [](int rank, mep_comm_t comm, Report& found) {
    if (rank == 0) {
      Sent sent;
      for (size_t i = 0; i < kStream; ++i) sent.start(mixed_size(i), i, 1, 9, comm, found);
      return sent.finish_all(found);
    }
    for (size_t i = 0; i < kStream; ++i) expect_message(mixed_size(i), i, 0, 9, comm, found);
  });
}

// Each tag is a stream of its own, whichever is asked for first; any tag means all of them together.
void order_of_several_tags(uint32_t flags) {
  require_on_rank_threads(2, flags, [](int rank, mep_comm_t comm, Report& found) {
    const auto tag_of = [](size_t i) { return static_cast<int>(i % 5 % 3); };
    if (rank == 0) {
      Sent sent;
      for (size_t i = 0; i < 2 * kStream; ++i) {
        sent.start(mixed_size(i), i, 1, tag_of(i), comm, found);
      }
      return sent.finish_all(found);
    }
    for (const int tag : {2, 0, 1}) {
      for (size_t i = 0; i < kStream; ++i) {
        if (tag_of(i) == tag) expect_message(mixed_size(i), i, 0, tag, comm, found);
      }
    }
    for (size_t i = kStream; i < 2 * kStream && !found.bad(); ++i) {
      Inbox inbox(300'000);
      COLL_OK(found, receive(inbox, 0, MEP_ANY_TAG, comm));
      inbox.came(0, tag_of(i), mixed_size(i), found);
      inbox.check(mixed_size(i), i, found);
    }
  });
}

// Receives that wait are served in the order in which they were called.
void order_of_waiting_receives(uint32_t flags) {
  require_on_rank_threads(2, flags, [](int rank, mep_comm_t comm, Report& found) {
    if (rank == 0) {
      COLL_OK(found, mep_barrier(comm, nullptr));
      Sent sent;
      for (size_t i = 0; i < kStream; ++i) sent.start(mixed_size(i), i, 1, 3, comm, found);
      return sent.finish_all(found);
    }
    std::vector<Inbox> inboxes(kStream, Inbox(300'000));
    std::vector<mep_request_t> requests(kStream, nullptr);
    for (size_t i = 0; i < kStream; ++i) {
      const int source = i % 4 == 1 ? MEP_ANY_SOURCE : 0;
      const int tag = i % 4 == 2 ? MEP_ANY_TAG : 3;
      COLL_OK(found, begin_receive(inboxes[i], source, tag, comm, &requests[i]));
    }
    COLL_OK(found, mep_barrier(comm, nullptr));
    COLL_OK(found,
            mep_request_waitall(kStream, requests.data(), MEP_TIMEOUT_DEFAULT, nullptr, nullptr));
    for (size_t i = 0; i < kStream; ++i) {
      inboxes[i].came(0, 3, mixed_size(i), found);
      inboxes[i].check(mixed_size(i), i, found);
    }
  });
}

// From anybody: those of each sender in their order, and no others than those with the tag.
void any_source(uint32_t flags) {
  constexpr int kSize = 4;
  constexpr size_t kEach = 24;
  require_on_rank_threads(kSize, flags, [](int rank, mep_comm_t comm, Report& found) {
    const auto seed_of = [](int source, size_t i) { return mix(static_cast<uint64_t>(source), i); };
    if (rank != 0) {
      Sent sent;
      sent.start(12, 1, 0, 50, comm, found);
      for (size_t i = 0; i < kEach; ++i) {
        sent.start(mixed_size(i), seed_of(rank, i), 0, 51, comm, found);
      }
      return sent.finish_all(found);
    }
    size_t next[kSize] = {};
    for (size_t i = 0; i < kEach * (kSize - 1) && !found.bad(); ++i) {
      Inbox inbox(300'000);
      COLL_OK(found, receive(inbox, MEP_ANY_SOURCE, 51, comm));
      const int source = inbox.message.source;
      COLL_CHECK(found, source > 0 && source < kSize);
      if (found.bad()) return;
      const size_t number = next[source]++;
      inbox.came(source, 51, mixed_size(number), found);
      inbox.check(mixed_size(number), seed_of(source, number), found);
    }
    for (int source = 1; source < kSize; ++source) expect_message(12, 1, source, 50, comm, found);
  });
}

// Thousands that nobody waits for: some are put, and the rest wait with their sender.
void many_small_ones_unexpected(uint32_t flags) {
  constexpr int kSize = 3;
  constexpr size_t kEach = 3000;
  Stages stages;
  require_on_rank_threads(kSize, flags, [&](int rank, mep_comm_t comm, Report& found) {
    const auto bytes_of = [](size_t i) { return i * 7 % 97; };
    if (rank != 0) {
      Sent sent;
      for (size_t i = 0; i < kEach && !found.bad(); ++i) {
        sent.start(bytes_of(i), i * kSize + static_cast<size_t>(rank), 0, 1, comm, found);
      }
      stages.reach(0);
      return sent.finish_all(found);
    }
    stages.await(0, kSize - 1, found);
    for (size_t i = 0; i < kEach && !found.bad(); ++i) {
      for (const int source : {1, 2}) {
        expect_message(bytes_of(i), i * kSize + static_cast<size_t>(source), source, 1, comm,
                       found);
      }
    }
  });
}

void large_ones_unexpected(uint32_t flags) {
  Stages stages;
  require_on_rank_threads(3, flags, [&](int rank, mep_comm_t comm, Report& found) {
    if (rank != 0) {
      Sent sent;
      for (uint64_t i = 0; i < 6; ++i) {
        sent.start(kLargeBytes / 4 + i, 10 * i + static_cast<uint64_t>(rank), 0, 1, comm, found);
      }
      stages.reach(0);
      return sent.finish_all(found);
    }
    stages.await(0, 2, found);
    for (const int source : {2, 1}) {
      for (uint64_t i = 0; i < 6; ++i) {
        expect_message(kLargeBytes / 4 + i, 10 * i + static_cast<uint64_t>(source), source, 1, comm,
                       found);
      }
    }
  });
}

// --- To itself, both ways, round --------------------------------------------------------------------

void to_itself(uint32_t flags) {
  for (const int size : {1, 2}) {
    require_on_rank_threads(size, flags, [](int rank, mep_comm_t comm, Report& found) {
      const auto own = static_cast<uint64_t>(rank);
      for (const size_t bytes : kSizes) {
        // Sent first, then received; then the other way round.
        Sent sent;
        sent.start(bytes, own, rank, 1, comm, found);
        expect_message(bytes, own, rank, 1, comm, found);
        sent.finish_all(found);
        Inbox inbox(bytes + 5);
        mep_request_t request = nullptr;
        COLL_OK(found, begin_receive(inbox, MEP_ANY_SOURCE, MEP_ANY_TAG, comm, &request));
        COLL_OK(found, send_bytes(bytes, own + 1, rank, 2, comm));
        COLL_OK(found, finish(&request));
        inbox.came(rank, 2, bytes, found);
        inbox.check(bytes, own + 1, found);
      }
      // A small one needs no receiver here either.
      COLL_OK(found, send_bytes(kEagerBytes, own, rank, 3, comm));
      expect_message(kEagerBytes, own, rank, 3, comm, found);
      // A receive from anybody may end when all others have left.
      COLL_OK(found, mep_barrier(comm, nullptr));
    });
  }
}

// Large ones, several at one time, in both directions.
void both_ways(uint32_t flags) {
  require_on_rank_threads(2, flags, [](int rank, mep_comm_t comm, Report& found) {
    const auto own = static_cast<uint64_t>(rank);
    for (uint64_t round = 0; round < 3; ++round) {
      Sent sent;
      std::vector<Inbox> inboxes(3, Inbox(kLargeBytes));
      std::vector<mep_request_t> requests(3, nullptr);
      for (uint64_t i = 0; i < 3; ++i) {
        // One rank calls its receives before its sends, the other behind.
        const auto begin = [&] {
          COLL_OK(found, begin_receive(inboxes[i], 1 - rank, 0, comm, &requests[i]));
        };
        if (rank == 0) begin();
        sent.start(kLargeBytes - i, 100 * round + 10 * i + own, 1 - rank, 0, comm, found);
        if (rank == 1) begin();
      }
      COLL_OK(found,
              mep_request_waitall(3, requests.data(), MEP_TIMEOUT_DEFAULT, nullptr, nullptr));
      sent.finish_all(found);
      for (uint64_t i = 0; i < 3; ++i) {
        inboxes[i].check(kLargeBytes - i, 100 * round + 10 * i + (1 - own), found);
      }
    }
  });
}

void ring(uint32_t flags) {
  for (const int size : {1, 2, 3, 8}) {
    require_on_rank_threads(size, flags, [size](int rank, mep_comm_t comm, Report& found) {
      const int next = (rank + 1) % size;
      const int previous = (rank + size - 1) % size;
      for (const size_t bytes : kSizes) {
        const Bytes content = message_bytes(bytes, static_cast<uint64_t>(rank));
        Inbox inbox(bytes + 1);
        COLL_OK(found, mep_sendrecv(content.data(), bytes, next, rank, inbox.data(), inbox.room(),
                                    previous, previous, MEP_UINT8, comm, &inbox.message, nullptr));
        inbox.came(previous, previous, bytes, found);
        inbox.check(bytes, static_cast<uint64_t>(previous), found);
      }
    });
  }
}

// --- Probes -----------------------------------------------------------------------------------------

bool is_there(int source, int tag, mep_comm_t comm, mep_message_t* message, Report& found) {
  int32_t there = 7;
  COLL_OK(found, mep_iprobe(source, tag, comm, &there, message));
  COLL_CHECK(found, there == 0 || there == 1);
  return there == 1;
}

void probes(uint32_t flags) {
  for (const size_t bytes : kSizes) {
    Stages stages;
    require_on_rank_threads(2, flags, [&](int rank, mep_comm_t comm, Report& found) {
      if (rank == 0) {
        stages.await(0, 1, found);
        COLL_OK(found, send_bytes(bytes, 1, 1, 7, comm));
        COLL_OK(found, send_bytes(3, 2, 1, 8, comm));
        // Nothing can come any more from a rank that has left, which is an error.
        return stages.await(1, 1, found);
      }
      Inbox inbox(bytes);
      COLL_CHECK(found, !is_there(MEP_ANY_SOURCE, MEP_ANY_TAG, comm, nullptr, found));
      stages.reach(0);
      // It waits, and what it has found stays.
      COLL_OK(found, mep_probe(MEP_ANY_SOURCE, MEP_ANY_TAG, comm, &inbox.message));
      inbox.came(0, 7, bytes, found);
      mep_message_defaults(&inbox.message);
      COLL_OK(found, mep_probe(0, 7, comm, &inbox.message));
      inbox.came(0, 7, bytes, found);
      mep_message_defaults(&inbox.message);
      COLL_CHECK(found, is_there(0, MEP_ANY_TAG, comm, &inbox.message, found));
      inbox.came(0, 7, bytes, found);
      COLL_CHECK(found, is_there(MEP_ANY_SOURCE, 7, comm, nullptr, found));
      COLL_CHECK(found, !is_there(0, 6, comm, nullptr, found));
      COLL_CHECK(found, !is_there(1, 7, comm, nullptr, found));
      COLL_OK(found, receive(inbox, 0, 7, comm));
      inbox.came(0, 7, bytes, found);
      inbox.check(bytes, 1, found);
      COLL_CHECK(found, !is_there(0, 7, comm, nullptr, found));
      COLL_OK(found, mep_probe(0, 8, comm, nullptr));
      expect_message(3, 2, 0, 8, comm, found);
      COLL_CHECK(found, !is_there(MEP_ANY_SOURCE, MEP_ANY_TAG, comm, nullptr, found));
      stages.reach(1);
    });
  }
}

// A rank that only looks finds it too.
void looking_alone_finds_it(uint32_t flags) {
  for (const size_t bytes : {size_t{5}, kLargeBytes}) {
    require_on_rank_threads(2, flags, [&](int rank, mep_comm_t comm, Report& found) {
      if (rank == 0) {
        COLL_OK(found, send_bytes(bytes, 1, 1, 7, comm));
        return;
      }
      const mep::Deadline limit = mep::Deadline::after_ms(60'000);
      while (!is_there(0, 7, comm, nullptr, found) && !found.bad()) {
        if (limit.expired()) found.add("a message of %zu bytes was never found", bytes);
        pause_us(100);
      }
      expect_message(bytes, 1, 0, 7, comm, found);
    });
  }
}

// --- What does not fit ------------------------------------------------------------------------------

// The message stays, in its place before those behind it, and the next receive that has room gets it.
void too_small_a_buffer(uint32_t flags) {
  require_on_rank_threads(2, flags, [](int rank, mep_comm_t comm, Report& found) {
    for (const size_t bytes : kSizes) {
      if (bytes == 0) continue;
      if (rank == 0) {
        Sent sent;
        sent.start(bytes, 1, 1, 2, comm, found);
        sent.start(4, 2, 1, 2, comm, found);
        COLL_OK(found, mep_barrier(comm, nullptr));
        sent.start(bytes, 3, 1, 2, comm, found);
        sent.finish_all(found);
        continue;
      }
      for (const size_t room : {bytes - 1, size_t{0}}) {
        Inbox inbox(room);
        COLL_EXPECT(found, MEP_ERR_CAPACITY, receive(inbox, 0, 2, comm));
        inbox.came(0, 2, bytes, found);
        inbox.check_guard(found);
        COLL_EXPECT(found, MEP_ERR_CAPACITY, receive(inbox, MEP_ANY_SOURCE, MEP_ANY_TAG, comm));
      }
      expect_message(bytes, 1, 0, 2, comm, found);
      expect_message(4, 2, 0, 2, comm, found);
      // One that waits when the message comes ends so too, and the next one that waits has it.
      Inbox narrow(bytes - 1);
      Inbox wide(bytes);
      mep_request_t requests[2] = {};
      COLL_OK(found, begin_receive(narrow, 0, 2, comm, &requests[0]));
      COLL_OK(found, begin_receive(wide, 0, 2, comm, &requests[1]));
      COLL_OK(found, mep_barrier(comm, nullptr));
      COLL_OK(found, finish(&requests[1]));
      COLL_EXPECT(found, MEP_ERR_CAPACITY, finish(&requests[0]));
      narrow.came(0, 2, bytes, found);
      narrow.check_guard(found);
      wide.came(0, 2, bytes, found);
      wide.check(bytes, 3, found);
    }
  });
}

void another_type(uint32_t flags) {
  require_on_rank_threads(2, flags, [](int rank, mep_comm_t comm, Report& found) {
    for (const size_t count : {size_t{3}, size_t{100'000}}) {
      const size_t bytes = count * 4;
      if (rank == 0) {
        const Bytes content = message_bytes(bytes, count);
        COLL_OK(found, mep_send(content.data(), count, MEP_INT32, 1, 2, comm, nullptr));
        continue;
      }
      Inbox inbox(bytes);
      for (const mep_dtype_t other : {MEP_FLOAT32, MEP_UINT32, MEP_INT8}) {
        mep_message_defaults(&inbox.message);
        COLL_EXPECT(found, MEP_ERR_MISMATCH,
                    mep_recv(inbox.data(), bytes / element_bytes(other), other, 0, 2, comm,
                             &inbox.message, nullptr));
        inbox.came(0, 2, bytes, found, MEP_INT32);
        inbox.check_guard(found);
      }
      COLL_OK(found, mep_recv(inbox.data(), count, MEP_INT32, MEP_ANY_SOURCE, MEP_ANY_TAG, comm,
                              &inbox.message, nullptr));
      inbox.came(0, 2, bytes, found, MEP_INT32);
      inbox.check(bytes, count, found);
    }
  });
}

// --- Timeouts ---------------------------------------------------------------------------------------

// All call it; nobody leaves before all have looked.
void expect_no_change(mep_comm_t comm, Report& found) {
  uint64_t epoch = 0;
  COLL_OK(found, mep_barrier(comm, nullptr));
  COLL_OK(found, mep_comm_epoch(comm, &epoch));
  COLL_CHECK(found, epoch == 1);
  COLL_OK(found, mep_barrier(comm, nullptr));
}

// They end on this rank alone and change nothing for anybody, nor for the comm.
void receives_that_nobody_serves(uint32_t flags) {
  require_on_rank_threads(2, flags, [](int rank, mep_comm_t comm, Report& found) {
    Inbox late(kLargeBytes);
    if (rank == 1) {
      COLL_OK(found, mep_comm_set_timeout(comm, kShortMs));
      COLL_EXPECT(found, MEP_ERR_TIMEOUT, receive(late, 0, 3, comm));
      COLL_EXPECT(found, MEP_ERR_TIMEOUT, receive(late, MEP_ANY_SOURCE, MEP_ANY_TAG, comm));
      COLL_EXPECT(found, MEP_ERR_TIMEOUT, mep_probe(0, 3, comm, nullptr));
      mep_request_t request = nullptr;
      COLL_OK(found, begin_receive(late, 0, 3, comm, &request));
      COLL_EXPECT(found, MEP_ERR_TIMEOUT, finish(&request));
      COLL_CHECK(found, request == nullptr);
      COLL_OK(found, mep_comm_set_timeout(comm, 60'000));
    }
    expect_sum_of_ranks(comm, sum_of_all(2), found);
    expect_no_change(comm, found);
    // A message that comes afterwards is not for a receive that has ended.
    if (rank == 0) COLL_OK(found, send_bytes(9, 1, 1, 3, comm));
    if (rank == 1) expect_message(9, 1, 0, 3, comm, found);
    late.check_untouched(found);
  });
}

// A send whose receiver does not call is withdrawn: the next receive gets what was sent after it, whether it is
// called before that or later.
void sends_that_nobody_receives(uint32_t flags) {
  for (const size_t bytes : {kLeastAnnounced, kLargeBytes}) {
    for (const bool receives_first : {true, false}) {
      Stages stages;
      require_on_rank_threads(2, flags, [&](int rank, mep_comm_t comm, Report& found) {
        if (rank == 0) {
          COLL_OK(found, mep_comm_set_timeout(comm, kShortMs));
          COLL_EXPECT(found, MEP_ERR_TIMEOUT, send_bytes(bytes, 1, 1, 3, comm));
          COLL_EXPECT(found, MEP_ERR_TIMEOUT, send_bytes(bytes, 1, 1, 4, comm));
          COLL_OK(found, mep_comm_set_timeout(comm, 60'000));
          stages.reach(0);
          if (receives_first) COLL_OK(found, mep_barrier(comm, nullptr));
          COLL_OK(found, send_bytes(bytes, 2, 1, 3, comm));
          COLL_OK(found, send_bytes(6, 3, 1, 4, comm));
          return expect_no_change(comm, found);
        }
        stages.await(0, 1, found);
        Inbox first(bytes);
        Inbox second(bytes);
        mep_request_t requests[2] = {};
        COLL_OK(found, begin_receive(first, 0, 3, comm, &requests[0]));
        COLL_OK(found, begin_receive(second, 0, MEP_ANY_TAG, comm, &requests[1]));
        if (receives_first) COLL_OK(found, mep_barrier(comm, nullptr));
        COLL_OK(found, mep_request_waitall(2, requests, MEP_TIMEOUT_DEFAULT, nullptr, nullptr));
        first.came(0, 3, bytes, found);
        first.check(bytes, 2, found);
        second.came(0, 4, 6, found);
        second.check(6, 3, found);
        expect_no_change(comm, found);
      });
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(both<sizes>),
      cmocka_unit_test(both<eager_sends_need_no_receiver>),
      cmocka_unit_test(types),
      cmocka_unit_test(both<nothing_but_a_tag>),
      cmocka_unit_test(both<order_of_one_tag>),
      cmocka_unit_test(both<order_of_several_tags>),
      cmocka_unit_test(both<order_of_waiting_receives>),
      cmocka_unit_test(both<any_source>),
      cmocka_unit_test(both<many_small_ones_unexpected>),
      cmocka_unit_test(both<large_ones_unexpected>),
      cmocka_unit_test(both<to_itself>),
      cmocka_unit_test(both<both_ways>),
      cmocka_unit_test(both<ring>),
      cmocka_unit_test(both<probes>),
      cmocka_unit_test(both<looking_alone_finds_it>),
      cmocka_unit_test(both<too_small_a_buffer>),
      cmocka_unit_test(both<another_type>),
      cmocka_unit_test(both<receives_that_nobody_serves>),
      cmocka_unit_test(both<sends_that_nobody_receives>),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

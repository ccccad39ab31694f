// labels: quick threads tsan asan
// A buffer is the caller's again when its call has returned: nothing is written to it or read from it later, however the
// call ended and whatever of a large message was under way.
#include <sys/mman.h>

#include "support/message_ranks.hpp"
#include "support/request_waits.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

constexpr uint32_t kShortMs = 150;
constexpr uint32_t kLongMs = 60'000;
constexpr size_t kSizes[] = {10'000, kLeastAnnounced, kLargeBytes, 3 * kLargeBytes};

// All that `source` has sent before this is taken.
void settle(int rank, int source, mep_comm_t comm, Report& found) {
  if (rank == source) COLL_OK(found, send_bytes(1, 7, 1 - source, 99, comm));
  if (rank != source) expect_message(1, 7, source, 99, comm, found);
}

// The sender looks only after the receive that had taken its message has timed out.
void data_after_a_receive_timed_out(uint32_t flags) {
  if (std::getenv("MEP_PROGRESS_THREAD") != nullptr) return;  // it looks
  Stages stages;
  require_on_rank_threads(2, flags, [&](int rank, mep_comm_t comm, Report& found) {
    if (rank == 0) {
      const Bytes content = message_bytes(kLargeBytes, 1);
      mep_request_t request = nullptr;
      COLL_OK(found,
              mep_isend(content.data(), kLargeBytes, MEP_UINT8, 1, 3, comm, nullptr, &request));
      COLL_EXPECT(found, MEP_IN_PROGRESS, wait_in(&request, 0));
      stages.reach(0);
      stages.await(1, 1, found);
      COLL_OK(found, finish(&request));
      return settle(rank, 0, comm, found);
    }
    stages.await(0, 1, found);
    Inbox inbox(kLargeBytes);
    COLL_OK(found, mep_probe(0, 3, comm, nullptr));
    // A message that is read in its sender's memory needs no look of the sender.
    const bool is_read = flags == 0 && std::getenv("MEP_TRANSPORTS") == nullptr;
    COLL_OK(found, mep_comm_set_timeout(comm, is_read ? kLongMs : kShortMs));
    COLL_EXPECT(found, is_read ? MEP_SUCCESS : MEP_ERR_TIMEOUT, receive(inbox, 0, 3, comm));
    COLL_OK(found, mep_comm_set_timeout(comm, kLongMs));
    const Inbox as_it_was = inbox;
    stages.reach(1);
    settle(rank, 0, comm, found);
    inbox.check_same(as_it_was, found);
  });
}

// Both sides time out at any moment. The sender gives its buffer another content then: no receive has a mixture.
void timeouts_in_the_middle(uint32_t flags) {
  constexpr int kTurns = 24;
  mep_result_t sent[kTurns] = {};
  Stages stages;
  require_on_rank_threads(2, flags, [&](int rank, mep_comm_t comm, Report& found) {
    RandomStream random(mix(test_seed(), static_cast<uint64_t>(rank)));
    for (int turn = 0; turn < kTurns && !found.bad(); ++turn) {
      const size_t bytes = kSizes[static_cast<size_t>(turn) % std::size(kSizes)];
      const auto seed = static_cast<uint64_t>(turn);
      const auto limit_ms = static_cast<uint32_t>(1 + random.below(6));
      Bytes content = message_bytes(bytes, seed);
      Inbox inbox(bytes);
      stages.meet(0, 2 * (turn + 1), found);
      COLL_OK(found, mep_comm_set_timeout(comm, limit_ms));
      if (rank == 0) {
        sent[turn] = mep_send(content.data(), bytes, MEP_UINT8, 1, turn, comm, nullptr);
        std::fill(content.begin(), content.end(), uint8_t{0x5a});
      }
      const mep_result_t received =
          rank == 1 ? receive(inbox, 0, turn, comm) : mep_result_t{MEP_SUCCESS};
      const std::string text = mep_last_error();
      const Inbox as_it_was = inbox;
      COLL_OK(found, mep_comm_set_timeout(comm, kLongMs));
      settle(rank, 0, comm, found);
      if (rank == 0) {
        COLL_CHECK(found, sent[turn] == MEP_SUCCESS || sent[turn] == MEP_ERR_TIMEOUT);
        continue;
      }
      if (received != MEP_SUCCESS && received != MEP_ERR_TIMEOUT) {
        found.add("turn %d, %zu bytes: %s: %s", turn, bytes, mep_result_string(received),
                  text.c_str());
      }
      if (received == MEP_SUCCESS) {
        COLL_CHECK(found, sent[turn] == MEP_SUCCESS);
        inbox.check(bytes, seed, found);
      } else {
        inbox.check_same(as_it_was, found);
      }
    }
    stages.meet(0, 2 * (kTurns + 1),
                found);  // a receive under way would tell that the sender has left
  });
}

// Memory that is gone with it: whoever still reads it for the network gets an error.
class Pages {
 public:
  Pages(size_t bytes, uint64_t seed)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    assert_ptr_not_equal(data_, MAP_FAILED);
    const Bytes content = message_bytes(bytes, seed);
    std::memcpy(data_, content.data(), bytes);
  }
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  const void* data() const { return data_; }

 private:
  size_t bytes_;
  void* data_;
};

// The first send times out while its receive waits, and the next message is that receive's.
void a_receive_outlives_its_send(uint32_t flags) {
  Stages stages;
  require_on_rank_threads(2, flags, [&](int rank, mep_comm_t comm, Report& found) {
    for (int turn = 0; turn < 6 && !found.bad(); ++turn) {
      const size_t bytes = 24 * kLargeBytes;  // more than a socket takes
      const uint64_t seed = 2 * static_cast<uint64_t>(turn);
      stages.meet(0, 2 * (turn + 1), found);
      if (rank == 0) {
        auto pages = std::make_unique<Pages>(bytes, seed);
        COLL_OK(found, mep_comm_set_timeout(comm, static_cast<uint32_t>(1 + turn)));
        const mep_result_t first = mep_send(pages->data(), bytes, MEP_UINT8, 1, 3, comm, nullptr);
        pages.reset();
        COLL_OK(found, mep_comm_set_timeout(comm, kLongMs));
        const bool is_sent = first == MEP_SUCCESS;
        COLL_CHECK(found, is_sent || first == MEP_ERR_TIMEOUT);
        COLL_OK(found, mep_send(&is_sent, 1, MEP_UINT8, 1, 4, comm, nullptr));
        if (!is_sent) {
          COLL_OK(found, send_bytes(bytes, seed + 1, 1, 3, comm));
        }
        continue;
      }
      Inbox inbox(bytes);
      mep_request_t request = nullptr;
      COLL_OK(found, begin_receive(inbox, 0, 3, comm, &request));
      uint8_t is_sent = 0;
      COLL_OK(found, mep_recv(&is_sent, 1, MEP_UINT8, 0, 4, comm, nullptr, nullptr));
      COLL_OK(found, finish(&request));
      inbox.check(bytes, is_sent != 0 ? seed : seed + 1, found);
    }
  });
}

// The buffer of a receive that is too short is not written, and the message is the next one's.
void large_ones_that_do_not_fit(uint32_t flags) {
  require_on_rank_threads(2, flags, [](int rank, mep_comm_t comm, Report& found) {
    for (const size_t bytes : kSizes) {
      if (rank == 0) COLL_OK(found, send_bytes(bytes, bytes, 1, 2, comm));
      if (rank == 0) continue;
      Inbox narrow(bytes - 1);
      COLL_EXPECT(found, MEP_ERR_CAPACITY, receive(narrow, 0, 2, comm));
      expect_message(bytes, bytes, 0, 2, comm, found);
      narrow.check_untouched(found);
    }
  });
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(both<data_after_a_receive_timed_out>),
      cmocka_unit_test(both<timeouts_in_the_middle>),
      cmocka_unit_test(both<a_receive_outlives_its_send>),
      cmocka_unit_test(both<large_ones_that_do_not_fit>),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

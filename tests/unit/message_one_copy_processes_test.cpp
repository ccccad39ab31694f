// labels: gate
// Large messages in one copy: the receiver reads them in the memory of the sender. The bytes, when it is done so, and
// what becomes of sends and receives that end, stop or die in the middle.
#include <sys/mman.h>

#include "base/failpoint.hpp"
#include "base/peer_memory.hpp"
#include "core/message/messages.hpp"
#include "support/forbid_reading.hpp"
#include "support/join_job.hpp"
#include "support/message_ranks.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

constexpr size_t kLeast = mep::Messages::kLeastPulled;
// A look reads 2 MiB, in 8 reads.
constexpr size_t kLookBytes = size_t{2} << 20;
constexpr size_t kLong = 2 * kLookBytes + 4099;

uint64_t pulled() {
  return mep::pulled_messages.load();
}

// --- Results --------------------------------------------------------------------------------------

// A message at an address of any alignment.
struct Content {
  Content(size_t bytes, uint64_t seed) : memory(bytes + 8), data(memory.data() + seed % 8) {
    fill_message(data, bytes, seed);
  }
  Bytes memory;
  uint8_t* data;
};

// Each rank sends to every one, itself too, and receives from every one: `receives_first` or last; from any source.
void exchange(int rank, int size, size_t bytes, bool receives_first, mep_comm_t comm,
              bool is_pulled, Report& found) {
  const auto seed_of = [&](int source, int dest) {
    return mix(bytes * 2 + (receives_first ? 1 : 0),
               16 * static_cast<uint64_t>(source) + static_cast<uint64_t>(dest));
  };
  const uint64_t before = pulled();
  std::vector<Inbox> inboxes;
  std::vector<mep_request_t> requests(static_cast<size_t>(2 * size));
  for (int source = 0; source < size; ++source) inboxes.emplace_back(bytes);
  std::vector<Content> contents;
  for (int dest = 0; dest < size; ++dest) contents.emplace_back(bytes, seed_of(rank, dest));
  const auto receive_all = [&] {
    for (int source = 0; source < size; ++source) {
      const auto at = static_cast<size_t>(source);
      COLL_OK(found, begin_receive(inboxes[at], MEP_ANY_SOURCE, source, comm, &requests[at]));
    }
  };
  if (receives_first) receive_all();
  if (receives_first) COLL_OK(found, mep_barrier(comm, nullptr));
  for (int i = 0; i < size; ++i) {
    const int dest = (rank + i) % size;
    const auto at = static_cast<size_t>(dest);
    COLL_OK(found, mep_isend(contents[at].data, bytes, MEP_UINT8, dest, rank, comm, nullptr,
                             &requests[static_cast<size_t>(size) + at]));
  }
  if (!receives_first) {
    mep_message_t message;
    mep_message_defaults(&message);
    COLL_OK(found, mep_probe((rank + 1) % size, MEP_ANY_TAG, comm, &message));
    COLL_CHECK(found, message.bytes == bytes);
    receive_all();
  }
  COLL_OK(found,
          mep_request_waitall(2 * size, requests.data(), MEP_TIMEOUT_DEFAULT, nullptr, nullptr));
  for (int source = 0; source < size; ++source) {
    const auto at = static_cast<size_t>(source);
    inboxes[at].came(source, source, bytes, found);
    inboxes[at].check(bytes, seed_of(source, rank), found);
  }
  const uint64_t expected = is_pulled && bytes >= kLeast ? static_cast<uint64_t>(size) - 1 : 0;
  const uint64_t count = pulled() - before;
  if (count != expected) {
    found.add("rank %d of %d: %llu messages of %zu bytes in one copy, not %llu", rank, size,
              static_cast<unsigned long long>(count), bytes,
              static_cast<unsigned long long>(expected));
  }
}

// Two ranks at a time, both ways by one call.
void exchange_pairs(int rank, int size, size_t bytes, mep_comm_t comm, Report& found) {
  for (int step = 1; step < size; ++step) {
    const int dest = (rank + step) % size;
    const int source = (rank - step + size) % size;
    const Content content(bytes, static_cast<uint64_t>(rank));
    Inbox inbox(bytes);
    COLL_OK(found, mep_sendrecv(content.data, bytes, dest, 4, inbox.data(), bytes, source, 4,
                                MEP_UINT8, comm, &inbox.message, nullptr));
    inbox.came(source, 4, bytes, found);
    inbox.check(bytes, static_cast<uint64_t>(source), found);
  }
}

// A hundred from each rank to the next, small ones between large ones.
void send_many(int rank, int size, mep_comm_t comm, Report& found) {
  Sent sent;
  const auto bytes_of = [](uint64_t i) { return i % 3 == 0 ? 10 + i : kLeast + i * 1001; };
  for (uint64_t i = 0; i < 100; ++i) {
    sent.start(bytes_of(i), i * 16 + static_cast<uint64_t>(rank), (rank + 1) % size, 6, comm,
               found);
  }
  const int source = (rank + size - 1) % size;
  for (uint64_t i = 0; i < 100; ++i) {
    expect_message(bytes_of(i), i * 16 + static_cast<uint64_t>(source), source, 6, comm, found);
  }
  sent.finish_all(found);
}

void run_exchanges(int rank, int size, mep_comm_t comm, bool is_pulled, Report& found) {
  for (const size_t bytes : {kLeast - 1, kLeast, kLeast + 1, size_t{100'003}, size_t{1} << 18,
                             (size_t{1} << 18) + 1, kLong}) {
    for (const bool receives_first : {false, true}) {
      exchange(rank, size, bytes, receives_first, comm, is_pulled, found);
    }
    exchange_pairs(rank, size, bytes, comm, found);
  }
  send_many(rank, size, comm, found);
}

void require_exchanges(int size, bool is_pulled, uint32_t flags = 0,
                       const std::function<void(int)>& first = nullptr) {
  Report report;
  before_rank() = first;
  with_rank_processes(size, patient_config(flags), report,
                      [&](int rank, mep_comm_t comm, Report& found) {
                        run_exchanges(rank, size, comm, is_pulled, found);
                      });
  before_rank() = nullptr;
  report.require_clean();
}

void in_one_copy(void**) {
  for (const int size : {1, 2, 3}) require_exchanges(size, true);
}
void switched_off(void**) {
  require_exchanges(2, false, 0, [](int) { setenv("MEP_ONE_COPY", "0", 1); });
}
void windows_are_not_mapped(void**) {
  require_exchanges(2, false, kPutOnly);
}
void one_rank_may_not_read(void**) {
  require_exchanges(2, false, 0, [](int rank) {
    if (rank == 1) forbid_reading();
  });
}

void in_one_copy_among_threads(void**) {
  const uint64_t before = pulled();
  require_on_rank_threads(3, 0, [](int rank, mep_comm_t comm, Report& found) {
    exchange_pairs(rank, 3, kLong, comm, found);
  });
  assert_int_equal(pulled() - before, 6);
}

// A rank that finds out late that it may not read gets the data in cells, and offers nothing any more.
void reading_fails(void**) {
  Report report;
  with_rank_processes(2, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    exchange_pairs(rank, 2, kLong, comm, found);
    COLL_CHECK(found, pulled() == 1);
    if (rank == 1) forbid_reading();
    for (int round = 0; round < 2; ++round) exchange_pairs(rank, 2, kLong, comm, found);
    COLL_CHECK(found, pulled() <= (rank == 0 ? 2 : 1));
    COLL_OK(found, mep_barrier(comm, nullptr));
  });
  report.require_clean();
}

// --- Ends in the middle ---------------------------------------------------------------------------

enum Stage : int { kStopped, kGone, kNext };

// A message in memory that its sender can free.
class Outbox {
 public:
  explicit Outbox(uint64_t seed)
      : data_(static_cast<uint8_t*>(
            mmap(nullptr, kLong, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    fill_message(data_, kLong, seed);
  }
  ~Outbox() { drop(); }
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  mep_result_t send(int tag, mep_comm_t comm) {
    return mep_send(data_, kLong, MEP_UINT8, 1, tag, comm, nullptr);
  }
  // A send whose time is over when the receiver, which needs no call of this rank to read it, has stopped.
  mep_result_t send_too_long(mep_comm_t comm, Page& page, Report& found) {
    mep_request_t request = nullptr;
    COLL_OK(found, mep_comm_set_timeout(comm, 1));
    COLL_OK(found, mep_isend(data_, kLong, MEP_UINT8, 1, 1, comm, nullptr, &request));
    COLL_OK(found, mep_comm_set_timeout(comm, 60'000));
    page.await(kStopped, 1);
    pause_us(2000);
    return finish(&request);
  }
  void overwrite() { std::memset(data_, 0xdd, kLong); }
  void drop() {
    if (data_ != nullptr) munmap(data_, kLong);
    data_ = nullptr;
  }

 private:
  uint8_t* data_;
};

// Rank 1 receives a message of rank 0, and stops at the point.
using Sender = std::function<void(mep_comm_t, Page&, Report&)>;
using Between = std::function<void(JoinJob&, Page&)>;
void play(const char* point, uint64_t expected_seed, const Sender& sender, const Between& between) {
  const auto page = JoinJob::shared_page();
  Report report;
  JoinJob job(2, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    if (rank == 0) return sender(comm, *page, found);
    COLL_OK(found, mep::failpoint_arm(point));
    expect_message(kLong, expected_seed, 0, 1, comm, found);
    page->reach(kNext);
    COLL_CHECK(found, pulled() == 1);
  });
  job.await_stopped(1);
  page->reach(kStopped);
  between(job, *page);
  kill(job.pid(1), SIGCONT);
  job.expect_clean_end();
  report.require_clean();
}

// After the third read of a message the receiver finds "gone" before it reads on; after the last it can find
// out by the word alone.
constexpr const char* kStopsAtThird = "message read:3=stop";
constexpr const char* kStopsAtLast = "message read:17=stop";

// The send's time is over while the receiver reads, and its memory has other contents, or none. The receive goes on
// to the next message.
void send_ends_while_it_is_read(const char* point, bool is_freed) {
  play(
      point, 2,
      [&](mep_comm_t comm, Page& page, Report& found) {
        Outbox outbox(1);
        COLL_EXPECT(found, MEP_ERR_TIMEOUT, outbox.send_too_long(comm, page, found));
        outbox.overwrite();
        if (is_freed) outbox.drop();
        page.reach(kGone);
        COLL_OK(found, Outbox(2).send(1, comm));
      },
      [](JoinJob&, Page& page) { page.await(kGone, 1); });
}
void a_receiver_finds_other_bytes(void**) {
  for (const char* point : {kStopsAtThird, kStopsAtLast}) send_ends_while_it_is_read(point, false);
}
void a_receiver_finds_no_memory(void**) {
  for (const char* point : {kStopsAtThird, kStopsAtLast}) send_ends_while_it_is_read(point, true);
}

// The receiver stops when it has told the sender, which ends well and goes on. `withdraws`: another send of it ends
// early then.
void receiver_stops_before_its_look(bool withdraws) {
  play(
      "message pulled=stop", 1,
      [&](mep_comm_t comm, Page& page, Report& found) {
        Outbox outbox(1);
        COLL_OK(found, outbox.send(1, comm));
        outbox.overwrite();
        COLL_OK(found, mep_comm_set_timeout(comm, 100));
        if (withdraws) COLL_EXPECT(found, MEP_ERR_TIMEOUT, outbox.send(7, comm));
        COLL_OK(found, mep_comm_set_timeout(comm, 60'000));
        page.reach(kGone);
        // Stays until the receive has ended.
        page.await(kNext, 1);
      },
      [](JoinJob&, Page& page) { page.await(kGone, 1); });
}
void a_receiver_looks_late(void**) {
  receiver_stops_before_its_look(false);
}
void a_receiver_looks_after_a_withdrawal(void**) {
  receiver_stops_before_its_look(true);
}

// The send's time is over while it is read, but before it has looked for the answer the receiver has read all.
void an_answer_comes_in_time(void**) {
  play(
      "message read:3=stop,message pulled=stop", 1,
      [](mep_comm_t comm, Page& page, Report& found) {
        Outbox outbox(1);
        COLL_OK(found, mep::failpoint_arm("message withdrawn=stop"));
        COLL_OK(found, outbox.send_too_long(comm, page, found));
        outbox.overwrite();
        page.await(kNext, 1);
      },
      [](JoinJob& job, Page&) {
        job.await_stopped(0);
        kill(job.pid(1), SIGCONT);
        // It stops again when it has told the sender.
        job.await_stopped(1);
        kill(job.pid(0), SIGCONT);
      });
}

// The receive's time is over: the message is lost, and its send ends well.
void a_receive_ends_while_it_reads(void**) {
  Report report;
  with_rank_processes(2, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    if (rank == 0) {
      COLL_OK(found, send_bytes(8 * kLookBytes, 1, 1, 1, comm));
      COLL_OK(found, Outbox(2).send(1, comm));
      return;
    }
    Inbox inbox(8 * kLookBytes);
    mep_request_t request = nullptr;
    COLL_OK(found, mep_probe(0, 1, comm, nullptr));
    COLL_OK(found, mep_comm_set_timeout(comm, 1));
    COLL_OK(found, begin_receive(inbox, 0, 1, comm, &request));
    COLL_OK(found, mep_comm_set_timeout(comm, 60'000));
    pause_us(2000);
    int32_t is_done = 0;
    COLL_EXPECT(found, MEP_ERR_TIMEOUT, mep_request_test(&request, &is_done, nullptr));
    COLL_CHECK(found, pulled() == 0);
    expect_message(kLong, 2, 0, 1, comm, found);
  });
  report.require_clean();
}

void a_sender_dies(void**) {
  Report report;
  JoinJob job(2, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    if (rank == 0) {
      (void)Outbox(1).send(1, comm);
      return;
    }
    COLL_OK(found, mep::failpoint_arm("message read:3=stop"));
    Inbox inbox(kLong);
    COLL_EXPECT(found, MEP_ERR_PEER_FAILED, receive(inbox, 0, 1, comm));
    COLL_CHECK(found, pulled() == 0);
  });
  job.await_stopped(1);
  kill(job.pid(0), SIGKILL);
  job.expect_killed(0);
  kill(job.pid(1), SIGCONT);
  job.expect_clean_end();
  report.require_clean();
}

// Before it has told the sender, and after that.
void a_receiver_dies(void**) {
  for (const char* point : {"message read:3=kill", "message pulled=kill"}) {
    const bool is_told = point[8] == 'p';
    Report report;
    JoinJob job(2, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
      if (rank == 1) {
        COLL_OK(found, mep::failpoint_arm(point));
        Inbox inbox(kLong);
        (void)receive(inbox, 0, 1, comm);
        return;
      }
      Outbox outbox(1);
      COLL_EXPECT(found, is_told ? MEP_SUCCESS : MEP_ERR_PEER_FAILED, outbox.send(1, comm));
    });
    job.expect_killed(1);
    job.expect_clean_end();
    report.require_clean();
  }
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  (void)test_seed();
  if (!siblings_can_be_read()) {
    (void)fprintf(stderr, "skipped: ranks may not read each other's memory here\n");
    return 0;
  }
  const CMUnitTest tests[] = {
      cmocka_unit_test(in_one_copy),
      cmocka_unit_test(switched_off),
      cmocka_unit_test(windows_are_not_mapped),
      cmocka_unit_test(one_rank_may_not_read),
      cmocka_unit_test(reading_fails),
      cmocka_unit_test(a_receiver_finds_other_bytes),
      cmocka_unit_test(a_receiver_finds_no_memory),
      cmocka_unit_test(a_receiver_looks_late),
      cmocka_unit_test(a_receiver_looks_after_a_withdrawal),
      cmocka_unit_test(an_answer_comes_in_time),
      cmocka_unit_test(a_receive_ends_while_it_reads),
      cmocka_unit_test(a_sender_dies),
      cmocka_unit_test(a_receiver_dies),
      cmocka_unit_test(in_one_copy_among_threads),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

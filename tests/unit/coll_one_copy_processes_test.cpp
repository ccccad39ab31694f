// labels: gate
// Large blocks in one copy: whoever gets one reads it in the memory of the rank that gives it. The bytes, when it is
// done so, and what becomes of calls whose readers or owners stop, die, or come too late.
#include "base/failpoint.hpp"
#include "base/peer_memory.hpp"
#include "core/api/api_guard.hpp"
#include "support/coll_cases.hpp"
#include "support/forbid_reading.hpp"
#include "support/join_job.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

constexpr size_t kPairCount = 100'003;              // bytes, of a block between any two
constexpr size_t kSameCount = 700'003;              // of one that all get
constexpr size_t kRootedCount = (1u << 20) + 4099;  // of one that a root gives or gets

// --- Results --------------------------------------------------------------------------------------

uint64_t seed_of_equal_counts(uint64_t from) {
  while (mix(from, 0xc0) % 6 != 0) ++from;
  return from;
}

// Blocks that this rank pulls of it, if all pull.
uint64_t pulls(const Case& c, int rank, int size) {
  const auto self = static_cast<uint32_t>(rank);
  const auto root = static_cast<uint32_t>(c.root);
  if (!c.facts().gets(self, root)) return 0;
  uint64_t sum = 0;
  for (int source = 0; source < size; ++source) {
    sum += source != rank && c.facts().gives(static_cast<uint32_t>(source), root) ? 1 : 0;
  }
  return sum;
}

void run_cases(int rank, int size, mep_comm_t comm, bool pulled, Report& found) {
  uint64_t seed = test_seed();
  const auto run = [&](Case c) {
    c.seed = ++seed;
    const bool is_even = c.facts().has_counts && seed % 2 == 0;
    if (is_even) c.seed = seed_of_equal_counts(seed << 8);
    const uint64_t before = mep::pulled_blocks.load();
    CaseRun each(c, rank, size);
    COLL_OK(found, each.run(comm));
    each.check(found);
    const uint64_t count = mep::pulled_blocks.load() - before;
    if (c.facts().has_counts && !is_even && pulled) return;
    const uint64_t expected = pulled ? pulls(c, rank, size) : 0;
    if (count != expected) {
      found.add("%s on rank %d of %d: %llu blocks in one copy, not %llu", describe(c).c_str(), rank,
                size, static_cast<unsigned long long>(count),
                static_cast<unsigned long long>(expected));
    }
  };
  for (int round = 0; round < 6; ++round) {
    const int root = round % size;
    const bool in_place = round % 2 == 1;
    run({Kind::k_alltoall, MEP_UINT8, MEP_SUM, kPairCount + static_cast<size_t>(round), 0, false});
    run({Kind::k_alltoallv, MEP_UINT8, MEP_SUM, kPairCount, 0, false});
    run({Kind::k_allgatherv, MEP_UINT8, MEP_SUM, kSameCount, 0, in_place});
    run({Kind::k_allgather, MEP_UINT8, MEP_SUM, kSameCount + static_cast<size_t>(round), 0,
         in_place});
    run({Kind::k_broadcast, MEP_UINT8, MEP_SUM, kRootedCount, root, in_place});
    run({Kind::k_gather, MEP_UINT8, MEP_SUM, kRootedCount, root, in_place});
    run({Kind::k_scatter, MEP_UINT8, MEP_SUM, kRootedCount, root, in_place});
    run({Kind::k_gatherv, MEP_UINT8, MEP_SUM, kRootedCount, root, in_place});
    run({Kind::k_scatterv, MEP_UINT8, MEP_SUM, kRootedCount, root, in_place});
    run({Kind::k_alltoall, MEP_FLOAT64, MEP_SUM, kPairCount, 0, false});
  }
}

void require_results(int size, bool pulled, const std::function<void(int)>& first) {
  Report report;
  before_rank() = first;
  with_rank_processes(size, patient_config(0), report,
                      [&](int rank, mep_comm_t comm, Report& found) {
                        run_cases(rank, size, comm, pulled, found);
                      });
  before_rank() = nullptr;
  report.require_clean();
}

void in_one_copy(void**) {
  for (const int size : {2, 3, 4}) require_results(size, true, nullptr);
}

void in_one_copy_among_threads(void**) {
  const uint64_t before = mep::pulled_blocks.load();
  require_on_rank_threads(3, 0, [](int rank, mep_comm_t comm, Report& found) {
    const Case c{Kind::k_alltoall, MEP_UINT8, MEP_SUM, kPairCount, 0, false, 77};
    CaseRun run(c, rank, 3);
    COLL_OK(found, run.run(comm));
    run.check(found);
  });
  assert_int_equal(mep::pulled_blocks.load() - before, 6);
}

void switched_off(void**) {
  require_results(3, false, [](int) { setenv("MEP_ONE_COPY", "0", 1); });
}

// One that does not take part is enough.
void one_rank_stays_out(void**) {
  require_results(3, false, [](int rank) {
    if (rank == 1) setenv("MEP_ONE_COPY", "0", 1);
  });
}

void one_rank_may_not_read(void**) {
  require_results(3, false, [](int rank) {
    if (rank == 2) forbid_reading();
  });
}

void alltoall_is_right(int rank, int size, mep_comm_t comm, uint64_t seed, Report& found) {
  CaseRun run({Kind::k_alltoall, MEP_UINT8, MEP_SUM, kPairCount, 0, false, seed}, rank, size);
  COLL_OK(found, run.run(comm));
  run.check(found);
}

// Rank 1 changes who may read it while the job runs: the next operation copies twice on all ranks, and so do those of a
// communicator that is made afterwards.
void a_rank_shuts_itself_off(const std::function<void()>& shut_off) {
  Report report;
  with_rank_processes(3, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    const uint64_t before = mep::pulled_blocks.load();
    alltoall_is_right(rank, 3, comm, 1, found);
    COLL_CHECK(found, mep::pulled_blocks.load() == before + 2);
    if (rank == 1) shut_off();
    alltoall_is_right(rank, 3, comm, 2, found);
    mep_comm_t made = nullptr;
    COLL_OK(found, mep_comm_dup(comm, &made));
    if (made == nullptr) return;
    COLL_OK(found, mep_comm_set_timeout(made, 5'000));
    alltoall_is_right(rank, 3, made, 3, found);
    COLL_OK(found, mep_comm_destroy(made));
    COLL_CHECK(found, mep::pulled_blocks.load() == before + 2);
  });
  report.require_clean();
}

void a_rank_becomes_undumpable(void**) {
  a_rank_shuts_itself_off([] { (void)prctl(PR_SET_DUMPABLE, 0); });
}

// The rank is like one that was made dumpable again after its user changed.
void a_rank_changes_its_user(void**) {
  if (geteuid() != 0) return;
  a_rank_shuts_itself_off([] {
    (void)!setuid(65534);
    (void)prctl(PR_SET_DUMPABLE, 1);
  });
}

// The buffer's rank fails alone.
void a_buffer_cannot_be_written(void**) {
  Report report;
  with_rank_processes(3, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    const size_t bytes = 3 * kPairCount;
    const Bytes send(bytes, static_cast<uint8_t>(rank + 1));
    const int rights = rank == 0 ? PROT_READ : PROT_READ | PROT_WRITE;
    void* const receive = mmap(nullptr, bytes, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const mep_result_t expected = rank == 0 ? MEP_ERR_INVALID_ARGUMENT : MEP_SUCCESS;
    COLL_EXPECT(found, expected,
                mep_alltoall(send.data(), receive, kPairCount, MEP_UINT8, comm, nullptr));
    COLL_CHECK(found, rank != 0 || strstr(mep_last_error(), "receive buffer") != nullptr);
    const auto* const bytes_of_2 = static_cast<uint8_t*>(receive) + 2 * kPairCount;
    COLL_CHECK(found,
               rank == 0 || std::count(bytes_of_2, bytes_of_2 + kPairCount, 3) == kPairCount);
    alltoall_is_right(rank, 3, comm, 3, found);
    munmap(receive, bytes);
  });
  report.require_clean();
}

// --- Losses ---------------------------------------------------------------------------------------

constexpr size_t kSlice = 1u << 20;  // a block of more takes several reads
constexpr size_t kBlock = kSlice + 4097;

mep_comm_config_t quick_config() {
  mep_comm_config_t config = patient_config(0);
  config.heartbeat_ms = 50;
  config.suspect_ms = 1000;
  return config;
}

uint8_t byte_of(int source, int target) {
  return static_cast<uint8_t>(16 * source + target + 1);
}

// An alltoall of ranks that fill the block of each pair with its byte.
struct Exchange {
  Exchange(int rank_, int size_) : rank(rank_), size(size_), receive(bytes(), 0xee) {
    send = static_cast<uint8_t*>(
        mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (int target = 0; target < size; ++target) {
      memset(send + static_cast<size_t>(target) * kBlock, byte_of(rank, target), kBlock);
    }
  }
  ~Exchange() { free_input(); }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  size_t bytes() const { return static_cast<size_t>(size) * kBlock; }
  // However it ends, nobody takes what he reads in the input afterwards for the input.
  mep_result_t run(mep_comm_t comm, Report& found) {
    const mep_result_t result =
        mep_alltoall(send, receive.data(), kBlock, MEP_UINT8, comm, nullptr);
    const mep::MemoryOffer& offer = comm->comm->collectives().open_memory().offer();
    COLL_CHECK(found, offer.word != 0 && offer.data == reinterpret_cast<uintptr_t>(send));
    COLL_CHECK(found, !mep::shows(getpid(), offer.word_at, offer.word));
    return result;
  }
  bool holds_block_of(int source) const {
    const auto begin =
        receive.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(source) * kBlock);
    return std::all_of(begin, begin + static_cast<ptrdiff_t>(kBlock),
                       [&](uint8_t byte) { return byte == byte_of(source, rank); });
  }
  void overwrite_input() { memset(send, 0xdd, bytes()); }
  void free_input() {
    if (send != nullptr) munmap(send, bytes());
    send = nullptr;
  }

  const int rank;
  const int size;
  uint8_t* send = nullptr;
  Bytes receive;
};

// The two that are left go on, and in one copy.
void exchange_without(int lost, int rank, mep_comm_t comm, Report& found) {
  Exchange again(rank, 3);
  const uint64_t before = mep::pulled_blocks.load();
  COLL_OK(found, again.run(comm, found));
  COLL_CHECK(found, again.holds_block_of(3 - lost - rank) && again.holds_block_of(rank));
  COLL_CHECK(found, mep::pulled_blocks.load() == before + 1);
}

// The second read of a block is the fourth passage at the latest.
void a_reader_dies(void**) {
  for (const char* point : {"large copy:2=kill", "large copy:4=kill", "pulled:1=kill"}) {
    Report report;
    JoinJob job(3, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
      if (rank == 1) COLL_OK(found, mep::failpoint_arm(point));
      Exchange exchange(rank, 3);
      COLL_EXPECT(found, MEP_ERR_PEER_FAILED, exchange.run(comm, found));
      exchange_without(1, rank, comm, found);
    });
    job.expect_killed(1);
    job.expect_clean_end();
    report.require_clean();
  }
}

// While a reader is in the middle of its memory.
void an_owner_dies(void**) {
  Report report;
  JoinJob job(3, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    // Rank 2 reads rank 0 first.
    if (rank == 2) COLL_OK(found, mep::failpoint_arm("large copy:2=stop"));
    Exchange exchange(rank, 3);
    COLL_EXPECT(found, MEP_ERR_PEER_FAILED, exchange.run(comm, found));
    exchange_without(0, rank, comm, found);
  });
  job.await_stopped(2);
  kill(job.pid(0), SIGKILL);
  job.expect_killed(0);
  kill(job.pid(2), SIGCONT);
  job.expect_clean_end();
  report.require_clean();
}

// The reader stops before the last bytes of its last block, all others have finished, and leave it out. Their calls
// have returned and their memory has other contents, or none, when it goes on.
void a_reader_is_late(bool is_freed) {
  enum Stage : int { kOverwritten, kEnded };
  const auto page = JoinJob::shared_page();
  Report report;
  JoinJob job(3, quick_config(), report, [&](int rank, mep_comm_t comm, Report& found) {
    Exchange exchange(rank, 3);
    if (rank == 2) {
      COLL_OK(found, mep::failpoint_arm("large copy:4=stop"));
      const mep_result_t result = exchange.run(comm, found);
      COLL_CHECK(found, result != MEP_SUCCESS);
      if (result == MEP_SUCCESS && !exchange.holds_block_of(1)) {
        found.add("success with bytes that were written after the owner's call");
      }
      page->reach(kEnded);
      return;
    }
    COLL_EXPECT(found, MEP_ERR_PEER_FAILED, exchange.run(comm, found));
    exchange.overwrite_input();
    if (is_freed) exchange.free_input();
    page->reach(kOverwritten);
    page->await(kEnded, 1);
  });
  job.await_stopped(2);
  page->await(kOverwritten, 2);
  kill(job.pid(2), SIGCONT);
  job.expect_clean_end();
  report.require_clean();
}

void a_reader_finds_other_bytes(void**) {
  a_reader_is_late(false);
}
void a_reader_finds_no_memory(void**) {
  a_reader_is_late(true);
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  (void)mep_test::test_seed();
  if (!mep_test::siblings_can_be_read()) {
    (void)fprintf(stderr, "skipped: ranks may not read each other's memory here\n");
    return 0;
  }
  const CMUnitTest tests[] = {
      cmocka_unit_test(in_one_copy),
      cmocka_unit_test(switched_off),
      cmocka_unit_test(one_rank_stays_out),
      cmocka_unit_test(one_rank_may_not_read),
      cmocka_unit_test(a_rank_becomes_undumpable),
      cmocka_unit_test(a_rank_changes_its_user),
      cmocka_unit_test(a_buffer_cannot_be_written),
      cmocka_unit_test(a_reader_dies),
      cmocka_unit_test(an_owner_dies),
      cmocka_unit_test(a_reader_finds_other_bytes),
      cmocka_unit_test(a_reader_finds_no_memory),
      cmocka_unit_test(in_one_copy_among_threads),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

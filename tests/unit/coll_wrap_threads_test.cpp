// labels: quick threads
// Signal words next to their wrap-around: comms whose sequence numbers, epochs and chunk counters
// begin just before a power of two at which a field of a tag begins anew.
#include "core/api/api_guard.hpp"
#include "support/coll_sequence.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

struct Start {
  uint64_t epoch;
  uint64_t seq;
  uint64_t chunk;
};

// Makes a comm like mep_comm_split after its exchange, with other counters.
mep_comm_t make_comm(mep_comm_t world, const char* name, const Start& start, Report& report) {
  const std::vector<uint32_t>& slots = world->comm->slots();
  auto handle = std::make_unique<mep_comm>(
      std::make_unique<mep::Comm>(world->comm->world_ptr(), name, slots));
  COLL_OK(report, handle->comm->begin(start.epoch, start.seq));
  COLL_OK(report, handle->comm->finish(mep::Deadline::after_ms(60'000)));
  handle->comm->collectives().pipeline().advance(start.chunk);
  return handle.release();
}

void run_some(mep_comm_t comm, int rank, int size, uint64_t seed, size_t operations,
              Report& report) {
  RandomStream shared(seed);
  for (size_t i = 0; i < operations && !report.bad(); ++i) {
    Case c = random_case(shared, size);
    // Runs of small broadcasts go around the eager ring without anybody waiting for all.
    if (i % 40 < 12) {
      c.kind = Kind::k_broadcast;
      c.count = 5;
    }
    CaseRun run(c, rank, size);
    const mep_result_t result = run.run(comm);
    if (result != MEP_SUCCESS) {
      report.add("%s: %s (%s)", describe(c).c_str(), mep_result_string(result), mep_last_error());
      return;
    }
    run.check(report);
  }
}

void run_from(const Start& start, uint32_t flags, size_t operations) {
  for (const int size : {2, 3}) {
    Report report;
    with_rank_threads(size, patient_config(flags), report,
                      [&](int rank, mep_comm_t world, Report& found) {
                        mep_comm_t comm = make_comm(world, "wrap", start, found);
                        if (!found.bad()) {
                          run_some(comm, rank, size, test_seed() ^ start.seq, operations, found);
                        }
                        mep_op_info_t info;
                        mep_op_info_defaults(&info);
                        COLL_OK(found, mep_comm_last_op(comm, &info));
                        COLL_CHECK(found, info.seq == start.seq + operations - 1);
                        COLL_CHECK(found, info.epoch == start.epoch);
                        COLL_OK(found, mep_comm_destroy(comm));
                      });
    report.require_clean();
  }
}

constexpr uint64_t bit(unsigned n) {
  return uint64_t{1} << n;
}

void test_sequence_numbers(void**) {
  const uint64_t depth = mep::EagerRing::depth_of(3);
  // The use count of an eager slot has 24 bits, the finished word's too before its payload goes on; 47 is the
  // last power of two that the channel's word holds.
  for (const uint64_t limit : {bit(23), bit(24), bit(24) * depth, bit(32), bit(47)}) {
    for (const uint32_t flags : {0u, kPutOnly}) {
      run_from({1, limit - 23, 0}, flags, 80);
    }
  }
}

void test_chunk_counters(void**) {
  for (const uint64_t limit : {bit(23), bit(24), bit(25), bit(48)}) {
    run_from({1, 1, limit - 2}, 0, 60);
    run_from({1, 1, limit - 1}, kPutOnly, 60);
  }
}

void test_epochs(void**) {
  for (const uint64_t epoch : {bit(15) - 1, bit(15), bit(16) - 1, bit(16)}) {
    run_from({epoch, bit(24) * 8 - 5, bit(24) - 1}, 0, 40);
  }
}

// The tag's epoch goes from 0x7ffe over 0 to 1 while the comm is used; a signal of epoch e must not
// be taken for one of a later epoch whatever the counters do.
void test_epochs_change_over_wrap(void**) {
  constexpr int kSize = 3;
  constexpr int kChanges = 4;
  Report report;
  with_rank_threads(
      kSize, patient_config(0), report, [&](int rank, mep_comm_t world, Report& found) {
        mep_comm_t comm =
            make_comm(world, "epochs", {bit(15) - 2, bit(24) - 5, bit(24) - 1}, found);
        for (int change = 0; change < kChanges && !found.bad(); ++change) {
          run_some(comm, rank, kSize, test_seed() + static_cast<uint64_t>(change), 12, found);
          uint64_t epoch = 0;
          COLL_OK(found, mep_comm_epoch(comm, &epoch));
          COLL_OK(found, mep_barrier(world, nullptr));  // all are idle on comm
          if (rank == 0) COLL_OK(found, mep_comm_revoke(comm));
          COLL_OK(found, mep_comm_wait_view(comm, epoch, 60'000));
          COLL_EXPECT(found, MEP_ERR_REVOKED, mep_barrier(comm, nullptr));
          uint64_t after = 0;
          COLL_OK(found, mep_comm_epoch(comm, &after));
          COLL_CHECK(found, after == epoch + 1);
        }
        run_some(comm, rank, kSize, test_seed(), 12, found);
        COLL_OK(found, mep_comm_destroy(comm));
      });
  report.require_clean();
}

// Acknowledgements are sent only in operations whose pattern does not acknowledge by itself. However long ago
// the last one was sent, it must not let a slot be used again too early.
void test_old_acknowledgement(void**) {
  constexpr uint32_t kRanks = 2;
  const size_t bytes = mep::EagerRing::window_bytes(kRanks);
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> memory[kRanks];
  std::vector<mep::Remote> remotes(kRanks);
  mep::Doorbell doorbells[kRanks] = {};
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    memory[rank].resize(bytes / sizeof(Line) + 1);
    remotes[rank].mapped = memory[rank][0].bytes;
    remotes[rank].doorbell = &doorbells[rank];
  }
  for (const uint64_t gap : {bit(22), bit(23) + 100, bit(24) - 3, bit(24) + 3, bit(32), bit(40)}) {
    mep::EagerRing rings[kRanks];
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      rings[rank].open(rank, &remotes);
      rings[rank].use_window(remotes[rank].mapped);
      rings[rank].zero_words();
      rings[rank].restart(1, 1, {0, 1});
    }
    const uint64_t depth = rings[0].depth();
    mep::Operation operation;
    operation.epoch = 1;
    operation.seq = depth;
    assert_int_equal(rings[1].acknowledge(operation), MEP_SUCCESS);
    assert_true(rings[0].has_credit(depth + 1));
    const uint64_t far = operation.seq + gap;
    for (mep::EagerRing& each : rings) each.note_all_entered(far);
    assert_true(rings[0].has_credit(far + depth - 1));
    assert_false(rings[0].has_credit(far + depth));
    operation.seq = far + depth / 2;
    assert_int_equal(rings[1].acknowledge(operation), MEP_SUCCESS);
    // The operation before is acknowledged: this one is not committed yet.
    assert_true(rings[0].has_credit(far + depth / 2 - 1 + depth));
    assert_false(rings[0].has_credit(far + depth / 2 + depth));
  }
}

// Words that are seldom written: a value of 2^24 uses ago is not the awaited one.
void test_counted_signals(void**) {
  for (const uint64_t use : {uint64_t{0}, uint64_t{1}, bit(24) - 1, bit(40)}) {
    assert_true(mep::counted_signal(1, use) >> 63 == 1);
    for (const unsigned shift : {0u, 1u, 23u, 24u, 25u, 47u}) {
      assert_true(mep::counted_signal(1, use) != mep::counted_signal(1, use + bit(shift)));
    }
    assert_true(mep::counted_signal(1, use) != mep::counted_signal(2, use));
  }
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(test_sequence_numbers),
      cmocka_unit_test(test_chunk_counters),
      cmocka_unit_test(test_epochs),
      cmocka_unit_test(test_epochs_change_over_wrap),
      cmocka_unit_test(test_old_acknowledgement),
      cmocka_unit_test(test_counted_signals),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

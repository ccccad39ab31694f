// labels: gate threads tsan asan
// Messages of ranks that are threads when one of them ends its part by mep_comm_abort or leaves, and when a
// communicator is revoked.
#include "support/delays.hpp"
#include "support/message_losses.hpp"
#include "support/request_waits.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

void play(const NamedScene& scene, uint32_t flags, bool leaves) {
  Stages stages;
  Report report;
  with_rank_threads(
      scene.size, patient_config(flags), report, [&](int rank, mep_comm_t comm, Report& found) {
        Loss loss{leaves ? MEP_ERR_PEER_LEFT : MEP_ERR_PEER_FAILED, [](mep_comm_t) {}, stages};
        if (!leaves) {
          loss.go = [&](mep_comm_t own) { COLL_OK(found, mep_comm_abort(own)); };
        }
        scene.scene(loss, rank, comm, found);
      });
  if (report.bad()) {
    fail_msg("seed %llu, %s, %s, flags %u:%s", static_cast<unsigned long long>(test_seed()),
             scene.name, leaves ? "left" : "aborted", flags, report.text().c_str());
  }
}

// Builds with delays are those of the sanitizers, which take ten times as long.
#if defined(MEP_TEST_HOOKS)
constexpr size_t kTimes = 2;
#else
constexpr size_t kTimes = 8;
#endif

void play_all(uint32_t flags, bool leaves) {
  for (const NamedScene& scene : scenes()) play(scene, flags, leaves);
  for (size_t i = 0; i < slice(kTimes, 300); ++i) {
    const uint64_t seed = mix(mix(test_seed(), i), flags + (leaves ? 1 : 0));
    enable_delays(seed, 48);
    for (const NamedScene& scene : timed_scenes(seed)) play(scene, flags, leaves);
    enable_delays(0, 0);
  }
}

void a_rank_aborts(uint32_t flags) {
  play_all(flags, false);
}
void a_rank_leaves(uint32_t flags) {
  play_all(flags, true);
}

// The rank's own calls, those under way and later ones.
void own_abort(uint32_t flags) {
  Report report;
  with_rank_threads(
      2, patient_config(flags), report, [&](int rank, mep_comm_t comm, Report& found) {
        Inbox inbox(8);
        if (rank == 0) {
          COLL_EXPECT(found, MEP_ERR_PEER_FAILED, receive(inbox, 1, 1, comm));
          return;
        }
        const Bytes content = message_bytes(kLargeBytes, 1);
        mep_request_t requests[2] = {};
        mep_result_t results[2] = {};
        COLL_OK(found, begin_receive(inbox, 0, 1, comm, &requests[0]));
        COLL_OK(found, mep_isend(content.data(), kLargeBytes, MEP_UINT8, 0, 2, comm, nullptr,
                                 &requests[1]));
        COLL_OK(found, mep_comm_abort(comm));
        const Bounded bounded(found);
        COLL_EXPECT(found, MEP_ERR_ABORTED,
                    mep_request_waitall(2, requests, MEP_TIMEOUT_DEFAULT, nullptr, results));
        for (int i = 0; i < 2; ++i) {
          COLL_CHECK(found, results[i] == MEP_ERR_ABORTED && requests[i] == nullptr);
        }
        COLL_EXPECT(found, MEP_ERR_ABORTED, receive(inbox, MEP_ANY_SOURCE, MEP_ANY_TAG, comm));
        COLL_EXPECT(found, MEP_ERR_ABORTED, send_bytes(4, 1, 0, 1, comm));
        COLL_EXPECT(found, MEP_ERR_ABORTED, send_bytes(4, 1, 1, 1, comm));
        COLL_EXPECT(found, MEP_ERR_ABORTED, mep_probe(0, 1, comm, nullptr));
        inbox.check_untouched(found);
      });
  report.require_clean();
}

// --- Revoked ----------------------------------------------------------------------------------------

// The requests that every rank has under way on a comm: a receive that nobody serves and a large send that nobody
// receives.
struct Pending {
  Pending(int rank, mep_comm_t comm, Report& found)
      : content(message_bytes(kLargeBytes, 1)), inbox(kLargeBytes) {
    const int next = (rank + 1) % 3;
    COLL_OK(found, begin_receive(inbox, next, 1, comm, &requests[0]));
    COLL_OK(found, begin_receive(inbox, MEP_ANY_SOURCE, 2, comm, &requests[1]));
    COLL_OK(found, mep_isend(content.data(), kLargeBytes, MEP_UINT8, next, 3, comm, nullptr,
                             &requests[2]));
  }

  Bytes content;
  Inbox inbox;
  mep_request_t requests[3] = {};
};

void shift(int rank, uint64_t seed, mep_comm_t comm, Report& found) {
  Sent sent;
  for (const int tag : {1, 2, 3}) {
    for (const size_t bytes : {size_t{40}, kLargeBytes}) {
      sent.start(bytes, seed + static_cast<uint64_t>(rank), (rank + 1) % 3, tag, comm, found);
    }
  }
  const int previous = (rank + 2) % 3;
  for (const int tag : {3, 1, 2}) {
    for (const size_t bytes : {size_t{40}, kLargeBytes}) {
      expect_message(bytes, seed + static_cast<uint64_t>(previous), previous, tag, comm, found);
    }
  }
  sent.finish_all(found);
}

// All that is under way ends on all ranks, the next collective tells of it once, and then all is new. Another
// comm of the same ranks knows nothing of it.
void revoked(uint32_t flags) {
  for (int revoker = 0; revoker < 3; ++revoker) {
    Stages stages;
    require_on_rank_threads(3, flags, [&](int rank, mep_comm_t world, Report& found) {
      mep_comm_t comm = nullptr;
      COLL_OK(found, mep_comm_dup(world, &comm));
      if (comm == nullptr) return;
      Inbox beside(40);
      mep_request_t stays = nullptr;
      COLL_OK(found, begin_receive(beside, (rank + 2) % 3, 7, world, &stays));
      {
        Pending pending(rank, comm, found);
        stages.meet(0, 3, found);
        if (rank == revoker) COLL_OK(found, mep_comm_revoke(comm));
        const Bounded bounded(found);
        mep_result_t results[3] = {};
        COLL_EXPECT(
            found, MEP_ERR_REVOKED,
            mep_request_waitall(3, pending.requests, MEP_TIMEOUT_DEFAULT, nullptr, results));
        for (const mep_result_t result : results) COLL_CHECK(found, result == MEP_ERR_REVOKED);
        pending.inbox.check_untouched(found);
      }
      COLL_EXPECT(found, MEP_ERR_REVOKED, mep_barrier(comm, nullptr));
      expect_sum_of_ranks(comm, sum_of_all(3), found);
      shift(rank, 20, comm, found);
      expect_sum_of_ranks(comm, sum_of_all(3), found);
      // The world's receive still waits.
      COLL_EXPECT(found, MEP_IN_PROGRESS, wait_in(&stays, 0));
      expect_sum_of_ranks(world, sum_of_all(3), found);
      COLL_OK(found, send_bytes(40, static_cast<uint64_t>(rank), (rank + 1) % 3, 7, world));
      COLL_OK(found, finish(&stays));
      beside.check(40, static_cast<uint64_t>((rank + 2) % 3), found);
      COLL_OK(found, mep_comm_destroy(comm));
    });
  }
}

// A probe that waits ends, too: rank 1 revokes when rank 0 is about to probe.
void revoked_while_probing(void**) {
  require_on_rank_threads(2, 0, [&](int rank, mep_comm_t comm, Report& found) {
    COLL_OK(found, mep_barrier(comm, nullptr));
    if (rank == 0) {
      COLL_OK(found, send_bytes(8, 1, 1, 3, comm));
      const Bounded bounded(found);
      COLL_EXPECT(found, MEP_ERR_REVOKED, mep_probe(1, 5, comm, nullptr));
    } else {
      expect_message(8, 1, 0, 3, comm, found);
      COLL_OK(found, mep_comm_revoke(comm));
    }
    COLL_EXPECT(found, MEP_ERR_REVOKED, mep_barrier(comm, nullptr));
    COLL_OK(found, mep_barrier(comm, nullptr));
  });
}

// Two in a row, with messages between them.
void revoked_again(uint32_t flags) {
  Stages stages;
  require_on_rank_threads(3, flags, [&](int rank, mep_comm_t comm, Report& found) {
    for (int turn = 0; turn < 4 && !found.bad(); ++turn) {
      Pending pending(rank, comm, found);
      stages.meet(turn, 3, found);
      if (rank == turn % 3) COLL_OK(found, mep_comm_revoke(comm));
      COLL_EXPECT(found, MEP_ERR_REVOKED,
                  mep_request_waitall(3, pending.requests, MEP_TIMEOUT_DEFAULT, nullptr, nullptr));
      COLL_EXPECT(found, MEP_ERR_REVOKED, mep_barrier(comm, nullptr));
      COLL_OK(found, mep_barrier(comm, nullptr));
      shift(rank, static_cast<uint64_t>(turn) * 50, comm, found);
      COLL_OK(found, mep_barrier(comm, nullptr));
    }
  });
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  (void)mep_test::test_seed();
  const CMUnitTest tests[] = {
      cmocka_unit_test(both<a_rank_aborts>), cmocka_unit_test(both<a_rank_leaves>),
      cmocka_unit_test(both<own_abort>),     cmocka_unit_test(both<revoked>),
      cmocka_unit_test(both<revoked_again>), cmocka_unit_test(revoked_while_probing),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

// A rank ends its part at a random point of a round in the expanded layout; the others go on, and what each of their
// operations says of itself must be true: counts, places and padding of complete rows alone, sums of the ranks that are there.
// It alone finds that a cut dispatch or a replay leaves wrong places.
// labels: gate threads tsan asan
#include "support/ep_expanded.hpp"
#include "support/ep_failing.hpp"

using namespace mep_test;

namespace {

void run_failures(uint32_t flags, mep_ep_loss_t on_loss, uint64_t first_seed) {
  fail_at_random_points<ExpandedRound>(flags, on_loss, first_seed, expanded_failing_case);
}

void mapped(void**) {
  run_failures(0, MEP_EP_LOSS_FAILS, 51);
}
void mapped_partial(void**) {
  run_failures(0, MEP_EP_LOSS_PARTIAL, 52);
}
void by_put_alone(void**) {
  run_failures(kPutOnly, MEP_EP_LOSS_FAILS, 53);
}
void by_put_alone_partial(void**) {
  run_failures(kPutOnly, MEP_EP_LOSS_PARTIAL, 54);
}

constexpr int kGone = 1;

// The result of a combine, which lacks terms where a token is routed to the rank that is gone: of this rank, or of any that is
// there if all have one result.
mep_result_t expected_result(const ExpandedCase& c, int rank, uint64_t round) {
  bool lacks = false;
  for (int source = 0; source < c.ranks; ++source) {
    if (source == kGone || (source != rank && c.on_loss != MEP_EP_LOSS_UNIFORM)) continue;
    for (const int64_t place : c.routing(source, round)) {
      lacks = lacks || (place >= 0 && place / c.local_experts == kGone);
    }
  }
  if (!lacks) return MEP_SUCCESS;
  return c.on_loss == MEP_EP_LOSS_PARTIAL ? MEP_PARTIAL : MEP_ERR_PEER_FAILED;
}

void rows_and_sums_without_one(const ExpandedCase& c, ExpandedRound& buffer, mep_result_t expected,
                               Report& report) {
  std::vector<uint8_t> gone(static_cast<size_t>(c.ranks), 0);
  gone[kGone] = 1;
  COLL_OK(report, buffer.dispatch(Halves::kBoth));
  buffer.check_received(gone);
  buffer.run_experts(gone);
  COLL_CHECK(report, buffer.combine(Halves::kBoth) == expected);
  buffer.check_combined(gone);
}

// The routing of a dispatch before the change cannot be replayed after it; that of one behind it can. A dispatch that only
// reports the change brings nothing.
void run_replays(uint32_t flags, mep_ep_loss_t on_loss) {
  for (const uint32_t alignment : {1u, 4u}) {
    ExpandedCase c;
    c.alignment = alignment;
    c.on_loss = on_loss;
    c.seed = mix(test_seed(), alignment);
    c.ranks = 3;
    c.local_experts = 3;
    c.experts = 9;
    c.top_k = 4;
    c.max_tokens = 9;
    c.hidden = 144;
    require_on_rank_threads(c.ranks, flags, [&](int rank, mep_comm_t comm, Report& report) {
      const mep_ep_config_t config = c.config();
      mep_ep_t ep = nullptr;
      COLL_OK(report, mep_ep_create(comm, &config, &ep));
      if (ep == nullptr) return;
      {
        ExpandedRound buffer(c, rank, ep, 0, report);
        for (uint64_t round = 0; round < 2; ++round) {
          if (round == 0) buffer.begin(round, false);
          if (round != 0) buffer.begin_replay(round, true);
          COLL_OK(report, buffer.dispatch(Halves::kBoth));
          buffer.check_received();
          buffer.run_experts();
          COLL_OK(report, buffer.combine(Halves::kBoth));
          buffer.check_combined();
        }
        // Until a peer has read them, rows of a combine end with the rank that gave them.
        COLL_OK(report, mep_barrier(comm, nullptr));
        if (rank == kGone) {
          COLL_OK(report, mep_comm_abort(comm));
        } else {
          COLL_EXPECT(report, MEP_ERR_PEER_FAILED, mep_barrier(comm, nullptr));
          if (on_loss == MEP_EP_LOSS_UNIFORM) {
            buffer.begin(5, true);
            COLL_CHECK(report, buffer.dispatch(Halves::kBoth) == MEP_ERR_PEER_FAILED);
            buffer.check_received(std::vector<uint8_t>(static_cast<size_t>(c.ranks), 1));
          }
          buffer.begin_replay(2, false);
          COLL_CHECK(report, buffer.dispatch(Halves::kBoth) == MEP_ERR_INVALID_ARGUMENT);
          const mep_result_t expected = expected_result(c, rank, 3);
          buffer.begin(3, true);
          rows_and_sums_without_one(c, buffer, expected, report);
          buffer.begin_replay(4, false);
          rows_and_sums_without_one(c, buffer, expected, report);
        }
      }
      COLL_OK(report, mep_ep_destroy(ep));
    });
  }
}

void replays_mapped(void**) {
  run_replays(0, MEP_EP_LOSS_FAILS);
}
void replays_uniform(void**) {
  run_replays(0, MEP_EP_LOSS_UNIFORM);
}
void replays_by_put_alone_partial(void**) {
  run_replays(kPutOnly, MEP_EP_LOSS_PARTIAL);
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {cmocka_unit_test(mapped),
                              cmocka_unit_test(mapped_partial),
                              cmocka_unit_test(by_put_alone),
                              cmocka_unit_test(by_put_alone_partial),
                              cmocka_unit_test(replays_mapped),
                              cmocka_unit_test(replays_uniform),
                              cmocka_unit_test(replays_by_put_alone_partial)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

// Lost ranks and the windows that adapters have registered, which a model plays: the windows keep their pages, and a rank whose
// adapter does not stop the pair to a lost rank leaves.
// labels: gate threads tsan asan
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "support/queued_ranks.hpp"

using namespace mep_test;

namespace {

void on_ranks(bool by_adapters, int ranks, const RankBody& body) {
  mep::test::ModelFabric fabric;
  fabric.waits_for_peers = true;
  model_fabric() = by_adapters ? &fabric : nullptr;
  require_on_rank_threads(ranks, 0, body);
  model_fabric() = nullptr;
}

// This is what the loss of a process of this host that may still run would do. While nobody posts.
void give_new_pages(mep_comm_t comm, std::atomic<int>* quiet, Report& report) {
  const mep::CommIdentity& identity = comm->comm->identity();
  const auto size = static_cast<int>(identity.slots().size());
  const auto meet = [&](int count) {
    quiet->fetch_add(1);
    (void)wait_until(report, "quiet", [&] { return quiet->load() >= count * size; });
  };
  const uint32_t other = identity.slots()[(identity.rank() + 1) % identity.slots().size()];
  mep::AwaitedWindows awaited;
  mep::membership::SlotSet unreached;
  meet(1);
  COLL_CHECK(report, identity.world().call([&] {
    identity.world().windows().renew(other, {}, &awaited, &unreached);
  }));
  meet(2);
}

void windows_of_adapters_keep_their_pages(void**) {
  for (const bool by_adapters : {false, true}) {
    std::atomic<int> quiet{0};
    on_ranks(by_adapters, 3, [&](int rank, mep_comm_t comm, Report& report) {
      RankNic nic(static_cast<uint32_t>(rank), report);
      COLL_OK(report, nic.start());
      Pairs pairs(comm, &nic, 16, report);
      COLL_OK(report, pairs.make(0x5a'0000));
      COLL_OK(report, mep_barrier(comm, nullptr));
      if (report.bad()) return;
      give_new_pages(comm, &quiet, report);
      COLL_CHECK(report, pairs.has_new_pages() != by_adapters);
      run_traffic(&pairs, 5, all);
      COLL_OK(report, mep_barrier(comm, nullptr));
    });
  }
}

// --- An adapter that does not answer -----------------------------------------------------------------

constexpr int kRanks = 5;
constexpr uint32_t kHangs = 0;
constexpr uint32_t kVictim = kRanks - 1;
bool among_others(uint32_t from, uint32_t to) {
  const auto is_other = [](uint32_t rank) { return rank != kHangs && rank != kVictim; };
  return from != to && is_other(from) && is_other(to);
}

// Its calls say why it has left, within about the second that it waits for the adapter.
void expect_end(mep_comm_t comm, Report& report) {
  mep_result_t result = MEP_SUCCESS;
  (void)wait_until(report, "its end", [&] {
    result = mep_barrier(comm, nullptr);
    return result != MEP_SUCCESS && result != MEP_ERR_PEER_FAILED;
  });
  const char* text = mep_last_error();
  if (result != MEP_ERR_SYSTEM || std::strstr(text, "did not stop a queue pair") == nullptr) {
    report.add("%d: %s", result, text);
  }
}

// The others go on without both.
void expect_life(mep_comm_t comm, Pairs* pairs, Report& report) {
  (void)wait_until(report, "the others' view", [&] {
    int32_t live = 0;  // before a barrier, which fails if the view has changed since
    COLL_OK(report, mep_comm_live_count(comm, &live));
    return mep_barrier(comm, nullptr) == MEP_SUCCESS && live == kRanks - 2;
  });
  if (!report.bad()) run_traffic(pairs, 5, among_others);
}

// The adapter of one rank does not come back from the command that stops a lost rank's pair, until all is over.
void a_rank_whose_adapter_hangs_leaves(void**) {
  std::atomic<int> ready{0}, over{0};
  std::atomic<bool> hangs{true};
  on_ranks(true, kRanks, [&](int number, mep_comm_t comm, Report& report) {
    const auto rank = static_cast<uint32_t>(number);
    RankNic nic(rank, report);
    if (rank == kHangs) nic.hold_stops(&hangs);
    COLL_OK(report, nic.start());
    Pairs pairs(comm, &nic, 16, report);
    COLL_OK(report, pairs.make(0x5b'0000));
    COLL_OK(report, mep_barrier(comm, nullptr));
    ready.fetch_add(1);
    (void)wait_until(report, "all", [&] { return ready == kRanks; });
    if (rank == kVictim) {
      COLL_OK(report, mep_comm_abort(comm));
    } else if (rank == kHangs) {
      expect_end(comm, report);
    } else {
      expect_life(comm, &pairs, report);
    }
    over.fetch_add(1);
    (void)wait_until(report, "the others", [&] { return over == kRanks; });
    hangs = false;
  });
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  setenv("MEP_LOG", "error", 0);
  const CMUnitTest tests[] = {cmocka_unit_test(windows_of_adapters_keep_their_pages),
                              cmocka_unit_test(a_rank_whose_adapter_hangs_leaves)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

// labels: quick threads tsan
// Roots' contributions that are longer than an eager slot and go into long areas, where no ranks map each other. A root
// waits for nobody until its areas are used up.
#include <cstring>

#include "core/coll/eager_ring.hpp"
#include "support/coll_hosts.hpp"
#include "support/coll_numbered.hpp"
#include "support/coll_sequence.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)
using mep::EagerRing;

// One host whose ranks do not map each other, or a host for each rank.
struct World {
  const char* placement;
  uint32_t flags;
};
constexpr World kWorlds[] = {{"00", kPutOnly}, {"000", kPutOnly},    {"00000", kPutOnly}, {"01", 0},
                             {"0123", 0},      {"000111", kPutOnly}, {"0011", kPutOnly}};

Case long_case(RandomStream& random, int size) {
  constexpr size_t kEdges[] = {5, EagerRing::kSentPayloadBytes, EagerRing::kSentPayloadBytes + 1,
                               EagerRing::kLongBytes, EagerRing::kLongBytes + 1};
  Case c;
  c.kind = random.one_in(2) ? Kind::k_broadcast : Kind::k_scatter;
  c.dtype = MEP_UINT8;
  const size_t bytes = random.one_in(2) ? kEdges[random.below(std::size(kEdges))]
                                        : random.below(EagerRing::kLongBytes + 1);
  c.count = c.kind == Kind::k_scatter ? bytes / static_cast<size_t>(size) : bytes;
  c.seed = random.bits();
  c.in_place = random.one_in(2);
  return c;
}

// Roots stay for a while, so that one of them uses its areas again and again, and no rank waits for all meanwhile.
void test_streams(void**) {
  for (const World& world : kWorlds) {
    const int size = static_cast<int>(strlen(world.placement));
    const uint64_t seed = mix(test_seed(), static_cast<uint64_t>(size) + world.flags);
    enable_delays(seed, 16);
    Report report;
    const auto body = [&](int rank, mep_comm_t comm, Report& found) {
      RandomStream shared(seed);
      const size_t operations = slice(kIsSanitized ? 25 : 75, 5000);
      int root = 0;
      for (size_t i = 0; i < operations && !found.bad(); ++i) {
        if (shared.one_in(12)) root = static_cast<int>(shared.below(static_cast<uint64_t>(size)));
        Case c = long_case(shared, size);
        c.root = root;
        CaseRun run(c, rank, size);
        COLL_OK(found, run.run(comm));
        if (!found.bad()) run.check(found);
      }
    };
    with_placement(world.placement, report, body, world.flags);
    enable_delays(0, 0);
    report.require_clean();
  }
}

// Rank `ending` ends its part among broadcasts of rank 0, which may be some of them ahead of the others. They get what
// they lack of those that it has completed.
void end_one(const World& world, int ending, int after, uint64_t seed) {
  constexpr int kAfterwards = 20;
  constexpr size_t kWords = 40'000 / sizeof(uint64_t);
  const int size = static_cast<int>(strlen(world.placement));
  std::vector<Ending> endings(static_cast<size_t>(size));
  enable_delays(seed, 8);
  Report report;
  const auto body = [&](int rank, mep_comm_t comm, Report& found) {
    Ending& mine = endings[static_cast<size_t>(rank)];
    int left = kAfterwards;
    for (int i = 0; left > 0 && !found.bad(); ++i) {
      if (rank == ending && i == after) {
        COLL_OK(found, mep_comm_abort(comm));
        return;
      }
      const std::vector<uint64_t> input(kWords, static_cast<uint64_t>(i) + 1);
      std::vector<uint64_t> output(kWords);
      const mep_result_t result =
          mep_broadcast(input.data(), output.data(), kWords, MEP_UINT64, 0, comm, nullptr);
      if (result == MEP_ERR_PEER_FAILED) {
        ++mine.failures;
        if (ending == 0) return;
        continue;
      }
      COLL_OK(found, result);
      if (mine.failures == 0) {
        ++mine.successes;
      } else {
        --left;
      }
      if (output != input) found.add("call %d on rank %d has other data", i, rank);
    }
  };
  with_placement(world.placement, report, body, world.flags);
  enable_delays(0, 0);
  report.require_clean();
  require_same_endings(endings.data(), size, ending);
}

void test_a_rank_ends(void**) {
  RandomStream random(test_seed());
  const size_t rounds = slice(kIsSanitized ? 1 : 2, 100);
  for (size_t round = 0; round < rounds; ++round) {
    for (const World& world : kWorlds) {
      const int size = static_cast<int>(strlen(world.placement));
      for (int ending = 0; ending < size; ++ending) {
        if (size == 2 && ending == 0) continue;
        end_one(world, ending, static_cast<int>(random.below(30)), random.bits());
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(test_streams),
      cmocka_unit_test(test_a_rank_ends),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

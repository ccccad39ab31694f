// labels: quick threads tsan asan
// Communicators that only their members make: overlapping ones at the same time, in the order of the list,
// after one that did not come, and what is refused.
#include <numeric>

#include "core/api/api_guard.hpp"
#include "support/coll_ranks.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

using Ranks = std::vector<int32_t>;

mep_result_t create(mep_comm_t comm, const Ranks& ranks, const std::string& name,
                    mep_comm_t* child) {
  return mep_comm_create_from_ranks(comm, ranks.data(), static_cast<int32_t>(ranks.size()),
                                    name.c_str(), child);
}

// The members' places, and what each has of the others.
void check_members(mep_comm_t comm, const Ranks& ranks, int world_rank, Report& report) {
  int32_t rank = -1;
  int32_t size = -1;
  COLL_OK(report, mep_comm_rank(comm, &rank));
  COLL_OK(report, mep_comm_size(comm, &size));
  COLL_CHECK(report, static_cast<size_t>(size) == ranks.size());
  COLL_CHECK(report, ranks[static_cast<size_t>(rank)] == world_rank);
  Ranks found(ranks.size());
  const int32_t own = world_rank;
  COLL_OK(report, mep_allgather(&own, found.data(), 1, MEP_INT32, comm, nullptr));
  COLL_CHECK(report, found == ranks);
}

bool has(const Ranks& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// Rank 1 is in both groups, and makes them on two threads; the others are in one.
void test_overlap(void**) {
  for (size_t round = 0; round < slice(5, 200); ++round) {
    require_on_rank_threads(4, 0, [&](int rank, mep_comm_t world, Report& report) {
      mep_comm_t parents[2] = {};
      for (mep_comm_t& parent : parents) COLL_OK(report, mep_comm_dup(world, &parent));
      const Ranks groups[2] = {{2, 1, 0}, {1, 3}};
      on_threads(2, [&](int which) {
        if (!has(groups[which], rank)) return;
        for (int i = 0; i < 3; ++i) {
          mep_comm_t child = nullptr;
          COLL_OK(report,
                  create(parents[which], groups[which], "group " + std::to_string(i), &child));
          if (child == nullptr) return;
          check_members(child, groups[which], rank, report);
          const char* name = nullptr;
          COLL_OK(report, mep_comm_name(child, &name));
          COLL_CHECK(report, name == "group " + std::to_string(i));
          COLL_OK(report, mep_comm_destroy(child));
        }
      });
      for (const mep_comm_t parent : parents) COLL_OK(report, mep_comm_destroy(parent));
    });
  }
}

// Children of a comm whose ranks are not the world's, and one rank alone. The parent may go before.
void test_of_a_child(void**) {
  require_on_rank_threads(4, 0, [](int rank, mep_comm_t world, Report& report) {
    mep_comm_t reversed = nullptr;
    COLL_OK(report, mep_comm_split(world, 0, -rank, &reversed));
    if (reversed == nullptr) return;
    mep_comm_t alone = nullptr;
    COLL_OK(report, create(reversed, {3 - rank}, "alone", &alone));
    mep_comm_t pair = nullptr;
    // Ranks 0 and 3 of the parent: 3 and 0 of the world.
    if (rank == 0 || rank == 3) COLL_OK(report, create(reversed, {0, 3}, "pair", &pair));
    COLL_OK(report, mep_comm_destroy(reversed));
    if (alone != nullptr) {
      check_members(alone, {rank}, rank, report);
      COLL_OK(report, mep_comm_destroy(alone));
    }
    if (pair != nullptr) {
      check_members(pair, {3, 0}, rank, report);
      COLL_OK(report, mep_comm_destroy(pair));
    }
  });
}

void test_refused(void**) {
  require_on_rank_threads(2, 0, [](int rank, mep_comm_t world, Report& report) {
    mep_comm_t child = nullptr;
    const Ranks both{0, 1};
    const auto refused = [&](mep_result_t result) {
      COLL_EXPECT(report, MEP_ERR_INVALID_ARGUMENT, result);
      COLL_CHECK(report, child == nullptr);
    };
    refused(mep_comm_create_from_ranks(nullptr, both.data(), 2, "a", &child));
    refused(mep_comm_create_from_ranks(world, nullptr, 2, "a", &child));
    refused(mep_comm_create_from_ranks(world, both.data(), 0, "a", &child));
    refused(mep_comm_create_from_ranks(world, both.data(), 2, nullptr, &child));
    refused(create(world, both, "", &child));
    refused(create(world, both, std::string(64, 'x'), &child));
    refused(create(world, {0, 1, 2}, "a", &child));
    refused(create(world, {-1, 0, 1}, "a", &child));
    refused(create(world, {0, 1, 0}, "a", &child));
    refused(create(world, {1 - rank}, "a", &child));
    COLL_EXPECT(report, MEP_ERR_INVALID_ARGUMENT,
                mep_comm_create_from_ranks(world, both.data(), 2, "a", nullptr));
    COLL_OK(report, create(world, both, std::string(63, 'x'), &child));
    if (child == nullptr) return;
    check_members(child, both, rank, report);
    COLL_OK(report, mep_comm_destroy(child));
    child = nullptr;
    refused(create(world, both, std::string(63, 'x'), &child));
    // Other ranks, or the same in another order, are another communicator.
    COLL_OK(report, create(world, {1, 0}, std::string(63, 'x'), &child));
    COLL_OK(report, mep_comm_destroy(child));
    COLL_OK(report, mep_barrier(world, nullptr));
  });
}

// Rank 1 comes when rank 0 has given up: it is told at once, and both make another.
void test_late(void**) {
  require_on_rank_threads(2, 0, [](int rank, mep_comm_t world, Report& report) {
    const Ranks both{0, 1};
    mep_comm_t child = nullptr;
    if (rank == 0) {
      COLL_OK(report, mep_comm_set_timeout(world, 100));
      COLL_EXPECT(report, MEP_ERR_TIMEOUT, create(world, both, "first", &child));
      COLL_OK(report, mep_comm_set_timeout(world, 60'000));
    }
    COLL_OK(report, mep_barrier(world, nullptr));
    if (rank == 1) {
      const mep_result_t late = create(world, both, "first", &child);
      COLL_CHECK(report, late == MEP_ERR_PEER_FAILED || late == MEP_ERR_REVOKED);
    }
    COLL_CHECK(report, child == nullptr);
    COLL_OK(report, create(world, both, "second", &child));
    if (child == nullptr) return;
    check_members(child, both, rank, report);
    COLL_OK(report, mep_comm_destroy(child));
  });
}

// Rank 2 ends while the others wait for it: they learn of it, and go on without it. Either may be done with that
// before the other has reached its window.
void test_lost(void**) {
  for (int round = 0; round < 8; ++round) {
    require_on_rank_threads(3, 0, [](int rank, mep_comm_t world, Report& report) {
      if (rank == 2) {
        COLL_OK(report, mep_comm_abort(world));
        return;
      }
      mep_comm_t child = nullptr;
      COLL_EXPECT(report, MEP_ERR_PEER_FAILED, create(world, {0, 1, 2}, "all", &child));
      COLL_CHECK(report, child == nullptr);
      COLL_EXPECT(report, MEP_ERR_PEER_FAILED, create(world, {0, 1, 2}, "again", &child));
      COLL_OK(report, create(world, {0, 1}, "all", &child));
      if (child == nullptr) return;
      check_members(child, {0, 1}, rank, report);
      COLL_OK(report, mep_comm_destroy(child));
    });
  }
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  (void)mep_test::test_seed();
  const CMUnitTest tests[] = {cmocka_unit_test(test_overlap), cmocka_unit_test(test_of_a_child),
                              cmocka_unit_test(test_refused), cmocka_unit_test(test_late),
                              cmocka_unit_test(test_lost)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

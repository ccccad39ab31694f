// labels: quick threads tsan asan
// Communicators made by several threads at once, of each other, closed in any order, and used after the
// end of their world.
#include "core/api/api_guard.hpp"
#include "support/coll_ranks.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

constexpr int kSize = 3;

void sum_up(mep_comm_t comm, uint64_t expected, Report& report) {
  int32_t rank = 0;
  COLL_OK(report, mep_comm_rank(comm, &rank));
  const uint64_t own = uint64_t{1} << rank;
  uint64_t sum = 0;
  COLL_OK(report, mep_allreduce(&own, &sum, 1, MEP_UINT64, MEP_SUM, comm, nullptr));
  COLL_CHECK(report, sum == expected);
}

// A family of communicators, each split off one of the earlier ones, closed in an order of this rank's own.
void make_family(mep_comm_t root, int rank, uint64_t seed, Report& report) {
  RandomStream shared(seed);
  RandomStream own(mix(seed, static_cast<uint64_t>(rank) + 1));
  std::vector<mep_comm_t> family{root};
  for (int i = 0; i < 6 && !report.bad(); ++i) {
    const mep_comm_t parent = family[shared.below(family.size())];
    mep_comm_t child = nullptr;
    COLL_OK(report, mep_comm_split(parent, 0, rank, &child));
    if (child == nullptr) return;
    sum_up(child, (1u << kSize) - 1, report);
    family.push_back(child);
  }
  family.erase(family.begin());
  while (!family.empty()) {
    const size_t which = own.below(family.size());
    COLL_OK(report, mep_comm_destroy(family[which]));
    family.erase(family.begin() + static_cast<ptrdiff_t>(which));
  }
}

void test_families(void**) {
  const size_t rounds = slice(10, 500);
  for (size_t round = 0; round < rounds; ++round) {
    require_on_rank_threads(kSize, 0, [&](int rank, mep_comm_t world, Report& report) {
      mep_comm_t roots[2] = {};
      for (mep_comm_t& root : roots) COLL_OK(report, mep_comm_split(world, 0, rank, &root));
      if (report.bad()) return;
      // Names are the user's; these are the same, and so are those of what is split off.
      for (const mep_comm_t root : roots) COLL_OK(report, mep_comm_set_name(root, "same"));
      on_threads(2, [&](int which) {
        make_family(roots[which], rank, mix(test_seed() + round, static_cast<uint64_t>(which)),
                    report);
      });
      for (const mep_comm_t root : roots) COLL_OK(report, mep_comm_destroy(root));
    });
  }
}

// A rank that has left the world is told so by what is left of it, at once.
void test_after_the_world(void**) {
  require_on_rank_threads(kSize, 0, [](int rank, mep_comm_t world, Report& report) {
    mep_comm_t child = nullptr;
    COLL_OK(report, mep_comm_split(world, 0, rank, &child));
    if (child == nullptr) return;
    sum_up(child, (1u << kSize) - 1, report);
    world->comm->world().leave(true, mep::Deadline::after_ms(60'000));
    const uint64_t begun = mep::now_ns();
    COLL_EXPECT(report, MEP_ERR_ABORTED, mep_barrier(child, nullptr));
    mep_request_t request = nullptr;
    COLL_EXPECT(report, MEP_ERR_ABORTED, mep_ibarrier(child, nullptr, &request));
    mep_comm_t made = nullptr;
    COLL_EXPECT(report, MEP_ERR_ABORTED, mep_comm_split(child, 0, 0, &made));
    COLL_OK(report, mep_comm_destroy(child));
    COLL_CHECK(report, mep::now_ns() - begun < 30'000'000'000);
  });
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  (void)mep_test::test_seed();
  const CMUnitTest tests[] = {cmocka_unit_test(test_families),
                              cmocka_unit_test(test_after_the_world)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

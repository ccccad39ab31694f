// labels: quick tcp
// Large collectives over several hosts, as processes: on each "host" by shared memory, between hosts by
// TCP. Results, and a rank that is killed inside a call, at points of its part for others.
#include "base/failpoint.hpp"
#include "support/coll_matrix.hpp"
#include "support/coll_numbered.hpp"
#include "support/shared_memory.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

void with_placed_processes(const std::string& placement, Report& report, const RankBody& body,
                           const std::function<bool(int rank, int status)>& expected = {}) {
  hosts_pattern() = placement;
  with_rank_processes(static_cast<int>(placement.size()), patient_config(0), report, body,
                      expected);
  hosts_pattern().clear();
}

void test_results(void**) {
  for (const std::string placement : {"0011", "00001111", "0122"}) {
    const int size = static_cast<int>(placement.size());
    Report report;
    with_placed_processes(placement, report, [&](int rank, mep_comm_t comm, Report& found) {
      std::vector<Case> kinds = all_kinds();
      std::erase_if(kinds, [](const Case& c) { return !c.facts().has_data(); });
      RandomStream random(mix(test_seed(), static_cast<uint64_t>(size)));
      for (size_t left = slice(12, 400); left > 0 && !found.bad(); --left) {
        Case c = kinds[random.below(kinds.size())];
        c.count = (20'000 + random.below(600'000)) / element_bytes(c.dtype);
        c.root = static_cast<int>(random.below(static_cast<uint64_t>(size)));
        c.in_place = random.one_in(2);
        c.seed = random.bits();
        run_case(c, rank, size, comm, random.one_in(2), found);
      }
    });
    report.require_clean();
  }
}

void kill_at(const std::string& placement, const std::string& point, int ending, uint64_t passage) {
  const int size = static_cast<int>(placement.size());
  const SharedMemory<Ending> endings = make_shared_memory<Ending>(placement.size());
  const std::string arming = point + ":" + std::to_string(passage) + "=kill";
  Report report;
  with_placed_processes(
      placement, report,
      [&](int rank, mep_comm_t comm, Report& found) {
        if (rank == ending) COLL_OK(found, mep::failpoint_arm(arming));
        CallRow{rank, size, ending, endings.get() + rank}.run(comm, found);
      },
      [=](int rank, int status) {
        return rank == ending && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
      });
  if (report.bad()) report.add("hosts %s, rank %d, %s", placement.c_str(), ending, arming.c_str());
  report.require_clean();
  require_same_endings(endings.get(), size, ending);
}

void test_a_rank_is_killed(void**) {
  constexpr const char* kPoints[] = {"hosts send",   "hosts publish", "hosts reduce", "hosts pass",
                                     "finish relay", "hosts read",    "large finish", "put half"};
  RandomStream random(test_seed());
  for (size_t round = slice(1, 50); round > 0; --round) {
    for (const std::string placement : {"0011", "000111"}) {
      const int each = static_cast<int>(placement.size()) / 2;
      for (const char* point : kPoints) {
        // Only leaders pass this one.
        const bool leader = std::string(point) == "finish relay";
        const int host = static_cast<int>(random.below(2));
        const int index = leader ? 0 : static_cast<int>(random.below(static_cast<uint64_t>(each)));
        kill_at(placement, point, host * each + index, 1 + random.below(9));
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(test_results),
      cmocka_unit_test(test_a_rank_is_killed),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

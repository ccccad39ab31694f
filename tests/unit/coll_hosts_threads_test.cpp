// labels: quick threads tsan
// Small collectives over several hosts: how many transfers go between them, that none waits for another, and
// that a leader's end is settled like any other. Ranks are threads; "hosts" reach each other by put and
// signal, which are counted and can be kept back between them. Results of all kinds over hosts are the
// part of the other tests of collectives, with --hosts.
#include <atomic>
#include <barrier>
#include <chrono>

#include "support/coll_hosts.hpp"
#include "support/coll_matrix.hpp"
#include "support/coll_numbered.hpp"
#include "support/coll_sequence.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)
using mep::TestNetwork;

constexpr const char* kPlacements[] = {"01", "0011", "00001111", "01010101", "0122", "00112233"};

// Small operations of all kinds, in place and not.
std::vector<Case> small_cases(int size) {
  return {
      {Kind::k_barrier},
      {Kind::k_allreduce, MEP_FLOAT32, MEP_SUM, 2, 0, false, 1},
      {Kind::k_allreduce, MEP_BFLOAT16, MEP_AVG, 2044, 0, true, 2},
      {Kind::k_allgather, MEP_UINT8, MEP_SUM, 4088, 0, false, 3},
      {Kind::k_allgather, MEP_INT64, MEP_SUM, 0, 0, true, 4},
      {Kind::k_broadcast, MEP_INT32, MEP_SUM, 700, 0, false, 5},
      {Kind::k_broadcast, MEP_UINT8, MEP_SUM, 4088, size - 1, false, 6},
      {Kind::k_alltoall, MEP_UINT8, MEP_SUM, 511, 0, false, 7},
      {Kind::k_reduce_scatter, MEP_FLOAT16, MEP_SUM, 101, 0, true, 8},
      {Kind::k_scatter, MEP_INT16, MEP_SUM, 100, size - 1, false, 9},
      {Kind::k_gather, MEP_INT32, MEP_SUM, 99, size - 1, true, 10},
      {Kind::k_reduce, MEP_INT64, MEP_SUM, 77, 0, false, 11},
  };
}

// One for each ordered pair of hosts; where only the root gives, from its host alone.
uint64_t optimum(const Case& c, size_t hosts) {
  return (c.facts().only_root_gives() ? 1 : hosts) * (hosts - 1);
}

void test_transfers_are_counted(void**) {
  for (const std::string placement : kPlacements) {
    const int size = static_cast<int>(placement.size());
    const size_t hosts = hosts_in(placement);
    Report report;
    std::barrier together(size);
    with_placement(placement, report, [&](int rank, mep_comm_t comm, Report& found) {
      for (const Case& c : small_cases(size)) {
        COLL_OK(found, mep_barrier(comm, nullptr));
        together.arrive_and_wait();
        if (rank == 0) TestNetwork::clear_counts();
        together.arrive_and_wait();
        run_counted(c, false, rank, size, comm, together, found);
        together.arrive_and_wait();
        const uint64_t best = optimum(c, hosts);
        if (rank == 0 && (TestNetwork::signals() != best || TestNetwork::puts() > best)) {
          found.add("%s on hosts %s: %llu puts and %llu signals, not %llu", describe(c).c_str(),
                    placement.c_str(), static_cast<unsigned long long>(TestNetwork::puts()),
                    static_cast<unsigned long long>(TestNetwork::signals()),
                    static_cast<unsigned long long>(best));
        }
        together.arrive_and_wait();
      }
    });
    report.require_clean();
  }
}

// Many broadcasts in a row: the words that say how far everybody is add at most one transfer a pair
// of hosts to every second operation.
void test_streams_are_counted(void**) {
  const std::string placement = "00112233";
  constexpr int kSize = 8;
  constexpr uint64_t kOperations = 64;
  const size_t hosts = hosts_in(placement);
  Report report;
  std::barrier together(kSize);
  with_placement(placement, report, [&](int rank, mep_comm_t comm, Report& found) {
    COLL_OK(found, mep_barrier(comm, nullptr));
    together.arrive_and_wait();
    if (rank == 0) TestNetwork::clear_counts();
    together.arrive_and_wait();
    for (uint64_t i = 0; i < kOperations; ++i) {
      const Case c{
          Kind::k_broadcast, MEP_INT32, MEP_SUM, 10, static_cast<int>(i / 9 % kSize), false, i};
      run_case(c, rank, kSize, comm, false, found);
    }
    together.arrive_and_wait();
    const uint64_t limit = kOperations * (hosts - 1) + kOperations / 4 * hosts * (hosts - 1);
    if (rank == 0) COLL_CHECK(found, TestNetwork::signals() <= limit);
    together.arrive_and_wait();
  });
  report.require_clean();
}

// All transfers of an operation are sent while none has been delivered, and nothing follows: what is
// awaited goes over one hop between hosts.
void test_one_hop(void**) {
  for (const std::string placement : kPlacements) {
    const int size = static_cast<int>(placement.size());
    const size_t hosts = hosts_in(placement);
    Report report;
    std::barrier together(size + 1);
    std::thread network([&] {
      for (const Case& c : small_cases(size)) {
        together.arrive_and_wait();  // all have left the barrier before
        TestNetwork::clear_counts();
        TestNetwork::hold();
        together.arrive_and_wait();
        const uint64_t best = optimum(c, hosts);
        for (int i = 0; i < 60'000 && !report.bad() && TestNetwork::held() < best; ++i)
          pause_us(1000);
        if (TestNetwork::held() != best) {
          report.add("%s on hosts %s: %zu transfers sent before one came, not %llu",
                     describe(c).c_str(), placement.c_str(), TestNetwork::held(),
                     static_cast<unsigned long long>(best));
        }
        TestNetwork::release();
        together.arrive_and_wait();
        if (TestNetwork::signals() != best) {
          report.add("%s on hosts %s: more followed", describe(c).c_str(), placement.c_str());
        }
        together.arrive_and_wait();
      }
    });
    with_placement(placement, report, [&](int rank, mep_comm_t comm, Report& found) {
      for (const Case& c : small_cases(size)) {
        COLL_OK(found, mep_barrier(comm, nullptr));
        together.arrive_and_wait();
        together.arrive_and_wait();
        run_case(c, rank, size, comm, false, found);
        together.arrive_and_wait();
        together.arrive_and_wait();
      }
    });
    network.join();
    report.require_clean();
  }
}

// On one host whose ranks do not map each other: what goes to the relay, and what comes back. From where
// the comm is made on, each rank counts as being on a host of its own, so that all is counted.
uint64_t relay_messages(const Case& c, uint64_t size) {
  if (c.facts().only_root_gives()) return size - 1;
  return size == 2 ? 2 : 2 * (size - 1);
}

// A large one that fits two sections: each entry goes behind data for that rank, and stands for its "posted". Behind
// them goes "finished"; to or from a root that is the relay, the entries of those that give or have got, and its word.
uint64_t large_messages(const Case& c, uint64_t size) {
  if (c.facts().is_rooted) return (c.facts().only_root_gives() ? 3 : 2) * (size - 1);
  const uint64_t pairs = size * (size - 1);
  const uint64_t reduced = c.kind == Kind::k_allreduce ? pairs : 0;
  return pairs + reduced + relay_messages(c, size);
}

// A rank that has waited so long for its root shows what it has called, and the relay passes it on. Sanitizers and
// loaded machines make ranks wait; elsewhere the counts are exact.
constexpr std::chrono::milliseconds kLongWait{20};

uint64_t shown_messages(const Case& c, uint64_t size) {
  return c.facts().is_rooted ? 2 * (size - 1) : 0;
}

// The most bytes that each rank of so many gives in an allgather through the relay; two ranks have none.
size_t most_relayed(size_t size) {
  return size == 2 ? 16384 : 32768 / size;
}

void test_relay_is_counted(void**) {
  for (const int size : {2, 3, 4, 8}) {
    if (kIsSanitized && size != 3 && size != 4) continue;
    Report report;
    std::barrier together(size);
    std::atomic<bool> waited_long = false;
    hosts_pattern() = "0";
    with_rank_threads(
        size, patient_config(kPutOnly), report, [&](int rank, mep_comm_t comm, Report& found) {
          std::vector<Case> cases = small_cases(size);
          const size_t relayed = most_relayed(static_cast<size_t>(size));
          cases.push_back({Kind::k_allgather, MEP_UINT8, MEP_SUM, relayed, 0, false, 7});
          cases.push_back({Kind::k_broadcast, MEP_UINT8, MEP_SUM, 100'000, 0, false, 7});
          cases.push_back({Kind::k_scatter, MEP_UINT8, MEP_SUM, 16384, size - 1, false, 7});
          const size_t first_large = cases.size();
          cases.push_back({Kind::k_allgather, MEP_UINT8, MEP_SUM, relayed + 1, 0, false, 7});
          cases.push_back({Kind::k_allgather, MEP_UINT8, MEP_SUM, 100'000, 0, false, 7});
          cases.push_back({Kind::k_alltoall, MEP_UINT8, MEP_SUM, 100'000, 0, false, 7});
          cases.push_back({Kind::k_allreduce, MEP_FLOAT32, MEP_SUM, 25'000, 0, false, 7});
          cases.push_back({Kind::k_gather, MEP_UINT8, MEP_SUM, 100'000, 0, false, 7});
          cases.push_back({Kind::k_reduce, MEP_FLOAT32, MEP_SUM, 25'000, 0, false, 7});
          cases.push_back({Kind::k_scatter, MEP_UINT8, MEP_SUM, 100'000, 0, false, 7});
          for (const Case& c : cases) {
            COLL_OK(found, mep_barrier(comm, nullptr));
            together.arrive_and_wait();
            if (rank == 0) {
              std::vector<uint32_t> apart;
              for (int each = 0; each < size; ++each) apart.push_back(static_cast<uint32_t>(each));
              TestNetwork::enable(apart);
              waited_long = false;
            }
            together.arrive_and_wait();
            const bool is_large = &c - cases.data() >= static_cast<ptrdiff_t>(first_large);
            const auto begun = std::chrono::steady_clock::now();
            run_counted(c, is_large, rank, size, comm, together, found);
            if (std::chrono::steady_clock::now() - begun > kLongWait) waited_long = true;
            together.arrive_and_wait();
            const auto ranks = static_cast<uint64_t>(size);
            const uint64_t shown = waited_long ? shown_messages(c, ranks) : 0;
            const uint64_t best = is_large ? large_messages(c, ranks) : relay_messages(c, ranks);
            const uint64_t most_puts = shown + (is_large ? 2 * ranks * (ranks - 1) : best);
            const uint64_t more = TestNetwork::signals() - best;
            if (rank == 0 && (more > shown || TestNetwork::puts() > most_puts)) {
              found.add("%s on %d ranks: %llu puts and %llu signals, not %llu", describe(c).c_str(),
                        size, static_cast<unsigned long long>(TestNetwork::puts()),
                        static_cast<unsigned long long>(TestNetwork::signals()),
                        static_cast<unsigned long long>(best));
            }
            together.arrive_and_wait();
          }
        });
    hosts_pattern().clear();
    report.require_clean();
  }
}

// Rank `ending` ends its part after some operations. The others see it at one and the same operation and
// go on; every result before and after names its contributors.
void end_one(const std::string& placement, int ending, int after, uint64_t seed) {
  const int size = static_cast<int>(placement.size());
  std::vector<Ending> endings(placement.size());
  enable_delays(seed, 8);
  Report report;
  with_placement(placement, report, [&](int rank, mep_comm_t comm, Report& found) {
    Ending& mine = endings[static_cast<size_t>(rank)];
    constexpr int kAfterwards = 20;
    int left = kAfterwards;
    for (int i = 0; left > 0 && !found.bad(); ++i) {
      if (rank == ending && i == after) {
        COLL_OK(found, mep_comm_abort(comm));
        return;
      }
      // One bit a rank and the number of the operation, so that a stale slot shows.
      const uint64_t input = uint64_t{1} << rank | static_cast<uint64_t>(i) << 32;
      std::vector<uint64_t> inputs(1 + static_cast<size_t>(i % 400), input);
      std::vector<uint64_t> outputs(inputs.size());
      const mep_result_t result = mep_allreduce(inputs.data(), outputs.data(), inputs.size(),
                                                MEP_UINT64, MEP_OR, comm, nullptr);
      if (mine.failures != 0) --left;
      if (result == MEP_ERR_PEER_FAILED) {
        ++mine.failures;
        continue;
      }
      COLL_CHECK(found, result == MEP_SUCCESS);
      if (mine.failures == 0) ++mine.successes;
      uint64_t everybody = (uint64_t{1} << size) - 1;
      if (mine.failures != 0) everybody &= ~(uint64_t{1} << ending);
      for (const uint64_t output : outputs) {
        // Calls are counted together: a failed one counts on all.
        if (output == (everybody | static_cast<uint64_t>(i) << 32)) continue;
        found.add("call %d on rank %d: 0x%llx", i, rank, static_cast<unsigned long long>(output));
        return;
      }
    }
  });
  enable_delays(0, 0);
  report.require_clean();
  require_same_endings(endings.data(), size, ending);
}

void test_a_rank_ends(void**) {
  RandomStream random(test_seed());
  const size_t rounds = slice(2, 200);
  for (size_t round = 0; round < rounds; ++round) {
    for (const std::string placement : {"0011", "00001111", "0122"}) {
      for (int ending = 0; ending < static_cast<int>(placement.size()); ++ending) {
        end_one(placement, ending, static_cast<int>(random.below(30)), random.bits());
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(test_transfers_are_counted),
      cmocka_unit_test(test_streams_are_counted),
      cmocka_unit_test(test_one_hop),
      cmocka_unit_test(test_relay_is_counted),
      cmocka_unit_test(test_a_rank_ends),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

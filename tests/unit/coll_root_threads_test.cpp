// labels: quick threads tsan
// Large gathers, reductions and scatters that the word of their root ends, where the ranks of a host do not map each
// other. A rank ends in the middle of one: all others end the same call by it, and who succeeds has the right data.
#include "support/coll_hosts.hpp"
#include "support/coll_numbered.hpp"
#include "support/coll_sequence.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

// The call of that number: each word names the call, the rank that gives it and the block.
struct Call {
  Call(int number, int rank, int size, int first_live, uint64_t seed)
      : kind(kKinds[mix(seed, static_cast<uint64_t>(number)) % std::size(kKinds)]),
        root(first_live) {
    const auto ranks = static_cast<size_t>(size);
    const auto own = static_cast<uint32_t>(rank);
    const mep::OperationFacts& facts = mep::facts_of(kind);
    count = 600 + mix(seed, 1000 + static_cast<uint64_t>(number)) % 12'000;
    for (size_t block = 0; block < facts.send_blocks(ranks); ++block) {
      const size_t of = facts.gives_each_a_block() ? block : 0;
      given.insert(given.end(), count, word(number, rank, of));
    }
    if (facts.gets(own, static_cast<uint32_t>(root))) {
      gotten.resize(count * facts.receive_blocks(ranks));
    }
  }
  static uint64_t word(int number, int rank, size_t block) {
    return uint64_t{1} << rank | static_cast<uint64_t>(block) << 16 |
           static_cast<uint64_t>(number) << 32;
  }
  mep_result_t start(mep_comm_t comm, mep_request_t* request) {
    const mep::OperationCall call{given.data(), gotten.data(), count, MEP_UINT64, MEP_OR, root};
    return mep::start_collective(kind, call, comm, nullptr, request);
  }
  // `absent`: the rank that has ended, -1: none.
  void check(int number, int rank, int size, int absent, Report& found) const {
    for (size_t i = 0; i < gotten.size(); ++i) {
      const auto source = static_cast<int>(i / count);
      uint64_t expected = 0;
      if (kind == mep::Collective::k_scatter) {
        expected = word(number, root, static_cast<size_t>(rank));
      } else if (kind == mep::Collective::k_gather) {
        expected = source == absent ? 0 : word(number, source, 0);
      } else {
        for (int each = 0; each < size; ++each) {
          if (each != absent) expected |= word(number, each, 0);
        }
      }
      if (gotten[i] == expected) continue;
      return found.add("call %d (%s) on rank %d of %d, word %zu: 0x%llx", number,
                       mep::facts_of(kind).name, rank, size, i,
                       static_cast<unsigned long long>(gotten[i]));
    }
  }

  static constexpr mep::Collective kKinds[] = {mep::Collective::k_gather, mep::Collective::k_reduce,
                                               mep::Collective::k_scatter};
  mep::Collective kind;
  int root;
  size_t count = 0;
  std::vector<uint64_t> given;
  std::vector<uint64_t> gotten;
};

// Calls in a row until one fails, and some more.
void run_row(int rank, int size, int ending, uint64_t seed, Ending& mine, mep_comm_t comm,
             Report& found) {
  constexpr int kAfterwards = 12;
  int left = kAfterwards;
  for (int i = 0; left > 0 && !found.bad(); ++i) {
    const bool ended = mine.failures != 0;
    Call call(i, rank, size, ended && ending == 0 ? 1 : 0, seed);
    mep_request_t request = nullptr;
    COLL_OK(found, call.start(comm, &request));
    const mep_result_t result = mep_request_wait(&request, MEP_TIMEOUT_DEFAULT, nullptr, nullptr);
    if (result == MEP_ERR_PEER_FAILED) {
      ++mine.failures;
      continue;
    }
    COLL_OK(found, result);
    call.check(i, rank, size, ended ? ending : -1, found);
    if (ended) {
      --left;
    } else {
      ++mine.successes;
    }
  }
}

// Rank `ending` ends inside its call `after`.
void end_one(int size, int ending, int after, uint64_t seed) {
  std::vector<Ending> endings(static_cast<size_t>(size));
  enable_delays(seed, 8);
  Report report;
  const auto body = [&](int rank, mep_comm_t comm, Report& found) {
    Ending& mine = endings[static_cast<size_t>(rank)];
    if (rank != ending) return run_row(rank, size, ending, seed, mine, comm, found);
    for (int i = 0; i <= after && !found.bad(); ++i) {
      Call call(i, rank, size, 0, seed);
      mep_request_t request = nullptr;
      COLL_OK(found, call.start(comm, &request));
      if (i == after) {
        int32_t is_done = 0;
        for (uint64_t looks = mix(seed, 5) % (seed % 2 == 0 ? 3 : 60); looks > 0 && is_done == 0;
             --looks) {
          COLL_OK(found, mep_request_test(&request, &is_done, nullptr));
          sched_yield();
        }
        COLL_OK(found, mep_comm_abort(comm));
      }
      if (request != nullptr)
        (void)mep_request_wait(&request, MEP_TIMEOUT_DEFAULT, nullptr, nullptr);
    }
  };
  with_placement(std::string(static_cast<size_t>(size), '0'), report, body, kPutOnly);
  enable_delays(0, 0);
  report.require_clean();
  require_same_endings(endings.data(), size, ending);
}

void test_a_rank_ends(void**) {
  RandomStream random(test_seed());
  const size_t rounds = slice(kIsSanitized ? 2 : 6, 200);
  for (size_t round = 0; round < rounds; ++round) {
    for (const int size : {2, 3, 4, 7}) {
      for (int ending = 0; ending < size; ++ending) {
        end_one(size, ending, static_cast<int>(random.below(8)), random.bits());
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  const CMUnitTest tests[] = {cmocka_unit_test(test_a_rank_ends)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

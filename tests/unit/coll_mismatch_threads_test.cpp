// labels: quick threads tsan waits
// Random calls that do not fit together, some ranks one and the others another, small and large, with delays at
// every phase where the build has the points for them. Nobody waits for ever, who succeeds has the right bytes, and
// the comm works on. And the texts of all pairs of calls.
#include <algorithm>

#include "support/coll_hosts.hpp"
#include "support/coll_sequence.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

struct Step {
  Case usual;
  Case other;
  std::vector<uint8_t> is_odd;  // by rank: calls the other
};

Step random_step(RandomStream& random, int size) {
  Step step;
  step.usual = random_case(random, size);
  do {
    step.other = random_case(random, size);
  } while (step.other.kind == step.usual.kind);
  const uint64_t odd = 1 + random.below(static_cast<uint64_t>(size) - 1);
  step.is_odd.assign(static_cast<size_t>(size), 0);
  for (uint64_t i = 0; i < odd; ++i) step.is_odd[random.below(static_cast<uint64_t>(size))] = 1;
  return step;
}

// Whether the rank may succeed: it is the root, or has what its root gives, and so learns later of the others.
bool may_succeed(const Step& step, int rank) {
  const auto place = static_cast<size_t>(rank);
  const Case& c = step.is_odd[place] != 0 ? step.other : step.usual;
  return c.facts().only_root_gives() &&
         step.is_odd[static_cast<size_t>(c.root)] == step.is_odd[place];
}

void call_apart(const Step& step, int rank, int size, mep_comm_t comm, Report& report) {
  const Case& c = step.is_odd[static_cast<size_t>(rank)] != 0 ? step.other : step.usual;
  CaseRun run(c, rank, size);
  const mep_result_t result = run.run(comm);
  if (result == MEP_ERR_MISMATCH) return;
  if (result == MEP_SUCCESS && may_succeed(step, rank)) return run.check(report);
  report.add("%s, rank %d of %d, while others called %s: %s (%s)", describe(c).c_str(), rank, size,
             describe(&c == &step.usual ? step.other : step.usual).c_str(),
             mep_result_string(result), mep_last_error());
}

// Where all wait for each other they are told alike what not all know yet, once.
void meet(int rank, mep_comm_t comm, std::vector<mep_result_t>* results, Report& report) {
  (*results)[static_cast<size_t>(rank)] = mep_barrier(comm, nullptr);
  COLL_OK(report, mep_barrier(comm, nullptr));
  for (const mep_result_t result : *results) {
    if (result == (*results)[0] && (result == MEP_SUCCESS || result == MEP_ERR_MISMATCH)) continue;
    report.add("rank %d sees that a barrier gave one rank %s and another %s", rank,
               mep_result_string((*results)[0]), mep_result_string(result));
  }
  COLL_OK(report, mep_barrier(comm, nullptr));  // all have looked
}

void random_calls(int rank, int size, mep_comm_t comm, uint64_t seed,
                  std::vector<mep_result_t>* results, Report& report) {
  RandomStream random(seed);
  for (int i = 0; i < 24 && !report.bad(); ++i) {
    const uint64_t in_a_row = 1 + random.below(3);
    for (uint64_t j = 0; j < in_a_row; ++j) {
      call_apart(random_step(random, size), rank, size, comm, report);
    }
    meet(rank, comm, results, report);
    CaseRun fitting(random_case(random, size), rank, size);
    COLL_OK(report, fitting.run(comm));
    if (!report.bad()) fitting.check(report);
  }
}

void apart(uint32_t flags) {
  const size_t rounds = slice(1, 200);
  for (size_t round = 0; round < rounds; ++round) {
    for (const int size : {2, 3, 4, 7, 8}) {
      if (kIsSanitized && size != 3 && size != 7) continue;
      const uint64_t seed = mix(mix(test_seed(), round), static_cast<uint64_t>(size) + flags);
      enable_delays(seed, 16);
      std::vector<mep_result_t> results(static_cast<size_t>(size), MEP_SUCCESS);
      require_on_rank_threads(size, flags, [&](int rank, mep_comm_t comm, Report& found) {
        random_calls(rank, size, comm, seed, &results, found);
      });
      enable_delays(0, 0);
    }
  }
}

void mapped(void**) {
  apart(0);
}
void put_only(void**) {
  apart(kPutOnly);
}

// Neighbouring kinds with small counts, one of them with a count a rank: no count makes one kind look like another.
void small_counts(void**) {
  require_on_rank_threads(2, 0, [](int rank, mep_comm_t comm, Report& found) {
    for (const Kind kind : {Kind::k_allgather, Kind::k_alltoall, Kind::k_alltoallv}) {
      for (size_t count = 0; count < 16; ++count) {
        Step step{{Kind::k_allgatherv, MEP_UINT64}, {kind, MEP_UINT64}, {1, 0}};
        step.usual.count = 3;
        step.other.count = count;
        call_apart(step, rank, 2, comm, found);
      }
    }
    COLL_OK(found, mep_barrier(comm, nullptr));
  });
}

struct Named {
  Case what;
  const char* text;
};

const Named kNamed[] = {
    {{Kind::k_barrier}, "mep_barrier"},
    {{Kind::k_allreduce, MEP_INT32, MEP_MAX, 10}, "mep_allreduce of 10 int32 (max)"},
    {{Kind::k_broadcast, MEP_INT32, MEP_SUM, 10, 0}, "mep_broadcast of 10 int32 with root 0"},
    {{Kind::k_broadcast, MEP_FLOAT64, MEP_SUM, 0, 1}, "mep_broadcast of 0 float64 with root 1"},
    {{Kind::k_broadcast, MEP_UINT8, MEP_SUM, 4088, 1}, "mep_broadcast of 4088 uint8 with root 1"},
    {{Kind::k_broadcast, MEP_UINT8, MEP_SUM, 90'000, 0},
     "mep_broadcast of 90000 uint8 with root 0"},
    {{Kind::k_reduce, MEP_INT32, MEP_SUM, 10, 0}, "mep_reduce of 10 int32 (sum) with root 0"},
    {{Kind::k_reduce, MEP_INT32, MEP_SUM, 10, 1}, "mep_reduce of 10 int32 (sum) with root 1"},
    {{Kind::k_gather, MEP_BFLOAT16, MEP_SUM, 7, 0}, "mep_gather of 7 bfloat16 with root 0"},
    {{Kind::k_gather, MEP_BFLOAT16, MEP_SUM, 8, 0}, "mep_gather of 8 bfloat16 with root 0"},
    {{Kind::k_scatter, MEP_FLOAT8_E5M2, MEP_SUM, 3, 0}, "mep_scatter of 3 float8_e5m2 with root 0"},
    {{Kind::k_scatter, MEP_INT32, MEP_SUM, 10, 1}, "mep_scatter of 10 int32 with root 1"},
    {{Kind::k_alltoall, MEP_INT32, MEP_SUM, 10}, "mep_alltoall of 10 int32"},
    {{Kind::k_allgather, MEP_INT32, MEP_SUM, 10}, "mep_allgather of 10 int32"},
};

// A rank's text has what it called and what another did.
void check_names(const Named& own, const Named& other, int rank, Report& report) {
  const std::string error = mep_last_error();
  const std::string names = std::string(" called ") + other.text + ", this rank " + own.text;
  if (error.find(names) != std::string::npos) return;
  report.add("rank %d: \"%s\" has no \"%s\"", rank, error.c_str(), names.c_str());
}

// Rank 1 calls `other`, the rest `usual`. In the call, or where its root waited for nobody in the barrier after it.
void check_pair(const Named& usual, const Named& other, int rank, int size, mep_comm_t comm,
                Report& report) {
  const Named& own = rank == 1 ? other : usual;
  const Named& others = rank == 1 ? usual : other;
  for (const Case& c : {own.what, Case{Kind::k_barrier}}) {
    CaseRun run(c, rank, size);
    const mep_result_t result = run.run(comm);
    if (result == MEP_ERR_MISMATCH) {
      check_names(own, others, rank, report);
    } else if (result != MEP_SUCCESS) {
      report.add("%s where another called %s, rank %d: %s (%s)", own.text, others.text, rank,
                 mep_result_string(result), mep_last_error());
    }
  }
  COLL_OK(report, mep_barrier(comm, nullptr));
}

void both_names(void**) {
  struct World {
    const char* placement;
    uint32_t flags;
  };
  for (const World& world :
       {World{"00", 0}, World{"000", 0}, World{"000", kPutOnly}, World{"01", 0}, World{"011", 0}}) {
    const int size = static_cast<int>(strlen(world.placement));
    // Texts do not depend on the order of events: a sanitizer sees each way to learn of another's call once.
    if (kIsSanitized && !soak_flag() && size == 2) continue;
    Report report;
    const auto body = [&](int rank, mep_comm_t comm, Report& found) {
      for (const Named& usual : kNamed) {
        for (const Named& other : kNamed) {
          if (&usual != &other) check_pair(usual, other, rank, size, comm, found);
        }
      }
    };
    with_placement(world.placement, report, body, world.flags);
    report.require_clean();
  }
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {cmocka_unit_test(mapped), cmocka_unit_test(put_only),
                              cmocka_unit_test(small_counts), cmocka_unit_test(both_names)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

// The matrix of collectives x types x operators x sizes, as one rank goes through it. CI takes a
// slice that is the same on all ranks: every pair of type and operator at two small sizes, of reductions
// other than an allreduce and of forms with counts at some rank counts, and some cases at sizes next to the limits. The soak run takes everything.
#pragma once

#include "support/coll_cases.hpp"

namespace mep_test {

inline const std::vector<int> kRankCounts =
    kIsSanitized ? std::vector{2, 3, 7} : std::vector{1, 2, 3, 4, 7, 8};

inline void run_case(const Case& c, int rank, int size, mep_comm_t comm, bool nonblocking,
                     Report& report) {
  CaseRun run(c, rank, size);
  mep_result_t result = MEP_SUCCESS;
  if (nonblocking) {
    mep_request_t request = nullptr;
    result = run.start(comm, &request);
    if (result == MEP_SUCCESS)
      result = mep_request_wait(&request, MEP_TIMEOUT_DEFAULT, nullptr, nullptr);
    if (result == MEP_SUCCESS && request != nullptr) report.add("a finished request is not NULL");
  } else {
    result = run.run(comm);
  }
  if (result != MEP_SUCCESS) {
    report.add("%s on rank %d of %d: %s (%s)", describe(c).c_str(), rank, size,
               mep_result_string(result), mep_last_error());
    return;
  }
  run.check(report);
}

// Runs c once, or in the soak run in place and not, and with every root.
inline void run_variants(Case c, int rank, int size, mep_comm_t comm, bool nonblocking,
                         RandomStream& random, Report& report) {
  c.seed = random.bits();
  c.in_place = random.one_in(2);
  c.root = static_cast<int>(random.below(static_cast<uint64_t>(size)));
  run_case(c, rank, size, comm, nonblocking, report);
  if (!soak_flag()) return;
  c.in_place = !c.in_place;
  run_case(c, rank, size, comm, nonblocking, report);
  for (int root = 0; c.facts().is_rooted && root < size; ++root) {
    if (root == c.root) continue;
    Case other = c;
    other.root = root;
    run_case(other, rank, size, comm, nonblocking, report);
  }
}

// All types and operators of all collectives.
inline std::vector<Case> all_kinds() {
  std::vector<Case> cases;
  for (uint32_t each = 0; each < mep::kCollectiveCount; ++each) {
    const auto kind = static_cast<Kind>(each);
    const mep::OperationFacts& facts = mep::facts_of(kind);
    if (!facts.has_data()) cases.push_back({kind});
    for (const mep_dtype_t dtype : kAllTypes) {
      if (facts.has_data() && !facts.takes_op) cases.push_back({kind, dtype});
      for (const mep_op_t op : kAllOps) {
        if (facts.takes_op && pair_exists(dtype, op)) cases.push_back({kind, dtype, op});
      }
    }
  }
  return cases;
}

inline void run_matrix(int rank, int size, mep_comm_t comm, bool nonblocking, Report& report) {
  const std::vector<Case> kinds = all_kinds();
  RandomStream random(mix(test_seed(), static_cast<uint64_t>(size) * 2 + (nonblocking ? 1 : 0)));
  if (soak_flag()) {
    for (Case c : kinds) {
      for (const size_t count : interesting_counts(c.dtype, size)) {
        c.count = count;
        run_variants(c, rank, size, comm, nonblocking, random, report);
        if (report.bad()) return;
      }
    }
    return;
  }
  for (size_t at = 0; at < kinds.size(); ++at) {
    Case c = kinds[at];
    // They reduce as an allreduce does, or move elements as bytes: each at some of the rank counts.
    const bool is_alike =
        (c.facts().takes_op && c.kind != Kind::k_allreduce) || c.facts().has_counts;
    if (is_alike && at % 3 != static_cast<size_t>(size) % 3) continue;
    for (int i = 0; i < 2; ++i) {
      c.count = c.facts().has_data() ? small_count(random, c.dtype) : 0;
      run_variants(c, rank, size, comm, nonblocking, random, report);
    }
    if (report.bad()) return;
  }
  constexpr int kLargeCases = kIsSanitized ? 5 : 20;
  for (int i = 0; i < kLargeCases && !report.bad(); ++i) {
    Case c = kinds[random.below(kinds.size())];
    // Reductions of one-byte types are slow in the reference.
    const std::vector<size_t> counts = interesting_counts(c.dtype, size);
    c.count = counts[random.below(counts.size())];
    if (!c.facts().has_data()) c.count = 0;
    if (c.count * element_bytes(c.dtype) > (size_t{3} << 20) / static_cast<size_t>(size)) {
      c.count = counts[random.below(15)];
    }
    run_variants(c, rank, size, comm, nonblocking, random, report);
  }
}

inline void check_unsupported_pairs(mep_comm_t comm, Report& report) {
  uint64_t send[2] = {};
  uint64_t receive[2] = {7, 7};
  for (const mep_dtype_t dtype : kAllTypes) {
    for (const mep_op_t op : kAllOps) {
      if (pair_exists(dtype, op)) continue;
      mep_request_t request = nullptr;
      COLL_EXPECT(report, MEP_ERR_UNSUPPORTED,
                  mep_allreduce(send, receive, 1, dtype, op, comm, nullptr));
      COLL_EXPECT(report, MEP_ERR_UNSUPPORTED,
                  mep_iallreduce(send, receive, 1, dtype, op, comm, nullptr, &request));
      COLL_CHECK(report, request == nullptr && receive[0] == 7);
    }
  }
  // A refused call consumes no number: the next operation works.
  COLL_OK(report, mep_barrier(comm, nullptr));
}

}  // namespace mep_test

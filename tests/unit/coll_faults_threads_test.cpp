// labels: gate threads
// Calls that do not match, ranks that come late or never, and revoked comms: every rank gets its
// answer, and the comm works on afterwards.
#include <algorithm>

#include "support/coll_sequence.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

constexpr uint32_t kShortMs = 200;
constexpr uint32_t kLongMs = 60'000;

// A counter that ranks wait for; what they wait for always comes unless a rank hangs.
class Milestone {
 public:
  void reach() { count_.fetch_add(1); }
  void await(int count) const {
    while (count_.load() < count) pause_us(200);
  }

 private:
  std::atomic<int> count_{0};
};

// All kinds of operation, small and large, with right results; or the part of them that is in turn.
constexpr size_t kAllParts = SIZE_MAX;
constexpr size_t kParts = 4;
void check_works(int rank, int size, mep_comm_t comm, uint64_t seed, Report& report,
                 size_t turn = kAllParts) {
  const Case cases[] = {
      {Kind::k_barrier},
      {Kind::k_allreduce, MEP_FLOAT32, MEP_SUM, 100'003, 0, false, seed},
      {Kind::k_broadcast, MEP_INT16, MEP_SUM, 7, size - 1, false, seed + 1},
      {Kind::k_allgather, MEP_UINT8, MEP_SUM, 9'000, 0, false, seed + 2},
      {Kind::k_allreduce, MEP_BFLOAT16, MEP_AVG, 33, 0, true, seed + 3},
      {Kind::k_broadcast, MEP_INT64, MEP_SUM, 80'001, 0, false, seed + 4},
      {Kind::k_allreduce, MEP_INT32, MEP_PROD, 300'001, 0, false, seed + 5},
      {Kind::k_reduce_scatter, MEP_FLOAT32, MEP_SUM, 33, 0, false, seed + 6},
      {Kind::k_alltoall, MEP_UINT16, MEP_SUM, 90'001, 0, false, seed + 7},
      {Kind::k_scatter, MEP_INT32, MEP_SUM, 5, size - 1, false, seed + 8},
      {Kind::k_reduce_scatter, MEP_BFLOAT16, MEP_AVG, 70'001, 0, true, seed + 9},
      {Kind::k_gather, MEP_INT16, MEP_SUM, 100'001, size - 1, false, seed + 10},
      {Kind::k_reduce, MEP_INT32, MEP_SUM, 60'001, size - 1, true, seed + 11},
      {Kind::k_scatter, MEP_INT64, MEP_SUM, 20'001, 0, true, seed + 12},
      {Kind::k_alltoallv, MEP_INT16, MEP_SUM, 60'001, 0, false, seed + 13},
      {Kind::k_allgatherv, MEP_INT16, MEP_SUM, 33, 0, true, seed + 14},
  };
  for (const Case& c : cases) {
    const auto part = static_cast<size_t>(&c - cases) % kParts;
    if (turn != kAllParts && part != turn % kParts) continue;
    CaseRun run(c, rank, size);
    const mep_result_t result = run.run(comm);
    if (result != MEP_SUCCESS) {
      report.add("afterwards %s on rank %d: %s (%s)", describe(c).c_str(), rank,
                 mep_result_string(result), mep_last_error());
      return;
    }
    run.check(report);
  }
}

mep_result_t call(const Case& c, int rank, int size, mep_comm_t comm) {
  CaseRun run(c, rank, size);
  return run.run(comm);
}

struct Deviation {
  Case usual;
  Case other;
};

// Rank `odd` calls something else, several times in a row: more often than the eager ring has slots.
void mismatch(const Deviation& deviation, int size, int odd, uint32_t flags, bool all_see_it) {
  static size_t turns = 0;
  const size_t turn = soak_flag() ? kAllParts : turns++;
  Report report;
  with_rank_threads(
      size, patient_config(flags), report, [&](int rank, mep_comm_t comm, Report& found) {
        for (int i = 0; i < 11; ++i) {
          const bool is_odd = rank == odd;
          const Case& c = is_odd ? deviation.other : deviation.usual;
          // The root of a small broadcast or scatter sees nobody else's call.
          const bool alone = !all_see_it && c.facts().only_root_gives() && c.root == rank;
          const bool sees = (is_odd || all_see_it) && !alone;
          const mep_result_t expected = sees ? MEP_ERR_MISMATCH : MEP_SUCCESS;
          CaseRun run(c, rank, size);
          const mep_result_t result = run.run(comm);
          if (result == MEP_SUCCESS) run.check(found);
          // A rank that waits for the root may meanwhile see the slot of one that called something else.
          const bool may_see = !is_odd && rank != c.root && result == MEP_ERR_MISMATCH;
          if (result != expected && !may_see) {
            found.add("%s where others called %s, rank %d of %d, odd %d, time %d: %s (%s)",
                      describe(deviation.other).c_str(), describe(deviation.usual).c_str(), rank,
                      size, odd, i, mep_result_string(result), mep_last_error());
            return;
          }
        }
        // Where nobody waited for the mismatch, all find it when they wait for each other next.
        if (!all_see_it) COLL_EXPECT(found, MEP_ERR_MISMATCH, mep_barrier(comm, nullptr));
        check_works(rank, size, comm, test_seed(), found, turn);
        uint64_t epoch = 0;
        COLL_OK(found, mep_comm_epoch(comm, &epoch));
        COLL_CHECK(found, epoch == 1);               // nobody's time was over
        COLL_OK(found, mep_barrier(comm, nullptr));  // nobody leaves before all have looked
      });
  report.require_clean();
}

// A seed of data for which the forms with counts have blocks that are all as long.
uint64_t even_seed() {
  uint64_t seed = 1;
  while (mix(seed, 0xc0) % 6 != 0) ++seed;
  return seed;
}

// Counts that do not fit together: one rank has others than the rest, or its form has none.
void test_counts_mismatch(void**) {
  struct Form {
    Kind kind;
    Kind without;
  };
  const Form forms[] = {{Kind::k_allgatherv, Kind::k_allgather},
                        {Kind::k_gatherv, Kind::k_gather},
                        {Kind::k_scatterv, Kind::k_scatter},
                        {Kind::k_reduce_scatterv, Kind::k_reduce_scatter},
                        {Kind::k_alltoallv, Kind::k_alltoall}};
  int turn = 0;
  for (const Form& form : forms) {
    const Case small{form.kind, MEP_INT32, MEP_SUM, 10, 0, false, even_seed()};
    Case large = small;
    large.count = 50'000;
    Case small_other = small;
    small_other.count = 11;
    Case large_other = large;
    large_other.count = 50'001;
    Case without = large;
    without.kind = form.without;
    Case type = large;
    type.dtype = MEP_UINT32;
    const Deviation deviations[] = {{small, small_other}, {large, large_other}, {small, large},
                                    {large, small},       {large, without},     {large, type}};
    for (const Deviation& deviation : deviations) {
      for (const int size : {2, 3, 4}) {
        for (int odd = 0; odd < size; ++odd) {
          if (!soak_flag() && odd != turn % size) continue;
          mismatch(deviation, size, odd, turn % 2 == 0 ? 0 : kPutOnly, true);
        }
        ++turn;
      }
    }
  }
}

void test_mismatch(void**) {
  const Case barrier{Kind::k_barrier};
  const Case small{Kind::k_allreduce, MEP_INT32, MEP_SUM, 10};
  const Case large{Kind::k_allreduce, MEP_INT32, MEP_SUM, 400'000};
  const Case gather{Kind::k_allgather, MEP_INT32, MEP_SUM, 10};
  const Case large_gather{Kind::k_allgather, MEP_INT32, MEP_SUM, 100'000};
  Case other_count = small;
  other_count.count = 11;
  Case other_type = small;
  other_type.dtype = MEP_UINT32;
  Case other_op = small;
  other_op.op = MEP_MAX;
  Case other_large = large;
  other_large.count = 400'001;
  Case large_root{Kind::k_broadcast, MEP_UINT8, MEP_SUM, 200'000, 0};
  Case other_root = large_root;
  other_root.root = 1;
  const Case exchange{Kind::k_alltoall, MEP_INT32, MEP_SUM, 10};
  const Case large_exchange{Kind::k_alltoall, MEP_INT32, MEP_SUM, 100'000};
  const Case parts{Kind::k_reduce_scatter, MEP_INT32, MEP_SUM, 10};
  const Case large_parts{Kind::k_reduce_scatter, MEP_INT32, MEP_SUM, 100'000};
  const Case to_root{Kind::k_gather, MEP_INT32, MEP_SUM, 10, 0};
  Case to_other = to_root;
  to_other.root = 1;
  const Case large_to_root{Kind::k_reduce, MEP_INT32, MEP_SUM, 100'000, 0};
  const Case large_from_root{Kind::k_scatter, MEP_INT32, MEP_SUM, 100'000, 1};
  const Deviation deviations[] = {
      {exchange, gather},
      {exchange, large_exchange},
      {parts, small},
      {parts, exchange},
      {large_parts, large_exchange},
      {large_exchange, large_parts},
      {to_root, to_other},
      {gather, to_root},
      {large_to_root, large_from_root},
      {large_from_root, large_to_root},
      {large_from_root, barrier},
      {small, other_count},
      {small, other_type},
      {small, other_op},
      {small, barrier},
      {barrier, small},
      {small, large},
      {large, small},
      {large, other_large},
      {large, barrier},
      {gather, small},
      {large_gather, large},
      {large, large_gather},
      {large_root, large},
      {large_root, other_root},
      {large, large_root},
  };
  const size_t count = std::size(deviations);
  for (size_t i = 0; i < count; ++i) {
    for (const int size : {2, 3, 4}) {
      for (int odd = 0; odd < size; ++odd) {
        // CI: one odd rank for each pair and size.
        if (!soak_flag() && odd != static_cast<int>(i % static_cast<size_t>(size))) continue;
        mismatch(deviations[i], size, odd, i % 2 == 0 ? 0 : kPutOnly, true);
      }
    }
  }
}

// On every rank the text has both calls, also where one of them is made of operations.
void test_mismatch_text(void**) {
  const Case small{Kind::k_allreduce, MEP_INT32, MEP_SUM, 10};
  Case count = small;
  count.count = 200'011;
  Case type = small;
  type.dtype = MEP_FLOAT8_E4M3;
  const Case reduce{Kind::k_reduce, MEP_BFLOAT16, MEP_AVG, 7, 1};
  struct Call {
    Case what;
    const char* text;
  };
  const Call usual{small, "mep_allreduce of 10 int32 (sum)"};
  const Call others[] = {{count, "mep_allreduce of 200011 int32 (sum)"},
                         {type, "mep_allreduce of 10 float8_e4m3 (sum)"},
                         {reduce, "mep_reduce of 7 bfloat16 (avg) with root 1"},
                         {{Kind::k_barrier}, "mep_barrier"},
                         {{Kind::k_allgather, MEP_UINT8, MEP_SUM, 3}, "mep_allgather of 3 uint8"}};
  Report report;
  with_rank_threads(3, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    const auto expect_text = [&](const char* theirs, const char* own) {
      const std::string error = mep_last_error();
      const std::string text = std::string(" called ") + theirs + ", this rank " + own;
      // Rank 2 differs from both others, and has met either.
      const bool is_right = rank == 2 ? error.find("rank 0" + text) != std::string::npos ||
                                            error.find("rank 1" + text) != std::string::npos
                                      : error.find("rank 2" + text) != std::string::npos;
      if (is_right) return;
      found.add("rank %d: \"%s\" has no \"%s\"", rank, error.c_str(), text.c_str());
    };
    for (const Call& other : others) {
      const Call& own = rank == 2 ? other : usual;
      COLL_EXPECT(found, MEP_ERR_MISMATCH, call(own.what, rank, 3, comm));
      expect_text(rank == 2 ? usual.text : other.text, own.text);
    }
    mep_comm_t child = nullptr;
    const char* const split = "mep_comm_split or mep_comm_dup";
    COLL_EXPECT(found, MEP_ERR_MISMATCH,
                rank == 2 ? mep_comm_split(comm, 0, 0, &child) : call(small, rank, 3, comm));
    expect_text(rank == 2 ? usual.text : split, rank == 2 ? split : usual.text);
    check_works(rank, 3, comm, test_seed(), found);
  });
  report.require_clean();
}

// A small broadcast or scatter makes nobody wait but for its root: who differs learns it at once, the others
// in the next operation that makes them wait for each other.
void mismatched_from_root(const Case& usual, uint32_t flags = 0) {
  const int size = 4;
  Case count = usual;
  count.count = 12;
  Case type = usual;
  type.dtype = MEP_FLOAT32;
  Case root = usual;
  root.root = 0;
  const Case reduce{Kind::k_allreduce, MEP_INT32, MEP_SUM, 10};
  for (const Case& other : {count, type, root, Case{Kind::k_barrier}, reduce}) {
    for (const int odd : {1, 3}) mismatch({usual, other}, size, odd, flags, false);
  }
  for (const int odd : {1, 3}) {
    Case itself = usual;  // two roots
    itself.root = odd;
    mismatch({usual, itself}, size, odd, flags, false);
  }
}

void test_mismatched_broadcast(void**) {
  mismatched_from_root({Kind::k_broadcast, MEP_INT32, MEP_SUM, 10, 2});
  mismatched_from_root({Kind::k_broadcast, MEP_INT32, MEP_SUM, 20'000, 2}, kPutOnly);
}

void test_mismatched_scatter(void**) {
  mismatched_from_root({Kind::k_scatter, MEP_INT32, MEP_SUM, 10, 2});
  mismatched_from_root({Kind::k_scatter, MEP_INT32, MEP_SUM, 8'000, 2}, kPutOnly);
}

// An operation that one rank completed by itself is decided for the late one too, but not as another operation.
void late_and_mismatched(Kind from_root, bool matches) {
  constexpr int kSize = 3;
  Report report;
  Milestone timed_out;
  with_rank_threads(kSize, patient_config(0), report,
                    [&](int rank, mep_comm_t comm, Report& found) {
                      const Case broadcast{from_root, MEP_INT32, MEP_SUM, 10, 0, false, 5};
                      const Case reduce{Kind::k_allreduce, MEP_INT32, MEP_SUM, 10, 0, false, 5};
                      CaseRun run(rank == 2 && !matches ? reduce : broadcast, rank, kSize);
                      if (rank != 2) {
                        COLL_OK(found, run.run(comm));
                        COLL_OK(found, mep_comm_set_timeout(comm, kShortMs));
                        COLL_EXPECT(found, MEP_ERR_TIMEOUT, mep_barrier(comm, nullptr));
                        COLL_OK(found, mep_comm_set_timeout(comm, kLongMs));
                        timed_out.reach();
                      } else {
                        timed_out.await(kSize - 1);
                        COLL_EXPECT(found, matches ? MEP_SUCCESS : MEP_ERR_MISMATCH, run.run(comm));
                        COLL_EXPECT(found, MEP_ERR_TIMEOUT, mep_barrier(comm, nullptr));
                      }
                      if (rank != 2 || matches) run.check(found);
                      check_works(rank, kSize, comm, test_seed(), found);
                    });
  report.require_clean();
}

void test_late_and_mismatched(void**) {
  for (const bool matches : {true, false}) {
    for (const Kind kind : {Kind::k_broadcast, Kind::k_scatter}) late_and_mismatched(kind, matches);
  }
}

// All ranks name the one that had not called.
void check_timeout_info(mep_comm_t comm, int late, const char* name, Report& report) {
  const std::string error = mep_last_error();
  const std::string text = "rank " + std::to_string(late) + " had not called the collective";
  COLL_CHECK(report, error.find(text) != std::string::npos);
  // Also which call it was and where its limit comes from.
  int32_t rank = -1;
  COLL_OK(report, mep_comm_rank(comm, &rank));
  const char* whose = rank == late ? "this rank is late" : " ms (MEP_TIMEOUT_MS";
  for (const char* part : {name, "(operation ", " of comm ", whose}) {
    if (error.find(part) == std::string::npos) {
      report.add("\"%s\" lacks \"%s\"", error.c_str(), part);
    }
  }
  uint64_t contributors = ~uint64_t{0};
  uint64_t failed = ~uint64_t{0};
  mep_op_info_t info;
  mep_op_info_defaults(&info);
  info.contributors = &contributors;
  info.contributors_words = 1;
  info.failed = &failed;
  info.failed_words = 1;
  COLL_OK(report, mep_comm_last_op(comm, &info));
  COLL_CHECK(report, info.result == MEP_ERR_TIMEOUT && contributors == 0);
  COLL_CHECK(report, failed == uint64_t{1} << late);
}

// One rank does not call; the others' time is over; it comes afterwards and is told too.
void timeout_with(const Case& c, int size, uint32_t flags) {
  Report report;
  Milestone timed_out;
  with_rank_threads(size, patient_config(flags), report,
                    [&](int rank, mep_comm_t comm, Report& found) {
                      check_works(rank, size, comm, 3, found);
                      if (rank == size - 1) timed_out.await(size - 1);
                      if (rank != size - 1) COLL_OK(found, mep_comm_set_timeout(comm, kShortMs));
                      const mep_result_t result = call(c, rank, size, comm);
                      if (result != MEP_ERR_TIMEOUT) {
                        found.add("%s, rank %d of %d: %s (%s)", describe(c).c_str(), rank, size,
                                  mep_result_string(result), mep_last_error());
                      }
                      check_timeout_info(comm, size - 1, c.facts().name, found);
                      if (rank != size - 1) {
                        timed_out.reach();
                        COLL_OK(found, mep_comm_set_timeout(comm, kLongMs));
                      }
                      uint64_t epoch = 0;
                      COLL_OK(found, mep_comm_epoch(comm, &epoch));
                      COLL_CHECK(found, epoch == 2);
                      check_works(rank, size, comm, test_seed(), found);
                    });
  report.require_clean();
}

void test_timeout(void**) {
  const Case cases[] = {
      {Kind::k_barrier},
      {Kind::k_allreduce, MEP_FLOAT16, MEP_SUM, 12, 0, false, 1},
      {Kind::k_allgather, MEP_INT8, MEP_SUM, 4088, 0, false, 2},
      {Kind::k_allreduce, MEP_FLOAT32, MEP_SUM, 400'000, 0, true, 3},
      {Kind::k_allgather, MEP_INT8, MEP_SUM, 600'000, 0, true, 4},
      {Kind::k_broadcast, MEP_INT8, MEP_SUM, 1'600'000, 1, false, 5},
      {Kind::k_gather, MEP_INT8, MEP_SUM, 40, 0, false, 6},
      {Kind::k_reduce_scatter, MEP_FLOAT32, MEP_SUM, 30'000, 0, true, 7},
      {Kind::k_alltoall, MEP_INT8, MEP_SUM, 400'000, 0, false, 8},
  };
  for (const Case& c : cases) {
    for (const int size : {2, 4}) {
      timeout_with(c, size, 0);
      timeout_with(c, size, kPutOnly);
    }
  }
}

// All have entered a large operation, and one stops in the middle of it: what had only been
// announced is not done.
void stalled_in(const Case& c, int size, uint32_t flags) {
  Report report;
  Milestone entered;
  Milestone timed_out;
  with_rank_threads(size, patient_config(flags), report,
                    [&](int rank, mep_comm_t comm, Report& found) {
                      COLL_OK(found, mep_barrier(comm, nullptr));
                      const bool stalls = rank == size - 1;
                      CaseRun run(c, rank, size);
                      mep_result_t result = MEP_SUCCESS;
                      if (stalls) {
                        mep_request_t request = nullptr;
                        COLL_OK(found, run.start(comm, &request));
                        entered.reach();
                        timed_out.await(size - 1);
                        result = mep_request_wait(&request, MEP_TIMEOUT_DEFAULT, nullptr, nullptr);
                      } else {
                        entered.await(1);
                        COLL_OK(found, mep_comm_set_timeout(comm, kShortMs));
                        result = run.run(comm);
                        timed_out.reach();
                        COLL_OK(found, mep_comm_set_timeout(comm, kLongMs));
                      }
                      if (result != MEP_ERR_TIMEOUT) {
                        found.add("%s, rank %d of %d: %s (%s)", describe(c).c_str(), rank, size,
                                  mep_result_string(result), mep_last_error());
                      }
                      check_works(rank, size, comm, test_seed(), found);
                    });
  report.require_clean();
}

void test_stalled_large(void**) {
  // With a progress thread nobody stalls by making no calls.
  if (getenv("MEP_PROGRESS_THREAD") != nullptr) skip();
  const Case cases[] = {
      {Kind::k_allreduce, MEP_FLOAT32, MEP_SUM, 400'000, 0, false, 3},
      {Kind::k_allgather, MEP_INT8, MEP_SUM, 1'600'000, 0, true, 4},
      {Kind::k_broadcast, MEP_INT8, MEP_SUM, 1'600'000, 0, false, 5},
      {Kind::k_reduce_scatter, MEP_FLOAT32, MEP_SUM, 400'000, 0, true, 6},
      {Kind::k_alltoall, MEP_INT8, MEP_SUM, 1'600'000, 0, false, 7},
      {Kind::k_gather, MEP_INT8, MEP_SUM, 1'600'000, 0, false, 8},
      {Kind::k_scatter, MEP_INT8, MEP_SUM, 1'600'000, 1, false, 9},
  };
  // The last three go the way of reduce_scatter.
  for (size_t i = 0; i < slice(4, std::size(cases)); ++i) {
    const Case& c = cases[i];
    for (const int size : {2, 3}) {
      stalled_in(c, size, 0);
      stalled_in(c, size, kPutOnly);
    }
  }
}

// In place, up to the configured size, the input comes back and the library says so.
void test_input_is_restored(void**) {
  Report report;
  Milestone timed_out;
  Milestone told;
  with_rank_threads(2, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    std::vector<uint32_t> values(10'000);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint32_t>(i) * 7 + 1;
    const std::vector<uint32_t> before = values;
    if (rank == 1) timed_out.await(1);
    if (rank == 0) COLL_OK(found, mep_comm_set_timeout(comm, kShortMs));
    COLL_EXPECT(found, MEP_ERR_TIMEOUT,
                mep_allreduce(values.data(), values.data(), values.size(), MEP_UINT32, MEP_SUM,
                              comm, nullptr));
    if (rank == 0) {
      mep_op_info_t info;
      mep_op_info_defaults(&info);
      COLL_OK(found, mep_comm_last_op(comm, &info));
      COLL_CHECK(found, (info.flags & MEP_OP_INPUT_INTACT) != 0);
      COLL_CHECK(found, values == before);
      timed_out.reach();
    }
    told.reach();
    told.await(2);  // a rank that leaves would be the graver news
  });
  report.require_clean();
}

// Revoked while some are inside and some are not; with large operations under way. An operation may
// be complete before: then it succeeds everywhere.
void test_revoke_under_way(void**) {
  const int rounds = static_cast<int>(slice(6, 300));
  for (int round = 0; round < rounds; ++round) {
    constexpr int kSize = 3;
    RandomStream shared(mix(test_seed(), static_cast<uint64_t>(round)));
    const size_t count = 1 + shared.below(500'000);
    const uint64_t revoke_after_us = shared.below(3000);
    const uint32_t flags = shared.one_in(2) ? kPutOnly : 0;
    enable_delays(shared.bits(), 24);
    constexpr int kOperations = 30;
    int successes[kSize] = {};
    Report report;
    with_rank_threads(kSize, patient_config(flags), report,
                      [&](int rank, mep_comm_t comm, Report& found) {
                        mep_comm_t child = nullptr;
                        COLL_OK(found, mep_comm_split(comm, 0, 0, &child));
                        std::thread revoker;
                        if (rank == 1) {
                          revoker = std::thread([&] {
                            pause_us(static_cast<unsigned>(revoke_after_us));
                            COLL_OK(found, mep_comm_revoke(child));
                          });
                        }
                        bool told = false;
                        int told_at = -1;
                        for (int i = 0; !told && !found.bad(); ++i) {
                          Case c{Kind::k_allreduce, MEP_INT32, MEP_SUM, i % 3 == 0 ? count : 100};
                          c.seed = static_cast<uint64_t>(i % kOperations);
                          if (i % 3 == 1) c.kind = Kind::k_broadcast;
                          CaseRun run(c, rank, kSize);
                          const mep_result_t result = run.run(child);
                          if (result == MEP_SUCCESS) run.check(found);
                          if (result == MEP_ERR_REVOKED) {
                            told = true;
                            told_at = i;
                          } else if (result != MEP_SUCCESS) {
                            found.add("operation %d on rank %d: %s (%s)", i, rank,
                                      mep_result_string(result), mep_last_error());
                          }
                        }
                        successes[rank] = told_at;
                        if (revoker.joinable()) revoker.join();
                        if (!found.bad()) check_works(rank, kSize, child, test_seed(), found);
                        COLL_OK(found, mep_comm_destroy(child));
                      });
    enable_delays(0, 0);
    report.require_clean();
    assert_int_equal(successes[0], successes[1]);
    assert_int_equal(successes[0], successes[2]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(test_mismatch),
      cmocka_unit_test(test_counts_mismatch),
      cmocka_unit_test(test_mismatched_broadcast),
      cmocka_unit_test(test_mismatched_scatter),
      cmocka_unit_test(test_mismatch_text),
      cmocka_unit_test(test_late_and_mismatched),
      cmocka_unit_test(test_timeout),
      cmocka_unit_test(test_stalled_large),
      cmocka_unit_test(test_input_is_restored),
      cmocka_unit_test(test_revoke_under_way),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

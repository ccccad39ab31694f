// labels: quick threads tsan
// The answers of calls when members fail: the k-th call of a communicator ends alike on all survivors, whoever calls
// early, late, or has several operations pending.
#include <algorithm>
#include <array>
#include <string>

#include "core/api/api_guard.hpp"
#include "support/coll_sequence.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

// Ranks wait for each other here, outside MEP.
class Milestone {
 public:
  void reach() { count_.fetch_add(1); }
  void await(int count) const {
    while (count_.load() < count) pause_us(200);
  }

 private:
  std::atomic<int> count_{0};
};

uint64_t epoch_of(mep_comm_t comm, Report& report) {
  uint64_t epoch = 0;
  COLL_OK(report, mep_comm_epoch(comm, &epoch));
  return epoch;
}

void await_epoch(mep_comm_t comm, uint64_t at_least, Report& report) {
  if (epoch_of(comm, report) >= at_least) return;
  COLL_OK(report, mep_comm_wait_view(comm, at_least - 1, 60'000));
}

// The answers to one rank's calls, as text: ranks are compared by it.
class Answers {
 public:
  void add(mep_comm_t comm, mep_result_t result, uint64_t value) {
    mep_op_info_t info;
    mep_op_info_defaults(&info);
    uint64_t contributors = 0;
    uint64_t failed = 0;
    info.contributors = &contributors;
    info.contributors_words = 1;
    info.failed = &failed;
    info.failed_words = 1;
    (void)mep_comm_last_op(comm, &info);
    add(result, value, info, contributors, failed);
  }
  void add(mep_result_t result, uint64_t value, const mep_op_info_t& info, uint64_t contributors,
           uint64_t failed) {
    char line[256];
    snprintf(line, sizeof line, "%s value %llu epoch %llu seq %llu from %llx without %llx\n",
             mep_result_string(result),
             static_cast<unsigned long long>(result == MEP_SUCCESS ? value : 0),
             static_cast<unsigned long long>(info.epoch), static_cast<unsigned long long>(info.seq),
             static_cast<unsigned long long>(contributors),
             static_cast<unsigned long long>(failed));
    text_ += line;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

using AllAnswers = std::array<Answers, 8>;

void compare(const AllAnswers& answers, const std::vector<int>& survivors, Report& report) {
  const std::string& first = answers[static_cast<size_t>(survivors[0])].text();
  for (const int rank : survivors) {
    const std::string& own = answers[static_cast<size_t>(rank)].text();
    if (own != first) {
      report.add("rank %d was told\n%sand rank %d\n%s", survivors[0], first.c_str(), rank,
                 own.c_str());
    }
  }
}

// The value says which step of the program the sum is of, so sums that mix steps show.
void sum_step(mep_comm_t comm, uint64_t step, Answers& answers) {
  const uint64_t own = uint64_t{1} << (8 * step);
  uint64_t sum = 0;
  const mep_result_t result = mep_allreduce(&own, &sum, 1, MEP_UINT64, MEP_SUM, comm, nullptr);
  answers.add(comm, result, sum);
}

// Ranks 3 and 4 of five fail one after the other. Rank 2 calls nothing before both changes are over, rank 1
// not before the first one is; rank 0 calls at once.
void test_two_failures_late_callers(void**) {
  Report report;
  AllAnswers answers;
  Milestone first_done;
  with_rank_threads(5, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    if (rank == 3) {
      COLL_OK(found, mep_comm_abort(comm));
      return;
    }
    if (rank == 4) {
      first_done.await(2);
      COLL_OK(found, mep_comm_abort(comm));
      return;
    }
    Answers& own = answers[static_cast<size_t>(rank)];
    if (rank == 1) await_epoch(comm, 2, found);
    if (rank == 2) await_epoch(comm, 3, found);
    for (uint64_t step = 0; step < 6; ++step) {
      sum_step(comm, step, own);
      if (step == 0 && rank != 2) first_done.reach();
    }
  });
  compare(answers, {0, 1, 2}, report);
  report.require_clean();
}

// One rank has three operations pending when a member fails, the others have none.
void test_several_pending(void**) {
  Report report;
  AllAnswers answers;
  Milestone posted;
  with_rank_threads(4, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    if (rank == 3) {
      posted.await(1);
      COLL_OK(found, mep_comm_abort(comm));
      return;
    }
    Answers& own = answers[static_cast<size_t>(rank)];
    const std::array<uint64_t, 3> values = {1, 256, 65536};
    std::array<uint64_t, 3> sums = {};
    std::array<mep_request_t, 3> requests = {};
    if (rank != 0) await_epoch(comm, 2, found);
    for (size_t i = 0; i < 3; ++i) {
      COLL_OK(found, mep_iallreduce(&values[i], &sums[i], 1, MEP_UINT64, MEP_SUM, comm, nullptr,
                                    &requests[i]));
    }
    posted.reach();
    for (size_t i = 0; i < 3; ++i) {
      mep_op_info_t info;
      mep_op_info_defaults(&info);
      uint64_t contributors = 0;
      uint64_t failed = 0;
      info.contributors = &contributors;
      info.contributors_words = 1;
      info.failed = &failed;
      info.failed_words = 1;
      const mep_result_t result =
          mep_request_wait(&requests[i], MEP_TIMEOUT_DEFAULT, nullptr, &info);
      own.add(result, sums[i], info, contributors, failed);
    }
    for (uint64_t step = 3; step < 6; ++step) sum_step(comm, step, own);
  });
  compare(answers, {0, 1, 2}, report);
  report.require_clean();
}

// More broadcasts in a row from a root that is gone than may go without an acknowledgement; then another
// member fails.
void dead_root(int size, int calls, const std::string& hosts) {
  Report report;
  AllAnswers answers;
  Milestone entered;
  const HostsScope scope(hosts, size);
  with_rank_threads(size, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    if (rank == size - 1) {
      COLL_OK(found, mep_comm_abort(comm));
      return;
    }
    Answers& own = answers[static_cast<size_t>(rank)];
    await_epoch(comm, 2, found);
    sum_step(comm, 0, own);  // reports the change
    sum_step(comm, 1, own);
    uint64_t value = 5;
    for (int i = 0; i < calls; ++i) {
      const mep_result_t result =
          mep_broadcast(&value, &value, 1, MEP_UINT64, size - 1, comm, nullptr);
      if (result != MEP_ERR_PEER_FAILED) {
        found.add("rank %d, broadcast %d: %s (%s)", rank, i, mep_result_string(result),
                  mep_last_error());
      }
    }
    for (uint64_t step = 2; step < 4; ++step) sum_step(comm, step, own);
    if (rank == size - 2) {
      entered.await(size - 2);
      COLL_OK(found, mep_comm_abort(comm));
      return;
    }
    entered.reach();
    if (rank == 0) await_epoch(comm, 3, found);
    for (int i = 0; i < 3; ++i) {
      const mep_result_t result =
          mep_broadcast(&value, &value, 1, MEP_UINT64, size - 1, comm, nullptr);
      own.add(comm, result, value);
    }
    for (uint64_t step = 4; step < 7; ++step) sum_step(comm, step, own);
  });
  std::vector<int> survivors;
  for (int rank = 0; rank < size - 2; ++rank) survivors.push_back(rank);
  compare(answers, survivors, report);
  report.require_clean();
}

void test_dead_root(void**) {
  dead_root(4, 100, "");
  dead_root(5, 70, "01");
}

// A member may have died between its parts of a sum for two others. A rank that has all goes on to broadcasts that a
// dead root ends there and then, and must still be able to give the sum once it has prepared for a change.
void given_after_dead_root(int calls) {
  Report report;
  Milestone called;
  with_rank_threads(3, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    if (rank == 2) {
      COLL_OK(found, mep_comm_abort(comm));
      return;
    }
    await_epoch(comm, 2, found);
    Answers own;
    sum_step(comm, 0, own);  // reports the change
    sum_step(comm, 1, own);
    mep_op_info_t sum;
    mep_op_info_defaults(&sum);
    COLL_OK(found, mep_comm_last_op(comm, &sum));
    COLL_CHECK(found, sum.result == MEP_SUCCESS);
    for (int i = 0; i < calls; ++i) {
      uint64_t value = 5;
      const mep_result_t result = mep_broadcast(&value, &value, 1, MEP_UINT64, 2, comm, nullptr);
      COLL_CHECK(found, result == MEP_ERR_PEER_FAILED);
    }
    called.reach();
    called.await(2);
    mep::Collectives& collectives = comm->comm->collectives();
    size_t given = 0;
    const bool ran = comm->comm->world().call([&] {
      (void)collectives.freeze();
      collectives.prepare();
      collectives.give_catch_up(sum.seq, sum.seq,
                                [&](uint64_t, uint32_t, std::span<const std::byte>) { ++given; });
      collectives.resume();
    });
    // A rank that leaves begins a change on the other.
    called.reach();
    called.await(4);
    COLL_CHECK(found, ran);
    if (given != 2) found.add("rank %d could give %zu contributions, not 2", rank, given);
  });
  report.require_clean();
}

// Few, and more than there are slots.
void test_given_after_dead_root(void**) {
  given_after_dead_root(3);
  given_after_dead_root(100);
}

// Ranks 0 and 4 on one host, 1 to 3 on another; ranks 0 to 3 have a communicator of their own. Rank 3
// fails; 1 and 2 go on while 0 computes; rank 4 fails, which changes nothing for that communicator. Rank 0
// is then given blocks of the new epoch.
void test_late_rank_takes_blocks(void**) {
  Report report;
  AllAnswers answers;
  Milestone failed_once;
  Milestone failed_twice;
  const HostsScope scope("ABBBA", 5);
  with_rank_threads(5, patient_config(0), report, [&](int rank, mep_comm_t world, Report& found) {
    mep_comm_t comm = nullptr;
    COLL_OK(found, mep_comm_split(world, rank == 4 ? -1 : 0, rank, &comm));
    if (rank == 3) {
      COLL_OK(found, mep_comm_abort(world));
      COLL_OK(found, mep_comm_destroy(comm));
      return;
    }
    if (rank == 4) {
      failed_once.await(2);
      COLL_OK(found, mep_comm_abort(world));
      failed_twice.reach();
      return;
    }
    Answers& own = answers[static_cast<size_t>(rank)];
    std::array<uint64_t, 13> values = {};
    std::array<uint64_t, 13> sums = {};
    values.fill(static_cast<uint64_t>(rank) + 1);
    if (rank == 0) {
      await_epoch(world, 3, found);
    } else {
      await_epoch(comm, 2, found);
    }
    for (int i = 0; i < 3; ++i) {
      sums.fill(0);
      if (i == 1 && rank != 0) failed_once.reach();
      const mep_result_t result =
          mep_allreduce(values.data(), sums.data(), 13, MEP_UINT64, MEP_SUM, comm, nullptr);
      own.add(comm, result, sums[12]);
      if (result == MEP_SUCCESS && (sums[0] != 6 || sums[12] != 6)) {
        found.add("rank %d, call %d: %llu and %llu in place of 6", rank, i,
                  static_cast<unsigned long long>(sums[0]),
                  static_cast<unsigned long long>(sums[12]));
      }
    }
    COLL_OK(found, mep_comm_destroy(comm));
  });
  compare(answers, {0, 1, 2}, report);
  report.require_clean();
}

// mep_comm_agree goes over failures; the next collective reports what it went over.
void test_agree_then_report(void**) {
  Report report;
  AllAnswers answers;
  with_rank_threads(4, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    if (rank == 3) {
      COLL_OK(found, mep_comm_abort(comm));
      return;
    }
    Answers& own = answers[static_cast<size_t>(rank)];
    await_epoch(comm, 2, found);
    uint64_t agreed = 0;
    COLL_OK(found, mep_comm_agree(comm, 6, &agreed));
    COLL_CHECK(found, agreed == 6);
    for (uint64_t step = 0; step < 3; ++step) sum_step(comm, step, own);
    COLL_CHECK(found, own.text().find("MEP_ERR_PEER_FAILED") == 0);
    COLL_CHECK(found, own.text().find("MEP_ERR_PEER_FAILED", 1) == std::string::npos);
  });
  compare(answers, {0, 1, 2}, report);
  report.require_clean();
}

// mep_comm_shrink goes over failures and revokes, whenever they come; the next collective reports them.
void test_shrink_then_report(void**) {
  for (const bool revokes : {false, true}) {
    Report report;
    AllAnswers answers;
    with_rank_threads(4, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
      if (rank == 3) {
        COLL_OK(found, mep_comm_abort(comm));
        return;
      }
      Answers& own = answers[static_cast<size_t>(rank)];
      if (rank != 0) await_epoch(comm, 2, found);
      if (rank == 1 && revokes) {
        COLL_OK(found, mep_comm_revoke(comm));
        await_epoch(comm, 3, found);
      }
      mep_comm_t child = nullptr;
      COLL_OK(found, mep_comm_shrink(comm, &child));
      if (child == nullptr) return;
      int32_t own_rank = -1;
      int32_t size = 0;
      COLL_OK(found, mep_comm_rank(child, &own_rank));
      COLL_OK(found, mep_comm_size(child, &size));
      COLL_CHECK(found, own_rank == rank && size == 3);
      sum_step(child, 0, own);
      for (uint64_t step = 1; step < 4; ++step) sum_step(comm, step, own);
      COLL_OK(found, mep_comm_destroy(child));
      COLL_CHECK(found, own.text().find("MEP_SUCCESS value 3 ") == 0);
      const size_t reported = own.text().find("\nMEP_ERR_");
      COLL_CHECK(found, reported == own.text().find('\n'));
      COLL_CHECK(found, own.text().find("\nMEP_ERR_", reported + 1) == std::string::npos);
    });
    compare(answers, {0, 1, 2}, report);
    report.require_clean();
  }
}

// It does not wait longer for a rank that does not call than the communicator's timeout.
void test_shrink_timeout(void**) {
  Report report;
  Milestone told;
  with_rank_threads(3, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    COLL_OK(found, mep_comm_set_timeout(comm, 300));
    if (rank == 2) told.await(2);
    mep_comm_t child = nullptr;
    COLL_EXPECT(found, MEP_ERR_TIMEOUT, mep_comm_shrink(comm, &child));
    COLL_CHECK(found, child == nullptr);
    told.reach();
    told.await(3);  // a rank that leaves would be the graver news
  });
  report.require_clean();
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(test_two_failures_late_callers),
      cmocka_unit_test(test_several_pending),
      cmocka_unit_test(test_dead_root),
      cmocka_unit_test(test_given_after_dead_root),
      cmocka_unit_test(test_late_rank_takes_blocks),
      cmocka_unit_test(test_agree_then_report),
      cmocka_unit_test(test_shrink_then_report),
      cmocka_unit_test(test_shrink_timeout),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

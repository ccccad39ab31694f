// Verdicts of mep_chaos's oracle on logs that are written by hand: an allreduce during which rank 0 of three is evicted,
// and the allreduce by which ranks find the place to go on at.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "chaos/oracle.hpp"
#include "oracle_waits_test.hpp"
#include "support/cmocka_cpp.hpp"

namespace {

using namespace mep::programs;  // NOLINT(google-build-using-namespace)

constexpr uint32_t kRanks = 3;
constexpr uint64_t kAll = 7;
constexpr uint64_t kEvicted = 1;
constexpr uint32_t kEviction = 0;  // steps
constexpr uint32_t kAfter = 1;

Program program_of() {
  Program program;
  program.ranks = program.max_ranks = kRanks;
  program.hosts.assign(kMaxSlots, 0);
  Step evict;
  evict.kind = StepKind::kEvict;
  evict.calls.resize(1);
  evict.calls[0].kind = CallKind::k_allreduce;
  evict.actor = 1;
  evict.target = 0;
  Step call = evict;
  call.kind = StepKind::kCall;
  program.steps = {evict, call};
  return program;
}

// By rank.
class Log {
 public:
  Log() {
    for (uint32_t slot = 0; slot < kRanks; ++slot) {
      journals_.push_back(std::make_unique<Journal>());
      add(slot, Entry::kMembers, 0).contributors = kAll;
      // All come to the call before it ends anywhere.
      add(slot, Entry::kBegin, kEviction);
    }
  }

  void succeed(uint32_t slot, uint32_t step, uint64_t contributors) {
    Record& end = add(slot, Entry::kEnd, step);
    end.contributors = contributors;
    finish(&end, MEP_SUCCESS, step);
  }
  void fail(uint32_t slot, uint32_t step, uint64_t failed) {
    Record& end = add(slot, Entry::kEnd, step);
    end.failed = failed;
    finish(&end, MEP_ERR_PEER_FAILED, step);
  }
  void begin(uint32_t slot, uint32_t step) { add(slot, Entry::kBegin, step); }
  void sync(uint32_t slot, mep_result_t result) {
    Record& end = add(slot, Entry::kEnd, kAfter);
    end.what = What::kSync;
    finish(&end, result, kAfter);
  }

  // All ranks come to their ends now, the one that was killed without a word.
  bool says(const char* what, uint32_t killed = kNobody) {
    std::vector<Life> lives;
    for (uint32_t slot = 0; slot < kRanks; ++slot) {
      if (slot != killed) add(slot, Entry::kDone, kAfter + 1);
      lives.push_back({slot, 0, journals_[slot].get(), true, false, 0});
    }
    bool is_there = false;
    for (const Finding& finding : judge(program_of(), lives)) {
      is_there = is_there || finding.text.find(what) != std::string::npos;
    }
    return is_there;
  }

 private:
  Record& add(uint32_t slot, Entry entry, uint32_t step) {
    Journal& journal = *journals_[slot];
    Record& record = journal.records[journal.count++];
    record.entry = entry;
    record.what = What::kCall;
    record.step = step;
    record.at_ns = ++now_ns_;
    return record;
  }
  static void finish(Record* end, mep_result_t result, uint32_t step) {
    end->result = end->info_result = result;
    end->has_info = true;
    end->epoch = 1 + step;
    end->seq = 1;
  }

  std::vector<std::unique_ptr<Journal>> journals_;
  uint64_t now_ns_ = 0;
};

constexpr const char* kAny = "";
constexpr const char* kDiffer = "results differ";

// It leaves before it hears that the others have gone on without it.
void a_success_of_an_evicted_rank(void**) {
  Log log;
  log.succeed(0, kEviction, kAll);
  for (const uint32_t slot : {1u, 2u}) {
    log.fail(slot, kEviction, kEvicted);
    log.begin(slot, kAfter);
  }
  for (const uint32_t slot : {1u, 2u}) log.succeed(slot, kAfter, kAll & ~kEvicted);
  assert_false(log.says(kAny));
}

void a_success_of_a_member(void**) {
  for (const bool evicted_has_one : {false, true}) {
    Log log;
    if (evicted_has_one) log.succeed(0, kEviction, kAll);
    log.succeed(1, kEviction, kAll);
    log.fail(2, kEviction, kEvicted);
    assert_true(log.says(kDiffer));
  }
}

void the_others_name_another_rank(void**) {
  Log log;
  log.succeed(0, kEviction, kAll);
  log.fail(1, kEviction, 4);
  assert_true(log.says(kDiffer));
}

void the_rank_is_still_there(void**) {
  Log log;
  log.succeed(0, kEviction, kAll);
  for (const uint32_t slot : {1u, 2u}) log.fail(slot, kEviction, kEvicted);
  for (uint32_t slot = 0; slot < kRanks; ++slot) log.begin(slot, kAfter);
  for (uint32_t slot = 0; slot < kRanks; ++slot) log.succeed(slot, kAfter, kAll);
  assert_true(log.says(kDiffer));
}

// The first record of the sync is of a rank that died, and binds nobody.
void the_later_records_of_a_sync(void**) {
  for (const mep_result_t last : {MEP_SUCCESS, MEP_ERR_PEER_FAILED}) {
    Log log;
    log.sync(0, MEP_SUCCESS);
    log.sync(1, MEP_SUCCESS);
    log.sync(2, last);
    assert_int_equal(log.says(kDiffer, 0), last != MEP_SUCCESS);
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_needless_wait),
      cmocka_unit_test(what_came_before_a_wait),
      cmocka_unit_test(a_wait_for_a_joiner_that_was_not_there),
      cmocka_unit_test(a_wait_for_a_member),
      cmocka_unit_test(a_wait_after_an_event),
      cmocka_unit_test(an_end_that_is_seen_late),
      cmocka_unit_test(a_call_that_did_not_wait),
      cmocka_unit_test(a_success_of_an_evicted_rank),
      cmocka_unit_test(a_success_of_a_member),
      cmocka_unit_test(the_others_name_another_rank),
      cmocka_unit_test(the_rank_is_still_there),
      cmocka_unit_test(the_later_records_of_a_sync),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

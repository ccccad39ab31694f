// Verdicts of mep_chaos's oracle on a recovery that times out: rank 3 of four has died, and the others wait 8 s for its
// replacement, which is in its join.
#include "oracle_waits_test.hpp"

#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "chaos/oracle.hpp"
#include "support/cmocka_cpp.hpp"

namespace {

using namespace mep::programs;  // NOLINT(google-build-using-namespace)

constexpr uint32_t kRanks = 4;
constexpr uint32_t kLost = 3;
constexpr uint64_t kMembers = 7;  // slots
constexpr uint64_t kBeginMs = 10'000;
constexpr uint64_t kEndMs = 18'000;
constexpr uint64_t kMiddleMs = 14'000;
constexpr uint64_t kNs = 1'000'000;  // of a millisecond

struct Rank {
  explicit Rank(uint32_t slot, uint32_t generation = 0) : journal(std::make_unique<Journal>()) {
    life.slot = slot;
    life.generation = generation;
    life.journal = journal.get();
  }
  Record& add(uint64_t at_ms, Entry entry, What what) const {
    Record& record = journal->records[journal->count++];
    record.entry = entry;
    record.what = what;
    record.at_ns = at_ms * kNs;
    return record;
  }
  void end(uint64_t at_ms, What what, mep_result_t result) const {
    add(at_ms, Entry::kEnd, what).result = result;
  }
  void see(uint64_t at_ms, uint64_t slots) const {
    add(at_ms, Entry::kView, What::kRecover).contributors = slots;
  }
  void recover(uint64_t begin_ms, uint64_t end_ms = kEndMs, mep_result_t result = MEP_ERR_TIMEOUT,
               uint64_t before = kMembers, uint64_t after = kMembers) const {
    see(begin_ms, before);
    add(begin_ms, Entry::kBegin, What::kRecover).limit_ms = kEndMs - kBeginMs;
    end(end_ms, What::kRecover, result);
    see(end_ms, after);
  }
  void join(uint64_t begin_ms) const { add(begin_ms, Entry::kBegin, What::kJoin); }
  void ends(uint64_t at_ms) {
    life.ended = true;
    life.ended_ns = at_ms * kNs;
  }
  void dies(uint64_t at_ms) {
    ends(at_ms);
    life.signalled = true;
    life.status = SIGKILL;
  }

  std::unique_ptr<Journal> journal;
  Life life;
};

Program program_of() {
  Program program;
  program.ranks = program.max_ranks = kRanks;
  program.hosts.assign(kMaxSlots, 0);
  Step recover;
  recover.kind = StepKind::kRecover;
  recover.slots = {kLost};
  program.steps = {recover};
  return program;
}

// How many waits are found to be needless.
int64_t needless(const std::vector<Rank>& ranks, const Program& program = program_of()) {
  std::vector<Life> lives;
  for (const Rank& rank : ranks) lives.push_back(rank.life);
  const std::vector<Finding> found = judge(program, lives);
  return std::count_if(found.begin(), found.end(), [](const Finding& finding) {
    return finding.kind == Class::kHang &&
           finding.text.find("recovered in vain") != std::string::npos;
  });
}

// By slot, of which the last has died. Nobody has called.
std::vector<Rank> ranks_without_calls() {
  std::vector<Rank> ranks;
  for (uint32_t slot = 0; slot < kRanks; ++slot) ranks.emplace_back(slot);
  ranks[kLost].dies(kBeginMs - 100);
  return ranks;
}

// All members are in the call, all the time.
std::vector<Rank> members() {
  std::vector<Rank> ranks = ranks_without_calls();
  for (uint32_t slot = 0; slot < kLost; ++slot) ranks[slot].recover(kBeginMs + slot);
  return ranks;
}

std::vector<Rank> members_and_joiner(uint64_t joins_ms = kBeginMs) {
  std::vector<Rank> ranks = members();
  ranks.emplace_back(kLost, 1);
  ranks.back().join(joins_ms);
  return ranks;
}

}  // namespace

void a_needless_wait(void**) {
  std::vector<Rank> ranks = members_and_joiner();
  assert_int_equal(needless(ranks), 1);
  // Its join may end when the members have given up.
  ranks.back().end(kEndMs + 1000, What::kJoin, MEP_ERR_TIMEOUT);
  ranks.back().ends(kEndMs + 1001);
  assert_int_equal(needless(ranks), 1);
  // It was let in, and the members do not know.
  ranks = members_and_joiner();
  ranks.back().end(kMiddleMs, What::kJoin, MEP_SUCCESS);
  assert_int_equal(needless(ranks), 1);
  // It began to wait long before them, and they came one after the other.
  ranks = ranks_without_calls();
  ranks[0].recover(kBeginMs - 5000);
  for (const uint32_t slot : {1u, 2u}) ranks[slot].recover(kBeginMs + 500);
  ranks.emplace_back(kLost, 1);
  ranks.back().join(kBeginMs - 5000);
  assert_int_equal(needless(ranks), 1);
}

void what_came_before_a_wait(void**) {
  std::vector<Rank> ranks = members_and_joiner();
  ranks[0].life.stops = {Stop{(kBeginMs - 2000) * kNs, (kBeginMs + 500) * kNs}};
  assert_int_equal(needless(ranks), 1);
  // SIGCONT never came: the process had ended.
  ranks = members_and_joiner();
  ranks[kLost].life.stops = {Stop{(kBeginMs - 2000) * kNs}};
  assert_int_equal(needless(ranks), 1);
  // Afterwards it may be as it likes.
  ranks = members_and_joiner();
  ranks[0].life.stops = {Stop{(kEndMs + 1) * kNs}};
  ranks[1].dies(kEndMs + 1);
  assert_int_equal(needless(ranks), 1);
  // An earlier joiner that died.
  ranks = members_and_joiner();
  ranks.emplace_back(kLost, 1);
  ranks.back().join(kBeginMs - 50);
  ranks.back().dies(kBeginMs + 500);
  assert_int_equal(needless(ranks), 1);
}

void a_wait_for_a_joiner_that_was_not_there(void**) {
  assert_int_equal(needless(members()), 0);
  assert_int_equal(needless(members_and_joiner(kMiddleMs)), 0);
  for (const uint64_t dies_ms : {kBeginMs + 500, kMiddleMs}) {
    std::vector<Rank> with_dead = members_and_joiner();
    with_dead.back().dies(dies_ms);
    assert_int_equal(needless(with_dead), 0);
  }
  // Its join failed, and it goes on by itself.
  std::vector<Rank> ranks = members_and_joiner();
  ranks.back().end(kMiddleMs, What::kJoin, MEP_ERR_BOOTSTRAP);
  assert_int_equal(needless(ranks), 0);
  // It was in, and evicted again.
  ranks = members_and_joiner();
  ranks.back().end(kBeginMs + 100, What::kJoin, MEP_SUCCESS);
  ranks.back().end(kBeginMs + 200, What::kSync, MEP_ERR_EVICTED);
  assert_int_equal(needless(ranks), 0);
  // It was in before the members lost it, and does not know that yet.
  ranks = members_and_joiner(kBeginMs - 1000);
  ranks.back().end(kBeginMs - 900, What::kJoin, MEP_SUCCESS);
  assert_int_equal(needless(ranks), 0);
  // A joiner for a slot that nobody asked for.
  ranks = members();
  ranks.emplace_back(kLost + 1, 1);
  ranks.back().join(kBeginMs);
  assert_int_equal(needless(ranks), 0);
  // It came in, and another one is waited for.
  ranks = ranks_without_calls();
  for (uint32_t slot = 0; slot < kLost; ++slot)
    ranks[slot].recover(kBeginMs, kEndMs, MEP_ERR_TIMEOUT, kMembers, kMembers | 1u << kLost);
  ranks.emplace_back(kLost, 1);
  ranks.back().join(kBeginMs);
  Program program = program_of();
  program.steps[0].slots.push_back(kLost + 1);
  assert_int_equal(needless(ranks, program), 0);
}

void a_wait_for_a_member(void**) {
  for (const uint64_t begin_ms : {kMiddleMs, uint64_t{0}}) {
    std::vector<Rank> ranks = ranks_without_calls();
    for (uint32_t slot = 0; slot + 1 < kLost; ++slot) ranks[slot].recover(kBeginMs);
    if (begin_ms != 0) ranks[kLost - 1].recover(begin_ms);
    ranks.emplace_back(kLost, 1);
    ranks.back().join(kBeginMs);
    assert_int_equal(needless(ranks), 0);
  }
  // It has given up earlier.
  std::vector<Rank> ranks = ranks_without_calls();
  for (const uint32_t slot : {0u, 1u}) ranks[slot].recover(kBeginMs);
  ranks[2].recover(kBeginMs, kMiddleMs, MEP_ERR_PEER_FAILED);
  ranks.emplace_back(kLost, 1);
  ranks.back().join(kBeginMs);
  assert_int_equal(needless(ranks), 0);
}

void a_wait_after_an_event(void**) {
  // A member or the joiner is stopped.
  for (const size_t at : {size_t{0}, size_t{kRanks}}) {
    std::vector<Rank> ranks = members_and_joiner();
    ranks[at].life.stops = {Stop{(kBeginMs + 100) * kNs, kMiddleMs * kNs}};
    assert_int_equal(needless(ranks), 0);
    ranks[at].life.stops = {Stop{(kBeginMs + 100) * kNs}};
    assert_int_equal(needless(ranks), 0);
  }
  // A later death, which the others have seen.
  std::vector<Rank> ranks = ranks_without_calls();
  for (const uint32_t slot : {0u, 1u})
    ranks[slot].recover(kBeginMs, kEndMs, MEP_ERR_TIMEOUT, kMembers, 3);
  ranks[2].see(kBeginMs, kMembers);
  ranks[2].add(kBeginMs, Entry::kBegin, What::kRecover);
  ranks[2].dies(kMiddleMs);
  ranks.emplace_back(kLost, 1);
  ranks.back().join(kBeginMs);
  assert_int_equal(needless(ranks), 0);
  ranks[2].dies(kBeginMs + 500);
  assert_int_equal(needless(ranks), 1);
}

void an_end_that_is_seen_late(void**) {
  constexpr uint64_t kWithLost = kMembers | 1u << kLost;
  const auto ranks_that_see = [&](uint64_t before, uint64_t after) {
    std::vector<Rank> ranks = ranks_without_calls();
    for (uint32_t slot = 0; slot < kLost; ++slot)
      ranks[slot].recover(kBeginMs, kEndMs, MEP_ERR_TIMEOUT, before, after);
    ranks.emplace_back(kLost, 1);
    ranks.back().join(kBeginMs);
    return ranks;
  };
  // Nobody is left on the host of the lost rank.
  Program program = program_of();
  program.hosts[kLost] = 1;
  assert_int_equal(needless(ranks_that_see(kMembers, kMembers), program), 1);
  assert_int_equal(needless(ranks_that_see(kWithLost, kMembers), program), 0);
  assert_int_equal(needless(ranks_that_see(kWithLost, kMembers)), 1);
  // Another one has ended, and is in the view all the time.
  std::vector<Rank> ranks = members_and_joiner();
  ranks[2].dies(kBeginMs + 10);
  assert_int_equal(needless(ranks), 0);
}

void a_call_that_did_not_wait(void**) {
  for (const mep_result_t result : {MEP_SUCCESS, MEP_ERR_PEER_FAILED, MEP_ERR_NO_QUORUM}) {
    std::vector<Rank> ranks = ranks_without_calls();
    for (uint32_t slot = 0; slot < kLost; ++slot) ranks[slot].recover(kBeginMs, kEndMs, result);
    ranks.emplace_back(kLost, 1);
    ranks.back().join(kBeginMs);
    assert_int_equal(needless(ranks), 0);
  }
  // A replacement that had connected and ended ends it at once.
  std::vector<Rank> ranks = ranks_without_calls();
  for (uint32_t slot = 0; slot < kLost; ++slot) ranks[slot].recover(kBeginMs, kBeginMs + 300);
  ranks.emplace_back(kLost, 1);
  ranks.back().join(kBeginMs - 5000);
  assert_int_equal(needless(ranks), 0);
  // Where a rank is stopped in the join, each call that times out is another finding.
  ranks = members_and_joiner();
  Program program = program_of();
  Fault stop;
  stop.kind = FaultKind::kStopInJoin;
  program.faults = {stop};
  assert_int_equal(needless(ranks, program), 0);
}

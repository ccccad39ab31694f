// How joiners come in, step by step: who is admitted, who is waited for, and what ends a recover call.
#include <vector>

#include "core/membership/membership.hpp"
#include "sim/membership_lab.hpp"
#include "support/cmocka_cpp.hpp"

namespace {

using namespace membership_lab;  // NOLINT(google-build-using-namespace)

void a_replacement_comes_in(void**) {
  Lab lab(3);
  lab.kill(1);
  const uint32_t joiner = lab.joiner(1, 500, {0, 2});
  lab.recover({0, 2}, 1'000'000);
  lab.settle();
  assert_int_equal(lab.ranks[joiner].installed.size(), 1);
  assert_true(lab.ranks[joiner].installed[0].joined);
  assert_int_equal(lab.ranks[0].installed.at(1).recover_answered, 1);
  assert_int_equal(lab.ranks[0].machine->view().incarnation(1), 500);
  assert_int_equal(lab.ranks[joiner].machine->view().epoch, lab.ranks[2].machine->view().epoch);
}

void recover_without_joiners_ends_by_its_deadline(void**) {
  Lab lab(3);
  lab.kill(1);
  lab.recover({0}, 200'000);
  lab.run_for(150'000);
  assert_int_equal(lab.ranks[0].installed.size(), 1);
  lab.run_for(100'000);
  assert_int_equal(lab.ranks[0].installed.size(), 2);
  assert_int_equal(lab.ranks[2].installed.at(1).recover_answered, 1);
  assert_true(lab.ranks[2].installed[1].affected.empty());
}

void a_dead_joiner_blocks_nobody(void**) {
  Lab lab(3);
  lab.kill(1);
  lab.ranks[lab.joiner(1, 500, {0, 2})].alive = false;
  lab.recover({0, 2}, 1'000'000);
  lab.settle();  // offered, and waited for
  assert_int_equal(lab.ranks[0].installed.size(), 1);
  for (const uint32_t i : {0u, 2u}) lab.ranks[i].machine->on_process_exit(1, 500);
  lab.settle();
  for (const uint32_t i : {0u, 2u}) {
    assert_true(lab.ranks[i].installed.size() >= 2);
    assert_int_equal(lab.ranks[i].machine->view().members.count(), 2);
    assert_true(lab.ranks[i].machine->phase() == Phase::kStable);
  }
}

// It dies before all members have tested it, so no value names it; one of them has never met it.
void a_joiner_that_dies_early_is_waited_for_no_more(void**) {
  Lab lab(3);
  lab.kill(1);
  lab.ranks[lab.joiner(1, 500, {0})].alive = false;
  lab.recover({0, 2}, 60'000'000);
  lab.run_for(1'000'000);
  assert_int_equal(lab.ranks[0].installed.size(), 1);
  lab.ranks[0].machine->on_joiner_gone(1, 500, true);
  lab.ranks[0].machine->on_joiner_lost(1);
  lab.settle();
  for (const uint32_t i : {0u, 2u}) {
    assert_int_equal(lab.ranks[i].installed.size(), 2);
    assert_int_equal(lab.ranks[i].installed[1].recover_answered, 1);
    assert_int_equal(lab.ranks[i].machine->view().members.count(), 2);
  }
}

// Only the slot of the dead one is given up: the other is waited for, and comes in.
void another_joiner_is_waited_for(void**) {
  Lab lab(4);
  lab.kill(1);
  lab.kill(3);
  lab.ranks[lab.joiner(1, 500, {0})].alive = false;
  lab.recover({0, 2}, 60'000'000);
  lab.ranks[0].machine->on_joiner_gone(1, 500, true);
  lab.ranks[0].machine->on_joiner_lost(1);
  lab.run_for(1'000'000);
  assert_int_equal(lab.ranks[0].installed.size(), 2);  // of the two deaths
  const uint32_t joiner = lab.joiner(3, 600, {0, 2});
  lab.settle();
  assert_true(lab.ranks[joiner].installed.at(0).joined);
  for (const uint32_t i : {0u, 2u}) {
    assert_int_equal(lab.ranks[i].installed.at(2).recover_answered, 1);
    assert_int_equal(lab.ranks[i].machine->view().incarnation(3), 600);
    assert_int_equal(lab.ranks[i].machine->view().members.count(), 3);
  }
}

// One joiner has tested its links to the other.
void meet(Lab& lab, uint32_t joiner, uint32_t other) {
  const Row& row = lab.ranks[other].machine->row();
  lab.ranks[joiner].machine->on_joiner_ready({row.slot, row.incarnation, 1});
  lab.settle();
}

void call_recover(Lab& lab, const std::vector<uint32_t>& callers, uint64_t seq,
                  const SlotSet& wanted) {
  for (const uint32_t i : callers)
    lab.ranks[i].machine->on_recover(seq, wanted, lab.now_us + 1'000'000);
  lab.settle();
}

// Members 0 and 2, and joiners for slots 1 and 3 that both of them have tested.
struct TwoJoiners {
  TwoJoiners() {
    lab.kill(1);
    lab.kill(3);
    lower = lab.joiner(1, 500, {0, 2});
    upper = lab.joiner(3, 600, {0, 2});
    lab.settle();
  }
  const View& view() { return lab.ranks[0].machine->view(); }

  Lab lab = Lab(4);
  uint32_t lower = 0;
  uint32_t upper = 0;
};

void joiners_come_in_together_once_both_are_linked(void**) {
  TwoJoiners two;
  Lab& lab = two.lab;
  const uint64_t at = lab.now_us;
  call_recover(lab, {0, 2}, 1, SlotSet::first(4));
  meet(lab, two.lower, two.upper);
  assert_int_equal(two.view().members.count(), 2);
  meet(lab, two.upper, two.lower);
  for (const Rank& rank : lab.ranks) {
    if (!rank.alive) continue;
    assert_int_equal(rank.installed.back().decision->added.size(), 2);
    assert_int_equal(rank.installed_us, at);
  }
}

void a_joiner_that_another_has_missed_waits_for_the_next_call(void**) {
  TwoJoiners two;
  Lab& lab = two.lab;
  // The upper one asks again.
  assert_int_equal(lab.ranks[two.upper].machine->unlinked_joiner(), 1);
  assert_int_equal(lab.ranks[two.lower].machine->unlinked_joiner(), kNoSlot);
  call_recover(lab, {0, 2}, 1, SlotSet::first(4));
  lab.run_for(900'000);
  assert_int_equal(two.view().members.count(), 2);
  lab.run_for(200'000);
  assert_int_equal(two.view().incarnation(1), 500);
  assert_false(two.view().members.has(3));
  meet(lab, two.lower, two.upper);
  call_recover(lab, {0, 2, two.lower}, 2, SlotSet::first(4));
  assert_int_equal(two.view().incarnation(3), 600);
  assert_true(lab.ranks[two.upper].installed.at(0).joined);
}

void a_joiner_that_is_not_asked_for_keeps_nobody_out(void**) {
  TwoJoiners two;
  SlotSet wanted;
  wanted.add(3);
  call_recover(two.lab, {0, 2}, 1, wanted);
  assert_int_equal(two.view().incarnation(3), 600);
  assert_false(two.view().members.has(1));
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_replacement_comes_in),
      cmocka_unit_test(recover_without_joiners_ends_by_its_deadline),
      cmocka_unit_test(a_dead_joiner_blocks_nobody),
      cmocka_unit_test(a_joiner_that_dies_early_is_waited_for_no_more),
      cmocka_unit_test(another_joiner_is_waited_for),
      cmocka_unit_test(joiners_come_in_together_once_both_are_linked),
      cmocka_unit_test(a_joiner_that_another_has_missed_waits_for_the_next_call),
      cmocka_unit_test(a_joiner_that_is_not_asked_for_keeps_nobody_out),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

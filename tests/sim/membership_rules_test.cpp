// The rules that the table in config.hpp promises, one by one, with the default thresholds: what
// each stop length leads to, what confirms, who learns what.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/env.hpp"
#include "core/membership/membership.hpp"
#include "sim/membership_lab.hpp"
#include "support/cmocka_cpp.hpp"

namespace {

using namespace membership_lab;  // NOLINT(google-build-using-namespace)

bool reported(const Rank& rank, uint32_t slot, PeerHealth health) {
  return std::any_of(rank.reports.begin(), rank.reports.end(), [&](const PeerReport& report) {
    return report.slot == slot && report.health == health;
  });
}

void nobody_out(const Lab& lab) {
  for (const Rank& rank : lab.ranks) {
    assert_int_equal(rank.evicted_us, 0);
    assert_int_equal(rank.no_quorum_us, 0);
    assert_true(rank.installed.empty());
  }
}

void a_kill_needs_no_threshold(void**) {
  Lab lab(4);
  const uint64_t at = lab.now_us;
  lab.kill(0);
  for (uint32_t i = 1; i < 4; ++i) {
    assert_int_equal(lab.ranks[i].installed.size(), 1);
    assert_int_equal(lab.ranks[i].installed_us, at);
    const Proposal& decision = *lab.ranks[i].installed[0].decision;
    assert_int_equal(decision.removed.size(), 1);
    assert_true(decision.removed[0].reason == RemovalReason::kDied);
  }
}

void eight_to_one(void**) {
  Lab lab(8);
  for (uint32_t victim = 0; victim < 7; ++victim) lab.kill(victim);
  assert_int_equal(lab.ranks[7].installed.size(), 7);
  assert_int_equal(lab.ranks[7].machine->view().members.count(), 1);
}

void all_but_the_highest_at_once(void**) {
  Lab lab(4);
  for (uint32_t victim = 0; victim < 3; ++victim) lab.ranks[victim].alive = false;
  for (uint32_t victim = 0; victim < 3; ++victim)
    lab.ranks[3].machine->on_process_exit(victim, 100 + victim);
  lab.settle();
  assert_int_equal(lab.ranks[3].machine->view().members.count(), 1);
}

void a_stop_of_100_ms_is_nothing(void**) {
  Lab lab(3);
  lab.stop(1, 100'000);
  lab.run_for(12'000'000);
  nobody_out(lab);
  assert_true(lab.ranks[0].reports.empty());
}

void a_stop_of_some_seconds_is_reported_only(void**) {
  for (const uint64_t us : {1'000'000, 4'500'000}) {
    Lab lab(3);
    lab.stop(1, us);
    lab.run_for(12'000'000);
    nobody_out(lab);
    assert_true(reported(lab.ranks[0], 1, PeerHealth::kSlow));
    assert_false(reported(lab.ranks[0], 1, PeerHealth::kAccused));
    assert_true(lab.ranks[0].machine->health(1) == PeerHealth::kHealthy);
  }
}

// The victim, stopped for `us`, is taken out by the others after that time.
void check_evicted(Lab& lab, uint32_t victim, uint64_t us, uint64_t after_us, uint64_t before_us) {
  const uint64_t at = lab.now_us;
  lab.ranks[victim].stopped = true;
  lab.run_for(us);
  for (uint32_t i = 0; i < lab.ranks.size(); ++i) {
    if (i == victim) continue;
    assert_int_equal(lab.ranks[i].installed.size(), 1);
    assert_in_range(lab.ranks[i].installed_us - at, after_us, before_us);
    assert_true(lab.ranks[i].installed[0].decision->removed[0].reason ==
                RemovalReason::kUnreachable);
    assert_false(reported(lab.ranks[i], victim, PeerHealth::kDead));
  }
  lab.resume(victim);
  assert_true(lab.ranks[victim].evicted_us == lab.now_us);
  assert_true(lab.ranks[victim].installed.empty());
}

void a_stop_of_10_s_is_an_eviction(void**) {
  Lab lab(3);
  check_evicted(lab, 0, 10'000'000, 4'900'000, 5'300'000);
}

// Threads of a process that lives: their silence is that of a loaded host.
void silent_threads_of_one_process_stay(void**) {
  Lab lab(4, {}, 1, SlotSet::first(4));
  lab.ranks[2].stopped = true;
  lab.stop(1, 40'000'000);
  lab.resume(2);
  lab.run_for(1'000'000);
  nobody_out(lab);
}

// Another process may take the place of one.
void a_process_in_the_place_of_a_thread_may_be_evicted(void**) {
  Lab lab(4, {}, 1, SlotSet::first(4));
  lab.kill(1);
  const uint32_t joiner = lab.joiner(1, 500, {0, 2, 3});
  lab.recover({0, 2, 3}, 1'000'000);
  lab.settle();
  assert_true(lab.ranks[0].machine->view().members.has(1));
  lab.ranks[joiner].stopped = true;
  lab.run_for(10'000'000);
  assert_false(lab.ranks[0].machine->view().members.has(1));
}

void who_beats_seldom_is_not_late(void**) {
  Lab lab(3, config_for(1'000'000, 3'000'000));
  check_evicted(lab, 1, 9'000'000, 2'000'000, 5'000'000);
}

void of_two_the_lowest_stays(void**) {
  Lab lab(2);
  lab.stop(0, 8'000'000);
  lab.run_for(3'000'000);
  nobody_out(lab);  // the other could not decide alone, and did not have to
  const uint64_t at = lab.now_us;
  lab.stop(0, 15'000'000);
  assert_in_range(lab.ranks[1].no_quorum_us - at, 9'900'000, 10'500'000);
  assert_int_equal(lab.ranks[0].installed.size(), 1);
  assert_true(lab.ranks[0].installed[0].decision->removed[0].reason == RemovalReason::kGaveUp);
}

void of_two_the_higher_goes(void**) {
  Lab lab(2);
  check_evicted(lab, 1, 10'000'000, 4'900'000, 5'300'000);
}

// The witness holds the other half's decision: this half gives up as soon as one without a quorum does.
void a_half_that_the_witness_refuses_gives_up(void**) {
  Config config;
  config.quorum = QuorumPolicy::kWitness;
  Lab lab(2, config);
  lab.witness = 12345;
  lab.ranks[0].stopped = true;
  const uint64_t stopped_us = lab.now_us;
  lab.run_for(30'000'000);
  assert_in_range(lab.ranks[1].no_quorum_us, stopped_us + 5'000'000, stopped_us + 12'000'000);
  assert_true(lab.ranks[1].installed.empty());
}

// The thresholds are those that people are told of.
void the_defaults_are_told(void**) {
  const Config config;
  const struct {
    const char* name;
    uint64_t us;
  } rows[] = {{"MEP_HEARTBEAT_MS", config.heartbeat_interval_us},
              {"MEP_SUSPECT_MS", config.accuse_after_us}};
  for (const auto& row : rows) {
    const auto& table = mep::env_table();
    const auto found = std::find_if(table.begin(), table.end(), [&](const mep::EnvVariable& each) {
      return std::strcmp(each.name, row.name) == 0;
    });
    assert_true(found != table.end());
    assert_string_equal(found->default_text, std::to_string(row.us / 1000).c_str());
  }
  const Config same = config_for(config.heartbeat_interval_us, config.accuse_after_us);
  assert_int_equal(same.slow_after_us, config.slow_after_us);
  assert_int_equal(same.late_tick_us, config.late_tick_us);
  assert_int_equal(same.pair_hold_us, config.pair_hold_us);
}

void slowed_20_fold_is_not_evicted(void**) {
  Lab lab(4);
  lab.ranks[2].tick_every_us = 1'000'000;  // heartbeats, too
  lab.run_for(20'000'000);
  nobody_out(lab);
}

void a_late_rank_accuses_nobody(void**) {
  Lab lab(2);
  lab.stop(0, 8'000'000);  // its clock first: 8 s of silence, all its own
  lab.run_for(1'000'000);
  nobody_out(lab);
}

void one_accuser_is_not_enough(void**) {
  Lab lab(3);
  // Rank 1 loses its link to rank 2, which rank 2 does not notice, for less than the pair rule.
  lab.ranks[1].machine->on_connection_lost(2, 102);
  lab.run_for(8'000'000);
  nobody_out(lab);
  lab.ranks[1].machine->on_connection_up(2, 102);
  lab.run_for(12'000'000);
  nobody_out(lab);
}

void of_a_broken_pair_the_higher_goes(void**) {
  Lab lab(3);
  lab.ranks[1].machine->on_connection_lost(2, 102);
  lab.ranks[2].machine->on_connection_lost(1, 101);
  lab.run_for(100'000);
  assert_int_equal(lab.ranks[0].machine->view().members.count(), 2);
  assert_false(lab.ranks[0].machine->view().members.has(2));
  // It was heard all along.
  assert_true(lab.ranks[0].installed[0].decision->removed[0].reason == RemovalReason::kCutOff);
  assert_true(lab.ranks[2].evicted_us != 0);
}

void break_link(Lab& lab, uint32_t a, uint32_t b) {
  lab.ranks[a].machine->on_connection_lost(b, 100 + b);
  lab.ranks[b].machine->on_connection_lost(a, 100 + a);
}

// Between ranks 0 to 3 and 4 to 7 nothing works any more; what rank 0 had under way shows it first.
void of_two_cut_hosts_the_one_that_speaks_first_is_not_to_blame(void**) {
  Lab lab(8);
  for (uint32_t upper = 4; upper < 8; ++upper) break_link(lab, 0, upper);
  lab.run_for(1'000'000);
  nobody_out(lab);
  for (uint32_t lower = 1; lower < 4; ++lower) {
    for (uint32_t upper = 4; upper < 8; ++upper) break_link(lab, lower, upper);
  }
  lab.run_for(500'000);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    assert_int_equal(lab.ranks[rank].machine->view().members.count(), 4);
    assert_true(lab.ranks[rank].machine->view().members.has(0));
    assert_true(lab.ranks[rank + 4].evicted_us != 0);
  }
}

void who_has_lost_many_links_goes_when_nobody_else_does(void**) {
  Lab lab(8);
  for (uint32_t upper = 4; upper < 8; ++upper) break_link(lab, 0, upper);
  lab.run_for(4'000'000);
  assert_true(lab.ranks[0].evicted_us != 0);
  for (uint32_t rank = 1; rank < 8; ++rank) {
    assert_int_equal(lab.ranks[rank].machine->view().members.count(), 7);
  }
}

// All who are left accuse it, so there is nothing to wait for.
void who_has_lost_all_links_goes_at_once(void**) {
  Lab lab(8);
  for (uint32_t other = 1; other < 8; ++other) break_link(lab, 0, other);
  lab.run_for(200'000);
  for (uint32_t rank = 1; rank < 8; ++rank) {
    assert_int_equal(lab.ranks[rank].machine->view().members.count(), 7);
  }
}

void old_incarnations_do_nothing(void**) {
  Lab lab(3);
  lab.ranks[0].machine->on_process_exit(1, 99);
  lab.ranks[0].machine->on_connection_lost(1, 99);
  lab.ranks[0].machine->on_evict(1, 99);
  lab.run_for(5'000'000);
  nobody_out(lab);
}

void leaving_says_why(void**) {
  Lab lab(3);
  lab.ranks[1].machine->on_leave();
  lab.settle();
  assert_true(lab.ranks[0].installed.at(0).decision->removed.at(0).reason == RemovalReason::kLeft);
  assert_int_equal(lab.ranks[0].installed[0].affected.at(0).why, kAffectedByMembers);
}

// The leader hears of an abort from another member before it hears of it from the rank itself.
void an_abort_told_by_others_is_no_leave(void**) {
  Lab lab(3);
  lab.ranks[0].stopped = true;
  lab.ranks[2].machine->on_abort("ValueError: no such expert");
  lab.settle();
  std::erase_if(lab.ranks[0].backlog, [](const auto& mail) { return mail.first == 2; });
  lab.resume(0);
  for (const uint32_t rank : {0u, 1u}) {
    const Removal& removal = lab.ranks[rank].installed.at(0).decision->removed.at(0);
    assert_true(removal.reason == RemovalReason::kGaveUp);
    assert_string_equal(removal.text.c_str(), "ValueError: no such expert");
  }
}

// Whom the others kill, where they kill: a rank that they leave out, not one that leaves, even if its word comes late.
void who_leaves_is_not_excluded(void**) {
  Lab lab(4, {}, 2);
  lab.ranks[0].stopped = true;
  lab.ranks[2].machine->on_leave();
  lab.settle();
  // Ranks of the other host tell it.
  std::erase_if(lab.ranks[0].backlog, [](const auto& mail) { return mail.first == 2; });
  lab.resume(0);
  lab.run_for(100'000);
  assert_int_equal(lab.ranks[0].fences.size(), 1);
  assert_false(lab.ranks[0].fences[0].confirmed);
  assert_false(lab.ranks[0].fences[0].excluded);

  Lab other(3);
  other.ranks[0].machine->on_evict(2, 102);
  other.settle();
  assert_true(other.ranks[0].fences.at(0).excluded);
}

// Two of four commit a view without the third, whose end nobody has seen, leave and end, all before the last
// one looks: it is in that view, and has a quorum.
void who_leaves_and_ends_is_believed(void**) {
  Lab lab(4);
  lab.ranks[3].stops_once_accepted = true;
  lab.ranks[2].alive = false;
  for (const uint32_t i : {0u, 1u, 3u}) lab.ranks[i].machine->on_connection_lost(2, 102);
  lab.run_for(1'000'000);
  for (const uint32_t leaver : {0u, 1u}) {
    assert_int_equal(lab.ranks[leaver].installed.size(), 1);
    lab.ranks[leaver].machine->on_leave();
  }
  lab.settle();
  assert_true(lab.ranks[3].stopped);
  assert_true(lab.ranks[3].installed.empty());
  lab.ranks[3].stops_once_accepted = false;
  lab.resume(3, {0, 1});
  lab.run_for(5'000'000);
  assert_int_equal(lab.ranks[3].no_quorum_us, 0);
  assert_int_equal(lab.ranks[3].machine->view().members.count(), 1);
}

void eviction_by_request(void**) {
  Lab lab(3);
  lab.ranks[2].machine->on_evict(0, 100);
  lab.settle();
  assert_true(lab.ranks[1].installed.at(0).decision->removed.at(0).reason ==
              RemovalReason::kEvicted);
  assert_true(lab.ranks[0].evicted_us != 0);
}

void a_deadline_changes_the_comm_not_the_members(void**) {
  Lab lab(3);
  for (Rank& rank : lab.ranks) rank.machine->on_comm_created(2, 7, SlotSet::first(2));
  lab.ranks[1].done = 6;
  lab.ranks[2].machine->on_deadline(1, 0, 1);
  lab.settle();
  for (const Rank& rank : lab.ranks) {
    const InstallView& view = rank.installed.at(0);
    assert_int_equal(view.view->members.count(), 3);
    assert_int_equal(view.affected.size(), 1);
    assert_int_equal(view.affected[0].comm, 1);
    assert_int_equal(view.affected[0].new_epoch, 2);
    assert_int_equal(view.affected[0].why, kAffectedByDeadline);
    assert_int_equal(rank.machine->comm_epoch(2), 7);
    assert_int_equal(view.decision->channels.at(0).last_completed, 6);
    assert_int_equal(view.decision->channels[0].next, 8);
    assert_int_equal(view.decision->channels[0].donor, 1);
    // All but the one that had called beyond what is done.
    SlotSet late = SlotSet::first(3);
    late.remove(1);
    assert_true(view.decision->channels[0].late == late);
  }
  assert_int_equal(lab.ranks[1].sends.size(), 2);
  lab.ranks[2].machine->on_deadline(1, 0, 1);  // of the epoch that is over
  lab.run_for(1'000'000);
  assert_int_equal(lab.ranks[0].installed.size(), 1);
}

// Also when no call was under way: N* + 1 is the call that reports the change.
void a_change_has_a_call_that_reports_it(void**) {
  for (const uint64_t ahead : {0u, 1u, 3u}) {
    Lab lab(3);
    for (Rank& rank : lab.ranks) rank.ahead = 0;
    lab.ranks[1].ahead = ahead;
    lab.kill(2);
    for (const uint32_t rank : {0u, 1u}) {
      const auto& channel = lab.ranks[rank].installed.at(0).decision->channels.at(0);
      assert_int_equal(channel.last_completed, 5);
      assert_int_equal(channel.next, ahead == 3 ? 9 : 7);
    }
  }
}

void revoke_reaches_all(void**) {
  Lab lab(3);
  lab.ranks[1].machine->on_revoke(1);
  lab.settle();
  for (const Rank& rank : lab.ranks)
    assert_int_equal(rank.installed.at(0).affected.at(0).why, kAffectedByRevoke);
}

Config with_leads(uint32_t leads) {
  Config config;
  config.rows_to_all_up_to = 0;
  config.leads = leads;
  return config;
}

void in_a_large_view_rows_go_to_leads(void**) {
  uint64_t sent[2] = {};
  for (const uint32_t leads : {1u, 8u}) {
    Lab lab(8, with_leads(leads), 4);
    const uint64_t before = lab.rows_sent;
    lab.kill(7);
    sent[leads == 1 ? 0 : 1] = lab.rows_sent - before;
    for (uint32_t i = 0; i < 7; ++i)
      assert_int_equal(lab.ranks[i].machine->view().members.count(), 7);
  }
  // Each member to the lead, and the lead to all: 4 rows; the lowest member of the host tells all of the death.
  assert_in_range(sent[0], 1, 100);
  assert_in_range(sent[1], 150, 300);
}

void leads_that_die_together_have_heirs(void**) {
  Lab lab(8, with_leads(2), 8);
  for (uint32_t victim = 0; victim < 3; ++victim) lab.ranks[victim].alive = false;
  for (uint32_t by = 3; by < 8; ++by)
    for (uint32_t victim = 0; victim < 3; ++victim)
      lab.ranks[by].machine->on_connection_lost(victim, 100 + victim);
  lab.run_for(1'000'000);
  for (uint32_t i = 3; i < 8; ++i)
    assert_int_equal(lab.ranks[i].machine->view().members.count(), 5);
}

// Rank 2 is told of an accusation while rank 4 takes it for a lead. It is withdrawn. Later rank 2 takes itself for a lead.
void an_accusation_is_withdrawn_from_all_who_know_it(void**) {
  Lab lab(6, with_leads(2), 6);
  Membership& accuser = *lab.ranks[4].machine;
  accuser.on_connection_lost(0, 100);
  accuser.on_connection_lost(5, 105);
  lab.settle();
  accuser.on_connection_up(0, 100);
  accuser.on_connection_up(5, 105);
  lab.settle();
  lab.ranks[1].stopped = true;  // so that it is later to judge what follows
  lab.ranks[2].machine->on_connection_lost(0, 100);
  lab.settle();
  lab.run_for(200'000);
  lab.resume(1);
  lab.run_for(15'000'000);
  assert_true(lab.ranks[0].machine->view().members.has(5));
  assert_false(lab.ranks[0].machine->view().members.has(2));
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_kill_needs_no_threshold),
      cmocka_unit_test(eight_to_one),
      cmocka_unit_test(all_but_the_highest_at_once),
      cmocka_unit_test(a_stop_of_100_ms_is_nothing),
      cmocka_unit_test(a_stop_of_some_seconds_is_reported_only),
      cmocka_unit_test(a_stop_of_10_s_is_an_eviction),
      cmocka_unit_test(of_two_the_lowest_stays),
      cmocka_unit_test(who_beats_seldom_is_not_late),
      cmocka_unit_test(of_two_the_higher_goes),
      cmocka_unit_test(a_half_that_the_witness_refuses_gives_up),
      cmocka_unit_test(the_defaults_are_told),
      cmocka_unit_test(slowed_20_fold_is_not_evicted),
      cmocka_unit_test(silent_threads_of_one_process_stay),
      cmocka_unit_test(a_process_in_the_place_of_a_thread_may_be_evicted),
      cmocka_unit_test(a_late_rank_accuses_nobody),
      cmocka_unit_test(one_accuser_is_not_enough),
      cmocka_unit_test(of_a_broken_pair_the_higher_goes),
      cmocka_unit_test(of_two_cut_hosts_the_one_that_speaks_first_is_not_to_blame),
      cmocka_unit_test(who_has_lost_many_links_goes_when_nobody_else_does),
      cmocka_unit_test(who_has_lost_all_links_goes_at_once),
      cmocka_unit_test(old_incarnations_do_nothing),
      cmocka_unit_test(leaving_says_why),
      cmocka_unit_test(an_abort_told_by_others_is_no_leave),
      cmocka_unit_test(who_leaves_is_not_excluded),
      cmocka_unit_test(who_leaves_and_ends_is_believed),
      cmocka_unit_test(eviction_by_request),
      cmocka_unit_test(a_deadline_changes_the_comm_not_the_members),
      cmocka_unit_test(a_change_has_a_call_that_reports_it),
      cmocka_unit_test(revoke_reaches_all),
      cmocka_unit_test(in_a_large_view_rows_go_to_leads),
      cmocka_unit_test(leads_that_die_together_have_heirs),
      cmocka_unit_test(an_accusation_is_withdrawn_from_all_who_know_it),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

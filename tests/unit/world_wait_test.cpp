// labels: quick
// When a wait gives its core away, and when it rather sleeps.
#include "core/world/wait.hpp"

#include "support/cmocka_cpp.hpp"

namespace {

using mep::YieldGauge;

constexpr uint64_t kStartNs = 1'000'000'000;

void gives_cores_away_while_that_is_quick(void**) {
  YieldGauge gauge;
  for (uint64_t i = 0; i < 1000; ++i) {
    const uint64_t away_ns = kStartNs + i * 10'000'000;
    assert_false(gauge.note(away_ns, away_ns + YieldGauge::kDearNs));
    assert_false(gauge.sleeps());
  }
}

void sleeps_for_some_waits_after_a_lost_time_slice(void**) {
  YieldGauge gauge;
  assert_true(gauge.note(kStartNs, kStartNs + YieldGauge::kDearNs + 1));
  for (uint32_t i = 0; i < YieldGauge::kSleeps; ++i) assert_true(gauge.sleeps());
  assert_false(gauge.sleeps());
}

void times_some_waits(void**) {
  YieldGauge gauge;
  uint32_t timed = 0;
  for (uint32_t i = 0; i < 100 * YieldGauge::kTimed; ++i) timed += gauge.times() ? 1 : 0;
  assert_int_equal(timed, 100);
}

// Only first yields that bring the word, and that a change of process explains, speak for a shared core.
void stops_spinning_where_ranks_share_a_core(void**) {
  YieldGauge gauge;
  constexpr uint64_t kAway = 10'000;
  const auto yields = [&](uint32_t times, uint64_t took_ns, bool came) {
    for (uint32_t i = 0; i < times; ++i) gauge.note_first_yield(took_ns, came);
  };
  yields(10, YieldGauge::kSwitchNs - 1, true);  // it came from another core meanwhile
  yields(10, YieldGauge::kDearNs + 1, true);    // another program had the core
  yields(10, kAway, false);
  for (int i = 0; i < 10; ++i) {
    yields(YieldGauge::kShared - 1, kAway, true);
    assert_true(gauge.spins());
    yields(1, kAway, false);
  }
  yields(YieldGauge::kShared, kAway, true);
  assert_false(gauge.spins());
  for (int i = 0; i < 10; ++i) {
    yields(YieldGauge::kAlone - 1, YieldGauge::kSwitchNs - 1, false);
    assert_false(gauge.spins());
    yields(1, kAway, true);
  }
  yields(YieldGauge::kAlone, YieldGauge::kSwitchNs - 1, false);
  assert_true(gauge.spins());
}

// The policy of ranks that have a core each: a wait asks the gauge whether it spins.
void adapting_waits_spin_as_the_gauge_says(void**) {
  YieldGauge gauge;
  mep::WaitPolicy policy;
  policy.spins = 1000;
  policy.gauge = &gauge;
  policy.adapts = true;
  mep::Doorbell doorbell{};
  assert_false(policy.yields_at_once());
  for (uint32_t i = 0; i < YieldGauge::kShared; ++i) gauge.note_first_yield(10'000, true);
  assert_true(policy.yields_at_once());
  uint32_t looks = 0;
  assert_true(mep::wait_until(policy, &doorbell, mep::Deadline::after_ms(60'000),
                              [&] { return ++looks == 5; }));
  // Each look that did not spin gave the core away: alone on its core, the rank spins again after some waits.
  for (uint32_t i = 0; i < 100 * YieldGauge::kAlone * YieldGauge::kTimed && policy.yields_at_once();
       ++i) {
    looks = 0;
    assert_true(mep::wait_until(policy, &doorbell, mep::Deadline::after_ms(60'000),
                                [&] { return ++looks == 3; }));
  }
  assert_false(policy.yields_at_once());
}

// A wait under this policy ends by its deadline and by its condition, yielding or sleeping.
void waits_end_either_way(void**) {
  YieldGauge gauge;
  mep::WaitPolicy policy;
  policy.spins = 0;
  policy.gauge = &gauge;
  mep::Doorbell doorbell{};
  for (const bool dear : {false, true}) {
    if (dear) assert_true(gauge.note(kStartNs, kStartNs + 2 * YieldGauge::kDearNs));
    uint32_t looks = 0;
    assert_true(mep::wait_until(policy, &doorbell, mep::Deadline::after_ms(60'000),
                                [&] { return ++looks == 5; }));
    assert_int_equal(looks, 5);
    assert_false(
        mep::wait_until(policy, &doorbell, mep::Deadline::after_ms(1), [] { return false; }));
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(gives_cores_away_while_that_is_quick),
      cmocka_unit_test(sleeps_for_some_waits_after_a_lost_time_slice),
      cmocka_unit_test(times_some_waits),
      cmocka_unit_test(stops_spinning_where_ranks_share_a_core),
      cmocka_unit_test(adapting_waits_spin_as_the_gauge_says),
      cmocka_unit_test(waits_end_either_way),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

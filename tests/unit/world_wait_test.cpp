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
      cmocka_unit_test(waits_end_either_way),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

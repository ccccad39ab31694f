// When a wait gives its core away, and when it rather sleeps.
#include "core/world/wait.hpp"

#include "support/cmocka_cpp.hpp"

namespace {

using mep::YieldGauge;

constexpr uint64_t kStartNs = 1'000'000'000;

void yields_while_that_is_quick(void**) {
  YieldGauge gauge;
  for (uint64_t i = 0; i < 1000; ++i) {
    gauge.note(kStartNs + i * 10'000, kStartNs + i * 10'000 + YieldGauge::kDearNs);
  }
  assert_false(gauge.is_dear(kStartNs + 10'000'000));
}

void sleeps_for_a_while_after_a_lost_time_slice(void**) {
  YieldGauge gauge;
  const uint64_t back_ns = kStartNs + 4'000'000;
  gauge.note(kStartNs, back_ns);
  assert_true(gauge.is_dear(back_ns));
  assert_true(gauge.is_dear(back_ns + YieldGauge::kForgetNs - 1));
  assert_false(gauge.is_dear(back_ns + YieldGauge::kForgetNs));
}

void gives_nothing_away_while_it_is_dear(void**) {
  YieldGauge gauge;
  const uint64_t now_ns = mep::now_ns();
  gauge.note(now_ns, now_ns + YieldGauge::kForgetNs * 1000);
  assert_false(gauge.yield(now_ns + YieldGauge::kForgetNs * 1000));
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(yields_while_that_is_quick),
      cmocka_unit_test(sleeps_for_a_while_after_a_lost_time_slice),
      cmocka_unit_test(gives_nothing_away_while_it_is_dear),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

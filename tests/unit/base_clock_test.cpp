// labels: quick
// Deadlines: edges that need no waiting, because a deadline is a number.
#include <stdint.h>

#include <climits>
#include <ctime>

#include "base/clock.hpp"
#include "support/cmocka_cpp.hpp"

namespace {

void time_is_monotonic_and_of_the_right_clock(void**) {
  timespec before{};
  timespec after{};
  clock_gettime(CLOCK_MONOTONIC, &before);
  uint64_t last = mep::now_ns();
  for (int i = 0; i < 1000; ++i) {
    const uint64_t now = mep::now_ns();
    assert_true(now >= last);
    last = now;
  }
  clock_gettime(CLOCK_MONOTONIC, &after);
  assert_true(last >= before.tv_sec * 1000000000ull + before.tv_nsec);
  assert_true(last <= after.tv_sec * 1000000000ull + after.tv_nsec);
}

void expiry(void**) {
  assert_true(mep::Deadline::after_ms(0).expired());
  assert_true(mep::Deadline::at(0).expired());
  assert_false(mep::Deadline::never().expired());
  assert_false(mep::Deadline::after_ms(3600000).expired());
}

void time_left_is_rounded_up_and_capped(void**) {
  assert_int_equal(mep::Deadline::at(0).left_ms(100), 0);
  assert_int_equal(mep::Deadline::never().left_ms(100), 100);
  assert_int_equal(mep::Deadline::never().left_ms(INT_MAX), INT_MAX);
  assert_int_equal(mep::Deadline::never().left_ms(0), 0);
  assert_int_equal(mep::Deadline::never().left_ms(-5), 0);
  assert_int_equal(mep::Deadline::after_ms(3600000).left_ms(50), 50);
  // An hour away, with no cap that matters: never more than an hour, and not rounded down to less
  // than the clock allows at the moment of asking.
  const mep::Deadline hour = mep::Deadline::after_ms(3600000);
  const int left = hour.left_ms(INT_MAX);
  const uint64_t now = mep::now_ns();
  assert_true(left <= 3600000);
  assert_true(now + static_cast<uint64_t>(left) * 1000000u >= hour.at_ns());
}

void a_wait_of_left_ms_never_ends_early(void**) {
  // Rounding down would make poll(0) spin; the last fraction of a millisecond still counts as one.
  const mep::Deadline soon = mep::Deadline::at(mep::now_ns() + 400000);
  const int left = soon.left_ms(1000);
  assert_true(left == 1 || soon.expired());
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(time_is_monotonic_and_of_the_right_clock),
      cmocka_unit_test(expiry),
      cmocka_unit_test(time_left_is_rounded_up_and_capped),
      cmocka_unit_test(a_wait_of_left_ms_never_ends_early),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

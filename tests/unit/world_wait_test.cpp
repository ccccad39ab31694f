// labels: quick
// When a wait looks, when it gives its core away, and when it rather sleeps.
#include "core/world/wait.hpp"

#include <sched.h>

#include "support/cmocka_cpp.hpp"

namespace {

using mep::YieldGauge;

constexpr uint64_t kUs = 1'000;
constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kAloneNs = 600;       // a yield that nobody else wants
constexpr uint64_t kSharedNs = 4 * kUs;  // ... that another rank takes
constexpr uint64_t kSliceNs = 4 * kMs;   // ... that a program takes
constexpr uint64_t kLookNs = 50 * kUs;   // looking as long as a wait does

// One rank's waits on a core of this kind. The clock is simulated, and so is what each way of waiting costs.
struct Core {
  uint64_t yield_ns;   // what giving the core away takes
  uint64_t answer_ns;  // a rank with a core of its own answers so soon; 0: it shares this one
  uint64_t sleep_ns = 15 * kUs;
};

struct Rank {
  YieldGauge gauge;
  uint64_t now = 1'000 * kMs;
  uint32_t looked = 0;
  uint32_t yielded = 0;
  uint32_t slept = 0;

  explicit Rank(bool has_core) { gauge.begin(2, has_core); }

  void wait(const Core& core) {
    const bool finds = core.answer_ns != 0 && core.answer_ns <= kLookNs;
    if (gauge.spins()) {
      ++looked;
      now += finds ? core.answer_ns : kLookNs;
      if (finds) return gauge.note_paid();
    }
    const YieldGauge::Start start = gauge.start(now, true);
    if (start.tries) {
      now += finds ? core.answer_ns : kLookNs;
      gauge.note_trial(finds);
      if (finds) return;
    }
    if (!start.sleeps) {
      ++yielded;
      const uint64_t away = now;
      now += core.yield_ns;
      if (!gauge.note_yield(away, now, true)) return;
    }
    ++slept;
    now += core.sleep_ns;
  }
  void waits(uint32_t times, const Core& core) {
    looked = yielded = slept = 0;
    for (uint32_t i = 0; i < times; ++i) wait(core);
  }
};

constexpr Core kOwnCore = {.yield_ns = kAloneNs, .answer_ns = 1 * kUs};
constexpr Core kSharedCore = {.yield_ns = kSharedNs, .answer_ns = 0};
constexpr Core kBusySharedCore = {.yield_ns = kSliceNs, .answer_ns = 0};
constexpr Core kBusyCore = {.yield_ns = kSliceNs, .answer_ns = 1 * kUs};

void looks_while_that_brings_the_words(void**) {
  Rank rank(true);
  rank.waits(10'000, kOwnCore);
  assert_int_equal(rank.looked, 10'000);
  assert_int_equal(rank.yielded + rank.slept, 0);
}

void stops_looking_where_ranks_share_a_core(void**) {
  Rank rank(true);
  rank.waits(100, kSharedCore);
  assert_int_equal(rank.looked, YieldGauge::kShared);
  assert_int_equal(rank.yielded, 100);
  assert_int_equal(rank.slept, 0);
}

// Looks that brought the word, or yields that nobody wanted, speak for a core of its own.
void vain_looks_count_only_in_a_row(void**) {
  Rank rank(true);
  const Core late = {.yield_ns = kAloneNs, .answer_ns = 2 * kLookNs};
  for (int i = 0; i < 100; ++i) {
    rank.waits(YieldGauge::kShared - 1, kSharedCore);
    rank.waits(1, i % 2 == 0 ? kOwnCore : late);
    assert_true(rank.gauge.spins());
  }
  rank.waits(YieldGauge::kShared, kSharedCore);
  assert_false(rank.gauge.spins());
}

void looks_again_when_nobody_wants_the_core(void**) {
  Rank rank(false);
  for (int i = 0; i < 100; ++i) {
    rank.waits(YieldGauge::kAlone - 1, kOwnCore);
    rank.waits(1, kSharedCore);
    assert_false(rank.gauge.spins());
  }
  rank.waits(YieldGauge::kAlone, kOwnCore);
  assert_true(rank.gauge.spins());
}

// A program has the core, so no yield is cheap; trials find that the awaited rank is elsewhere.
void looks_again_when_trials_pay(void**) {
  Rank rank(false);
  rank.waits(1, kBusyCore);
  const uint64_t start = rank.now;
  while (!rank.gauge.spins() && rank.now < start + 100 * YieldGauge::kTrialNs) rank.wait(kBusyCore);
  assert_true(rank.gauge.spins());
  assert_true(rank.now < start + (YieldGauge::kPaid + 2) * YieldGauge::kTrialNs);
  rank.waits(1'000, kBusyCore);
  assert_int_equal(rank.looked, 1'000);
}

// Where they do not pay they stay rare.
void vain_trials_cost_little(void**) {
  Rank rank(false);
  const uint64_t start = rank.now;
  uint32_t waits = 0;
  for (; rank.now < start + 1'000 * kMs; ++waits) rank.wait(kSharedCore);
  assert_false(rank.gauge.spins());
  assert_int_equal(rank.looked, 0);
  assert_true(waits * kSharedNs > 990 * kMs);
  assert_true(rank.now - start - waits * kSharedNs >= 10 * kLookNs);  // but there are some
}

// A hiccup costs waits that sleep for twice as long as it lasted, not longer.
void one_hiccup_is_soon_forgotten(void**) {
  Rank rank(false);
  rank.waits(1'000, kSharedCore);
  rank.waits(1, kBusySharedCore);
  const uint64_t start = rank.now;
  rank.waits(4'096, kSharedCore);
  assert_in_range(rank.slept, 1, 2 * kSliceNs / kSharedCore.sleep_ns + 2);
  assert_true(rank.now < start + 4'096 * kSharedNs + 2 * kSliceNs + 4 * kLookNs);
  // The next one counts as the first: enough cheap yields lie between.
  rank.waits(1, kBusySharedCore);
  rank.waits(4'096, kSharedCore);
  assert_in_range(rank.slept, 1, 2 * kSliceNs / kSharedCore.sleep_ns + 2);
}

void sleeps_while_a_program_has_the_core(void**) {
  Rank rank(true);
  rank.waits(20, kBusySharedCore);
  assert_false(rank.gauge.spins());
  assert_int_equal(rank.yielded, 1);
  assert_int_equal(rank.slept, 20);
  const uint64_t start = rank.now;
  uint32_t waits = 0;
  uint32_t yielded = 0;
  for (; rank.now < start + 2'000 * kMs; ++waits) {
    rank.waits(1, kBusySharedCore);
    yielded += rank.yielded;
  }
  // Probes cost less than a tenth of the time.
  assert_in_range(yielded, 2, 2'000 * kMs / kSliceNs / 10);
  assert_true(waits * kBusySharedCore.sleep_ns > 1'800 * kMs);
}

void yields_again_when_the_program_has_gone(void**) {
  Rank rank(false);
  const uint64_t start = rank.now;
  while (rank.now < start + 2'000 * kMs) rank.wait(kBusySharedCore);
  const uint64_t gone = rank.now;
  rank.waits(1, kSharedCore);
  while (rank.yielded == 0 && rank.now < gone + 2'000 * kMs) rank.waits(1, kSharedCore);
  assert_true(rank.now < gone + (kSliceNs << YieldGauge::kMaxShift) + kMs);
  rank.waits(10'000, kSharedCore);
  assert_int_equal(rank.yielded, 10'000);
}

// A yield that took for ever (the process was stopped) counts as a long slice.
void a_stopped_process_sleeps_no_longer_than_others(void**) {
  Rank rank(false);
  assert_true(rank.gauge.note_yield(rank.now, rank.now + 3'600'000 * kMs, true));
  rank.now += 3'600'000 * kMs;
  assert_true(rank.gauge.start(rank.now + 2 * YieldGauge::kMaxDearNs - 1, true).sleeps);
  assert_false(rank.gauge.start(rank.now + 2 * YieldGauge::kMaxDearNs, true).sleeps);
}

// Findings of other cores say nothing of these.
void notices_that_it_may_run_elsewhere(void**) {
  Rank rank(true);
  rank.gauge.note_place(0b11, 2);
  rank.waits(100, kBusySharedCore);
  assert_false(rank.gauge.spins());
  assert_true(rank.gauge.start(rank.now, true).sleeps);
  rank.gauge.note_place(0b11, 2);
  assert_false(rank.gauge.spins());
  assert_true(rank.gauge.start(rank.now, true).sleeps);
  rank.gauge.note_place(0b1100, 2);
  assert_true(rank.gauge.spins());
  assert_false(rank.gauge.start(rank.now, true).sleeps);
  rank.gauge.note_place(0b1000, 1);  // two ranks, one core
  assert_false(rank.gauge.spins());
  uint32_t asked = 0;
  for (uint32_t i = 0; i < 100 * YieldGauge::kPlaceWaits; ++i) {
    asked += rank.gauge.asks_place() ? 1 : 0;
  }
  assert_int_equal(asked, 100);
}

struct Waits {
  YieldGauge gauge;
  mep::WaitPolicy policy;
  mep::Doorbell doorbell{};

  explicit Waits(bool have_core_each) {
    gauge.begin(2, have_core_each);
    policy.spins = 1'000;
    policy.max_sleep_ns = kMs;
    policy.gauge = &gauge;
    policy.adapts = true;
  }
  // The words are there when it looks for the `looks`-th time.
  void wait(uint32_t looks) {
    uint32_t looked = 0;
    assert_true(mep::wait_until(policy, &doorbell, mep::Deadline::after_ms(60'000),
                                [&] { return ++looked == looks; }));
    assert_int_equal(looked, looks);
  }
  void vain_looks(uint32_t times) {
    for (uint32_t i = 0; i < times; ++i) (void)gauge.note_yield(kMs, kMs + kSharedNs, true);
  }
};

void waits_look_as_the_gauge_says(void**) {
  Waits waits(true);
  assert_false(waits.policy.yields_at_once());
  waits.vain_looks(YieldGauge::kShared - 1);
  waits.wait(500);  // looking pays, and that ends the row
  waits.vain_looks(YieldGauge::kShared - 1);
  assert_true(waits.policy.spins_first());
  waits.vain_looks(1);
  assert_false(waits.policy.spins_first());
  assert_true(waits.policy.yields_at_once());
  waits.policy.adapts = false;  // MEP_SPIN_US
  assert_true(waits.policy.spins_first());
}

// A wait that looked in vain ends the row or makes it longer, by what else wants this core.
void waits_tell_what_their_first_yield_took(void**) {
  Waits waits(true);
  waits.vain_looks(YieldGauge::kShared - 1);
  waits.wait(waits.policy.spins + 2);
  if (!waits.policy.spins_first()) return;
  waits.vain_looks(YieldGauge::kShared - 1);
  assert_true(waits.policy.spins_first());
}

// Waits that sleep never yield, so only trials make them look again.
void waits_try_to_look(void**) {
  Waits waits(false);
  const uint64_t now = mep::now_ns();
  assert_true(waits.gauge.note_yield(now, now + 3'600'000 * kMs, true));
  const mep::Deadline limit = mep::Deadline::after_ms(60'000);
  while (!waits.policy.spins_first() && !limit.expired()) waits.wait(3);
  assert_true(waits.policy.spins_first());
}

// Two ranks have a core each until the mask is narrowed to one. Nothing else turns a policy that does not adapt.
void waits_notice_another_mask(void**) {
  cpu_set_t before;
  assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
  if (CPU_COUNT(&before) < 2) skip();
  Waits waits(true);
  waits.policy.adapts = false;
  waits.policy.spins = 0;
  waits.wait(3);
  cpu_set_t narrow;
  CPU_ZERO(&narrow);
  for (int cpu = 0; CPU_COUNT(&narrow) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &narrow);
  }
  assert_int_equal(sched_setaffinity(0, sizeof(narrow), &narrow), 0);
  for (uint32_t i = 0; i < YieldGauge::kPlaceWaits; ++i) waits.wait(3);
  const bool noticed = waits.policy.yields_at_once();
  assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
  assert_true(noticed);
}

// A wait under this policy ends by its deadline and by its condition, yielding or sleeping.
void waits_end_either_way(void**) {
  YieldGauge gauge;
  gauge.begin(2, false);
  mep::WaitPolicy policy;
  policy.spins = 0;
  policy.gauge = &gauge;
  mep::Doorbell doorbell{};
  for (const bool dear : {false, true}) {
    const uint64_t now = mep::now_ns();
    if (dear) assert_true(gauge.note_yield(now, now + 3'600'000 * kMs, true));
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
      cmocka_unit_test(looks_while_that_brings_the_words),
      cmocka_unit_test(stops_looking_where_ranks_share_a_core),
      cmocka_unit_test(vain_looks_count_only_in_a_row),
      cmocka_unit_test(looks_again_when_nobody_wants_the_core),
      cmocka_unit_test(looks_again_when_trials_pay),
      cmocka_unit_test(vain_trials_cost_little),
      cmocka_unit_test(one_hiccup_is_soon_forgotten),
      cmocka_unit_test(sleeps_while_a_program_has_the_core),
      cmocka_unit_test(yields_again_when_the_program_has_gone),
      cmocka_unit_test(a_stopped_process_sleeps_no_longer_than_others),
      cmocka_unit_test(notices_that_it_may_run_elsewhere),
      cmocka_unit_test(waits_look_as_the_gauge_says),
      cmocka_unit_test(waits_tell_what_their_first_yield_took),
      cmocka_unit_test(waits_try_to_look),
      cmocka_unit_test(waits_notice_another_mask),
      cmocka_unit_test(waits_end_either_way),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

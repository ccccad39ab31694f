// labels: quick threads tsan
// Calls and looks at one comm, without the rest of the library: no call is refused because of a look, no two are
// inside at once, and what a call leaves pending is looked at until nothing is left. They share plain
// memory, so that ThreadSanitizer sees whether each entry finds what the last one left.
#include <thread>

#include "core/comm/call_gate.hpp"
#include "core/world/progress_thread.hpp"
#include "support/coll_sequence.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

class FakeComm final : public mep::ProgressClient {
 public:
  bool enter_look() override {
    ++looks_;
    return gate_.enter_look();
  }
  bool try_look() override { return gate_.try_look(); }
  void leave_look() override { gate_.leave_look(); }
  mep::Progress look() override {
    MEP_TEST_DELAY_POINT("look");
    mep::Progress progress;
    progress.advanced = left_ != 0;
    work(1);
    progress.pending = left_ != 0;
    return progress;
  }

  // A call of the user's that leaves so much more pending, or ends all.
  bool call(mep::ProgressThread& thread, uint64_t more, bool ends_all) {
    if (!gate_.enter()) return false;
    left_ += more;
    MEP_TEST_DELAY_POINT("call");
    if (ends_all) work(left_);
    if (left_ == 0) {
      gate_.leave();
      return true;
    }
    do {
      thread.begin(this);
      MEP_TEST_DELAY_POINT("leave pending");
    } while (!gate_.leave_to_looks());
    return true;
  }
  // Relaxed: a count to wait for.
  uint64_t done() const { return done_.load(std::memory_order_relaxed); }
  uint64_t looks() const { return looks_.load(); }
  int most_inside() const { return most_inside_; }

 private:
  void work(uint64_t units) {
    const int inside = inside_.fetch_add(1) + 1;
    most_inside_ = std::max(most_inside_, inside);
    units = std::min(units, left_);
    left_ -= units;
    done_.fetch_add(units);
    inside_.fetch_sub(1);
  }

  mep::CallGate gate_;
  std::atomic<uint64_t> looks_{0};
  uint64_t left_ = 0;  // who is inside
  int most_inside_ = 0;
  std::atomic<int> inside_{0};
  std::atomic<uint64_t> done_{0};
};

struct Rig {
  alignas(64) mep::Doorbell doorbell{};
  mep::ProgressThread thread{&doorbell, mep::WaitPolicy{}};
  Rig() { mep::doorbell_open(&doorbell); }
};

// Nothing rings: what is lost would wait for the end of a sleep, and so this would take minutes.
bool await_done(const FakeComm& comm, uint64_t count) {
  const mep::Deadline limit = mep::Deadline::after_ms(60'000);
  while (comm.done() != count && !limit.expired()) sched_yield();
  return comm.done() == count;
}

void test_calls_and_looks(void**) {
  constexpr int kComms = 3;
  const size_t rounds = slice(20'000, 500'000);
  enable_delays(test_seed(), 64);
  Rig rig;
  FakeComm comms[kComms];
  Report report;
  for (FakeComm& comm : comms) assert_int_equal(rig.thread.attach(&comm), MEP_SUCCESS);
  on_threads(kComms, [&](int user) {
    FakeComm& comm = comms[user];
    RandomStream own(mix(test_seed(), static_cast<uint64_t>(user)));
    uint64_t given = 0;
    for (size_t round = 0; round < rounds && !report.bad(); ++round) {
      const uint64_t more = own.below(4);
      given += more;
      COLL_CHECK(report, comm.call(rig.thread, more, own.one_in(3)));
      if (own.one_in(64)) COLL_CHECK(report, await_done(comm, given));
      if (own.one_in(256)) const mep::ProgressThread::Pause pause(&rig.thread);
    }
    COLL_CHECK(report, await_done(comm, given));
    rig.thread.detach(&comm);
    COLL_CHECK(report, comm.most_inside() <= 1);
  });
  enable_delays(0, 0);
  report.require_clean();
}

// Two threads are in calls at one time: one is refused, whether or not there are looks.
void test_two_calls(void**) {
  mep::CallGate gate;
  assert_true(gate.enter());
  assert_false(gate.enter());
  assert_false(gate.enter_look());
  assert_false(gate.leave_to_looks());  // a look was turned away
  assert_true(gate.leave_to_looks());
  assert_true(gate.enter_look());
  std::atomic<int> entered{0};
  std::thread waiting([&] { entered.store(gate.enter() ? 1 : -1); });
  // The second is refused once the first waits; before that it would wait itself.
  pause_us(50'000);
  assert_int_equal(entered.load(), 0);
  assert_false(gate.enter());
  gate.leave_look();
  waiting.join();
  assert_int_equal(entered.load(), 1);
  assert_false(gate.uses_no_windows());
  gate.begin_waiting();
  assert_true(gate.uses_no_windows());
  assert_false(gate.enter());
  gate.end_waiting();
  gate.leave();
  assert_true(gate.uses_no_windows());
}

// A program that waits for each operation as soon as it has begun it is left alone.
void test_no_look_between_calls(void**) {
  alignas(64) mep::Doorbell doorbell{};
  mep::doorbell_open(&doorbell);
  FakeComm comm;
  mep::ProgressThread thread(&doorbell, mep::WaitPolicy{});
  assert_int_equal(thread.attach(&comm), MEP_SUCCESS);
  // One whose program does not come back is looked at.
  const auto await_look = [&] {
    const uint64_t all = comm.done() + 1;
    assert_true(comm.call(thread, 1, false));
    for (int waits = 0; waits < 10'000 && comm.done() < all; ++waits) pause_us(1000);
    assert_true(comm.done() == all);
  };
  await_look();
  // Calls of 20 us. The test may lose its core for longer than the thread leaves it.
  const uint64_t before = comm.looks();
  uint64_t losses = 0;
  uint64_t begun_ns = mep::now_ns();
  for (int calls = 0; calls < 2000; ++calls) {
    assert_true(comm.call(thread, 1, false));
    while (mep::now_ns() - begun_ns < 20'000) {
    }
    assert_true(comm.call(thread, 0, true));
    const uint64_t now_ns = mep::now_ns();
    if (now_ns - begun_ns > 100'000) ++losses;
    begun_ns = now_ns;
  }
  // A look takes the one unit, and one more finds that nothing is left.
  assert_true(comm.looks() - before <= 4 * (losses + 1));
  await_look();
  thread.detach(&comm);
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(test_calls_and_looks),
      cmocka_unit_test(test_two_calls),
      cmocka_unit_test(test_no_look_between_calls),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

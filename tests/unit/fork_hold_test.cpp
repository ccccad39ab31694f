// A fork waits for the sections that it must not cut, and its child finds them free.
// labels: quick
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/fork_hold.hpp"
#include "mep.h"
#include "support/cmocka_cpp.hpp"

namespace {

constexpr unsigned kLimitSeconds = 60;

// The answer of `body` in a child, -1 if it did not come to its end.
template <typename Body>
int in_child(Body&& body) {
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(kLimitSeconds);  // a lock that nobody gives back ends it by SIGALRM
    _exit(body());
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void a_child_finds_the_locks_of_a_section_free(void**) {
  std::mutex of_the_process;
  std::atomic<bool> stop{false};
  std::thread other([&] {
    const auto pass = [](uint64_t ns) {
      const uint64_t until = mep::now_ns() + ns;
      while (mep::now_ns() < until) {
      }
    };
    while (!stop.load()) {
      {
        const mep::ForkHold hold;
        const std::lock_guard lock(of_the_process);
        pass(200'000);
      }
      pass(20'000);  // sections go first, so that without a gap a fork waits for long
    }
  });
  for (int i = 0; i < 50; ++i) {
    assert_int_equal(in_child([&] {
                       const mep::ForkHold hold;
                       const mep::ForkHold once_more;
                       return of_the_process.try_lock() ? 7 : 8;
                     }),
                     7);
  }
  stop.store(true);
  other.join();
}

// Threads make and end worlds, which takes all locks of the process; children say that the parent's handle
// is none of theirs, and make a world of their own.
void a_child_is_told_and_starts_anew(void**) {
  std::vector<mep_comm_t> comms(2);
  mep_comm_config_t config;
  mep_comm_config_defaults(&config);
  assert_int_equal(mep_comm_init_all(2, &config, comms.data()), MEP_SUCCESS);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop.load()) {
      std::vector<mep_comm_t> more(2);
      if (mep_comm_init_all(2, &config, more.data()) != MEP_SUCCESS) continue;
      std::thread second([&] { (void)mep_comm_destroy(more[1]); });
      (void)mep_comm_destroy(more[0]);
      second.join();
    }
  });
  const auto in_its_place = [&] {
    if (mep_barrier(comms[0], nullptr) != MEP_ERR_FORKED) return 1;
    if (mep_comm_destroy(comms[1]) != MEP_ERR_FORKED) return 2;
    mep_comm_t own = nullptr;
    if (mep_comm_init_all(1, nullptr, &own) != MEP_SUCCESS) return 3;
    if (mep_barrier(own, nullptr) != MEP_SUCCESS) return 4;
    return mep_comm_destroy(own) == MEP_SUCCESS ? 7 : 5;
  };
  for (int i = 0; i < 30; ++i) assert_int_equal(in_child(in_its_place), 7);
  stop.store(true);
  other.join();
  std::thread second([&] { (void)mep_comm_destroy(comms[1]); });
  assert_int_equal(mep_comm_destroy(comms[0]), MEP_SUCCESS);
  second.join();
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_child_finds_the_locks_of_a_section_free),
      cmocka_unit_test(a_child_is_told_and_starts_anew),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

// labels: quick
// Alone finds: a process that is taken for dead while one of its threads still runs. Under a second.
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/process_end.hpp"
#include "support/cmocka_cpp.hpp"

namespace {

constexpr int kLimitMs = 20'000;

// A process with threads of these names, which end when a byte is sent; it lives on. One thread more computes.
class Process {
 public:
  explicit Process(const std::vector<const char*>& names) {
    int up[2], down[2];
    assert_int_equal(pipe(up) | pipe(down), 0);
    pid_ = fork();
    assert_true(pid_ >= 0);
    if (pid_ == 0) run(names, up[1], down[0]);
    char ready;
    assert_int_equal(read(up[0], &ready, 1), 1);
    command_ = down[1];
    close(up[0]);
    close(up[1]);
    close(down[0]);
  }
  ~Process() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(command_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void end_one_thread() const { assert_int_equal(write(command_, "x", 1), 1); }

 private:
  [[noreturn]] static void run(const std::vector<const char*>& names, int ready, int commands) {
    std::atomic<size_t> begun{0};
    for (const char* name : names) {
      std::thread([&begun, name, commands] {
        pthread_setname_np(pthread_self(), name);
        ++begun;
        char byte;
        (void)!read(commands, &byte, 1);
      }).detach();
    }
    std::thread([] {
      for (;;) sched_yield();
    }).detach();
    while (begun != names.size()) sched_yield();
    (void)!write(ready, "r", 1);
    for (;;) pause();
  }

  pid_t pid_ = -1;
  int command_ = -1;
};

bool becomes_readable(int fd) {
  pollfd wanted{fd, POLLIN, 0};
  return poll(&wanted, 1, kLimitMs) == 1;
}

size_t count(const mep::ThreadPidfds& threads) {
  return static_cast<size_t>(threads[0].valid()) + static_cast<size_t>(threads[1].valid());
}

void needs_thread_pidfds() {
  const Process process({"mep-x"});
  if (count(mep::open_thread_pidfds(process.pid(), "mep-x")) == 0) skip();
}

void threads_are_found_by_their_names(void**) {
  needs_thread_pidfds();
  const Process process({"mep-a", "other", "mep-b", "mep-c"});
  assert_int_equal(count(mep::open_thread_pidfds(process.pid(), "mep-")), 2);
  assert_int_equal(count(mep::open_thread_pidfds(process.pid(), "oth")), 1);
  assert_int_equal(count(mep::open_thread_pidfds(process.pid(), "none")), 0);
}

void end_of_a_thread_is_no_end_of_the_process(void**) {
  needs_thread_pidfds();
  const Process process({"mep-a"});
  const mep::ThreadPidfds threads = mep::open_thread_pidfds(process.pid(), "mep-");
  assert_int_equal(count(threads), 1);
  assert_false(mep::all_threads_exit(process.pid()));
  process.end_one_thread();
  assert_true(becomes_readable(threads[0].get()));
  for (int look = 0; look < 100; ++look) assert_false(mep::all_threads_exit(process.pid()));
}

void killed_process_has_ended(void**) {
  needs_thread_pidfds();
  const Process process({"mep-a", "mep-b"});
  const mep::ThreadPidfds threads = mep::open_thread_pidfds(process.pid(), "mep-");
  const mep::UniqueFd whole = mep::open_pidfd(process.pid());
  assert_int_equal(mep::pid_behind(whole.get()), process.pid());
  kill(process.pid(), SIGKILL);
  assert_true(becomes_readable(threads[0].get()) && becomes_readable(threads[1].get()));
  assert_true(becomes_readable(whole.get()));
  assert_true(mep::all_threads_exit(process.pid()));  // nobody has waited for it
}

void process_that_is_not_there_says_nothing(void**) {
  assert_false(mep::all_threads_exit(0x3fffffff));
  assert_int_equal(count(mep::open_thread_pidfds(0x3fffffff, "mep-")), 0);
  assert_int_equal(mep::pid_behind(-1), -1);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(threads_are_found_by_their_names),
      cmocka_unit_test(end_of_a_thread_is_no_end_of_the_process),
      cmocka_unit_test(killed_process_has_ended),
      cmocka_unit_test(process_that_is_not_there_says_nothing),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

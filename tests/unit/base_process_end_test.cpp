// labels: quick
// Alone finds: a process that is taken for dead while one of its threads still runs. Under a second.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>
#include <vector>

#include "base/process_end.hpp"
#include "support/cmocka_cpp.hpp"

namespace {

// Fails one of the calls by which a look reads /proc, or all from one on. Armed by the test's only thread.
struct Fault {
  bool is_armed = false;
  int after = 0;  // calls that go well before
  int error = 0;
  bool stays = false;
  bool has_struck = false;

  bool strikes() {
    if (!is_armed || (has_struck ? !stays : after-- != 0)) return false;
    has_struck = true;
    errno = error;
    return true;
  }
} fault;

template <typename Function>
Function* next_of(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// The library's calls come here, under the names that 64-bit offsets give.
#pragma GCC visibility push(default)
extern "C" {
DIR* opendir(const char* path) {
  static auto* const next = next_of<DIR*(const char*)>("opendir");
  return fault.strikes() ? nullptr : next(path);
}
dirent* readdir(DIR* folder) {
  static auto* const next = next_of<dirent*(DIR*)>("readdir64");
  return fault.strikes() ? nullptr : next(folder);
}
int open(const char* path, int flags, ...) {
  static auto* const next = next_of<int(const char*, int, ...)>("open64");
  return fault.strikes() ? -1 : next(path, flags, 0);
}
ssize_t read(int fd, void* to, size_t bytes) {
  static auto* const next = next_of<ssize_t(int, void*, size_t)>("read");
  return fault.strikes() ? -1 : next(fd, to, bytes);
}
}
#pragma GCC visibility pop

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

void end_of_a_thread_is_no_end_of_the_process(void**) {
  const Process process({"mep-a"});
  assert_false(mep::all_threads_exit(process.pid()));
  process.end_one_thread();
  for (int look = 0; look < 100; ++look) assert_false(mep::all_threads_exit(process.pid()));
}

void killed_process_has_ended(void**) {
  const Process process({"mep-a", "mep-b"});
  const mep::UniqueFd whole = mep::open_pidfd(process.pid());
  assert_int_equal(mep::pid_behind(whole.get()), process.pid());
  kill(process.pid(), SIGKILL);
  assert_true(becomes_readable(whole.get()));
  assert_true(mep::all_threads_exit(process.pid()));  // nobody has waited for it
}

// A look that lacks a descriptor, at the folder or at a thread, says nothing.
void look_without_descriptors_says_nothing(void**) {
  const Process process({"mep-a"});
  for (const size_t left : {0, 1}) {
    rlimit before{};
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    const rlimit few{64, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    std::vector<mep::UniqueFd> taken;
    for (int fd = open("/dev/null", O_RDONLY); fd >= 0; fd = open("/dev/null", O_RDONLY)) {
      taken.emplace_back(fd);
    }
    taken.resize(taken.size() - left);
    const bool has_ended = mep::all_threads_exit(process.pid());
    taken.clear();
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_false(has_ended);
  }
}

// Each call of a look fails once, with each error: a living process has not ended.
void look_that_fails_says_nothing(void**) {
  const Process process({"mep-a"});
  int calls = 0;
  for (const int error : {EMFILE, ENFILE, ENOMEM, EACCES, EPERM, EIO, EINTR, EAGAIN, ENOENT, ESRCH,
                          ENOTDIR, ELOOP, EBADF, EFAULT, EINVAL}) {
    for (int at = 0;; ++at) {
      fault = {true, at / 2, error, at % 2 != 0};
      const bool has_ended = mep::all_threads_exit(process.pid());
      fault.is_armed = false;
      assert_false(has_ended);
      if (!fault.has_struck) break;
      calls += fault.stays ? 0 : 1;
    }
  }
  assert_true(calls >= 15 * 4);  // opendir, readdir, open, read
}

void process_that_is_not_there_says_nothing(void**) {
  assert_false(mep::all_threads_exit(0x3fffffff));
  assert_int_equal(mep::pid_behind(-1), -1);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(end_of_a_thread_is_no_end_of_the_process),
      cmocka_unit_test(killed_process_has_ended),
      cmocka_unit_test(look_without_descriptors_says_nothing),
      cmocka_unit_test(look_that_fails_says_nothing),
      cmocka_unit_test(process_that_is_not_there_says_nothing),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

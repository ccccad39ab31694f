// labels: quick
// Alone finds: the end of a process whose last thread is the one that holds the words, watchers that hear of no end or of one that
// was none, and kernels without futex_waitv(2). Under a second.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <thread>

#include "base/clock.hpp"
#include "support/cmocka_cpp.hpp"
#include "transport/death_words.hpp"

namespace {

using mep::DeathPage;
using mep::DeathWatch;

constexpr uint32_t kSlot = 5;
constexpr uint64_t kBit = uint64_t{1} << kSlot;

// A process that holds a page by a thread of its own. alone: that thread outlives the process's first.
class Owner {
 public:
  explicit Owner(bool alone = false) : page(DeathPage::create()) {
    assert_non_null(page.get());
    int ready[2];
    assert_int_equal(pipe(ready) | pipe(commands_), 0);
    pid_ = fork();
    assert_true(pid_ >= 0);
    if (pid_ == 0) run(ready[1], alone);
    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
  }
  ~Owner() {
    end();
    close(commands_[0]);
    close(commands_[1]);
  }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;

  void end() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  // The thread lets the words go, and the process ends well.
  void leave() {
    assert_int_equal(write(commands_[1], "l", 1), 1);
    int status = -1;
    assert_int_equal(waitpid(pid_, &status, 0), pid_);
    assert_int_equal(status, 0);
    pid_ = -1;
  }

  const std::shared_ptr<DeathPage> page;

 private:
  [[noreturn]] void run(int ready, bool alone) const {
    std::atomic<bool> may_end{false};
    std::thread([&] {
      page->hold();
      char byte = 'r';
      while (alone && !may_end.load()) sched_yield();
      (void)!write(ready, &byte, 1);
      (void)!read(commands_[0], &byte, 1);
      page->release();
      _exit(0);
    }).detach();
    may_end.store(true);
    if (alone) syscall(SYS_exit, 0);
    for (;;) pause();
  }

  pid_t pid_ = -1;
  int commands_[2] = {-1, -1};
};

// A watcher, and what it was told.
class Watcher {
 public:
  explicit Watcher(const Owner& owner, uint32_t word = 0) { watch(owner, word); }
  void watch(const Owner& owner, uint32_t word) { watch_.watch(kSlot, owner.page->fd(), word); }
  uint64_t take() { return watch_.take(); }
  void await_ring() const {
    const mep::Deadline limit = mep::Deadline::after_ms(20'000);
    while (rings_.load() == 0 && !limit.expired()) sched_yield();
    assert_true(rings_.load() != 0);
  }

 private:
  std::atomic<int> rings_{0};
  DeathWatch watch_{DeathPage::create(), [this] { ++rings_; }};
};

void killed_process_is_told_to_each_watcher(void**) {
  for (const bool alone : {false, true}) {
    Owner owner(alone);
    Watcher first(owner, 0), second(owner, DeathPage::kWords - 1);
    assert_int_equal(first.take(), 0);
    owner.end();
    for (Watcher* watcher : {&first, &second}) {
      watcher->await_ring();
      assert_int_equal(watcher->take(), kBit);
      assert_int_equal(watcher->take(), 0);
    }
  }
}

void process_that_is_gone_is_told_at_once(void**) {
  Owner owner;
  owner.end();
  Watcher watcher(owner);
  watcher.await_ring();
  assert_int_equal(watcher.take(), kBit);
}

// The one that comes to its place is watched.
void process_that_leaves_is_not_told(void**) {
  Owner leaves;
  Watcher watcher(leaves);
  leaves.leave();
  assert_int_equal(watcher.take(), 0);
  Owner dies;
  watcher.watch(dies, 1);
  dies.end();
  watcher.await_ring();
  assert_int_equal(watcher.take(), kBit);
}

void page_that_is_none_is_not_watched(void**) {
  Owner owner;
  DeathWatch nobody(nullptr, [] { std::abort(); });
  nobody.watch(kSlot, owner.page->fd(), 0);
  DeathWatch watch(DeathPage::create(), [] { std::abort(); });
  watch.watch(kSlot, -1, 0);
  watch.watch(kSlot, STDIN_FILENO, 0);
  watch.watch(DeathPage::kWords, owner.page->fd(), 0);
  watch.watch(kSlot, owner.page->fd(), DeathPage::kWords);
}

// In a process whose kernel lacks the call.
void works_without_waiting_for_many(void**) {
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 449, 0, 1),  // futex_waitv
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter = {std::size(program), program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
      _exit(77);
    }
    process_that_leaves_is_not_told(nullptr);
    killed_process_is_told_to_each_watcher(nullptr);
    _exit(0);
  }
  int status = -1;
  assert_int_equal(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) skip();
  assert_int_equal(status, 0);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(killed_process_is_told_to_each_watcher),
      cmocka_unit_test(process_that_is_gone_is_told_at_once),
      cmocka_unit_test(process_that_leaves_is_not_told),
      cmocka_unit_test(page_that_is_none_is_not_watched),
      cmocka_unit_test(works_without_waiting_for_many),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

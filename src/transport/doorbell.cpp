// The futex is not process-private: the word lies in memory shared with the peers that ring.
#include "transport/doorbell.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>

#include "base/fork_hold.hpp"

#if defined(__SANITIZE_THREAD__)
#define MEP_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MEP_TSAN 1
#endif
#endif

namespace mep {
namespace {

// Whether this process is registered, so that a sleeper's membarrier reaches its CPUs, and may
// itself call it. Both need the same system call, which a sandbox may forbid to one process and not
// to another.
bool membarrier_ready() {
#if defined(MEP_TSAN)
  return false;  // it cannot see what a system call orders
#else
  const ForkHold hold;
  static const bool ready = [] {
    constexpr int kNeeded =
        MEMBARRIER_CMD_GLOBAL_EXPEDITED | MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
    const long known = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
    if (known < 0 || (known & kNeeded) != kNeeded) return false;
    return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
  }();
  return ready;
#endif
}

void demand_fences(Doorbell* doorbell) {
  // Sequentially consistent: in one order with the stores and loads of the handshake.
  doorbell->needs_fence.store(1, std::memory_order_seq_cst);
}

// The eventfds of the ranks whose doorbells this process has mapped. Looked up only for ranks that
// sleep in epoll, right before a system call.
struct EventTable {
  std::mutex mutex;
  std::map<const Doorbell*, UniqueFd> events;
};

EventTable& event_table() {
  // Never destroyed: threads may ring while the process ends.
  const ForkHold hold;
  static auto* table = new EventTable();
  return *table;
}

void wake_event(const Doorbell* doorbell) {
  EventTable& table = event_table();
  const ForkHold hold;
  const std::lock_guard lock(table.mutex);
  const auto found = table.events.find(doorbell);
  if (found == table.events.end()) return;
  const uint64_t one = 1;
  (void)!write(found->second.get(), &one, sizeof one);  // full means readable already
}

bool is_eventfd(int fd) {
  char path[64];
  char target[64] = "";
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(path, target, sizeof target - 1);
  return length > 0 && std::strcmp(target, "anon_inode:[eventfd]") == 0;
}

void wake_all(Doorbell* doorbell) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&doorbell->rings), FUTEX_WAKE, INT_MAX, nullptr,
          nullptr, 0);
}

}  // namespace

void doorbell_open(Doorbell* doorbell) {
  if (!membarrier_ready()) demand_fences(doorbell);
}

void doorbell_join(Doorbell* doorbell) {
  if (!membarrier_ready()) demand_fences(doorbell);
}

void doorbell_ring(Doorbell* doorbell) {
  // Release: whoever takes its ticket after this ring sees the signal that it stands for.
  doorbell->rings.fetch_add(1, std::memory_order_release);
  wake_all(doorbell);
  // Relaxed: set before the sleepers that were seen were counted.
  if (doorbell->has_event.load(std::memory_order_relaxed) != 0) wake_event(doorbell);
}

void doorbell_ring_sleepers(Doorbell* doorbell) {
  // Sequentially consistent, and a change of `sleepers`: S2 comes before it and is seen here, or comes
  // after it, and then S4 sees the words.
  const uint32_t sleepers = doorbell->sleepers.fetch_add(0, std::memory_order_seq_cst);
  if ((sleepers & kSleeperCountMask) != 0) doorbell_ring(doorbell);
}

void doorbell_bind_event(Doorbell* doorbell, UniqueFd event) {
  if (doorbell == nullptr || !event.valid() || !is_eventfd(event.get())) return;
  // A ring must not block, whoever made the descriptor.
  fcntl(event.get(), F_SETFL, fcntl(event.get(), F_GETFL) | O_NONBLOCK);
  EventTable& table = event_table();
  const ForkHold hold;
  const std::lock_guard lock(table.mutex);
  table.events[doorbell] = std::move(event);
}

void doorbell_unbind_event(Doorbell* doorbell) {
  EventTable& table = event_table();
  const ForkHold hold;
  const std::lock_guard lock(table.mutex);
  table.events.erase(doorbell);
}

void doorbell_sleeps_by_event(Doorbell* doorbell) {
  demand_fences(doorbell);
  // Sequentially consistent: before S2 of the first sleeper that needs it.
  doorbell->has_event.store(1, std::memory_order_seq_cst);
}

void doorbell_prepare_renewed(const Doorbell* current, Doorbell* fresh) {
  // Relaxed: nobody else knows the fresh pages, and what of the current ones changes from now on is
  // made up for by doorbell_renewed() and by peers that import again.
  const uint32_t counted = current->sleepers.load(std::memory_order_relaxed);
  fresh->sleepers.store((counted & ~kSleeperCountMask) + kSleeperCountMask + 1,
                        std::memory_order_relaxed);
  fresh->rings.store(current->rings.load(std::memory_order_relaxed), std::memory_order_relaxed);
  fresh->needs_fence.store(current->needs_fence.load(std::memory_order_relaxed),
                           std::memory_order_relaxed);
  fresh->has_event.store(current->has_event.load(std::memory_order_relaxed),
                         std::memory_order_relaxed);
}

void doorbell_renewed(Doorbell* doorbell, Doorbell* old_pages) {
  // A thread may hold a ticket from the old pages and be counted there only. The jump makes every
  // such ticket stale, however often the old pages were rung after they had been copied; several
  // jumps in a row do not come back to it either.
  constexpr uint32_t kJump = 0x40000001;
  doorbell->rings.fetch_add(kJump, std::memory_order_release);
  wake_all(doorbell);
  wake_all(old_pages);
  wake_event(doorbell);
}

void doorbell_order_sleep(Doorbell* doorbell, bool signallers_fence) {
  if (!signallers_fence && membarrier_ready() &&
      syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) != 0) {
    demand_fences(doorbell);  // allowed when this process started, forbidden since
  }
#if defined(MEP_TSAN)
  doorbell->sleepers.fetch_add(0, std::memory_order_seq_cst);  // it does not know fences
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

void doorbell_wait(Doorbell* doorbell, uint32_t ticket, uint64_t timeout_ns) {
  constexpr uint64_t kNsPerSecond = 1000000000;
  constexpr uint64_t kLongestSeconds = 1000000000;  // fits any time_t; waking early is allowed
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(
      timeout_ns / kNsPerSecond < kLongestSeconds ? timeout_ns / kNsPerSecond : kLongestSeconds);
  timeout.tv_nsec = static_cast<long>(timeout_ns % kNsPerSecond);
  // Every way to return (rung, ticket stale, interrupted, timeout) means the same: look again.
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&doorbell->rings), FUTEX_WAIT, ticket, &timeout,
          nullptr, 0);
}

}  // namespace mep

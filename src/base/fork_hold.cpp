#include "base/fork_hold.hpp"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <cstdint>

namespace mep {
namespace {

constexpr int32_t kForking = -1;

// How many threads are inside a section, or kForking. Those that come go first while a fork waits, so that a
// section within another, or behind a lock of one, does not wait for a fork that waits for the outer one.
// Acquire and release: a fork sees what all sections before it did, and the sections after it that it is over.
std::atomic<int32_t> inside{0};

void before_fork() {
  int32_t nobody = 0;
  while (!inside.compare_exchange_weak(nobody, kForking, std::memory_order_acquire,
                                       std::memory_order_relaxed)) {
    nobody = 0;
    sched_yield();
  }
}

// In the parent and in the child, which has this thread alone.
void after_fork() {
  inside.store(0, std::memory_order_release);
}

// When the library is loaded, before any thread can be inside.
[[maybe_unused]] const int kWatches = pthread_atfork(before_fork, after_fork, after_fork);

}  // namespace

ForkHold::ForkHold() {
  int32_t count = inside.load(std::memory_order_relaxed);
  while (count == kForking ||
         !inside.compare_exchange_weak(count, count + 1, std::memory_order_acquire,
                                       std::memory_order_relaxed)) {
    if (count == kForking) {
      sched_yield();
      count = inside.load(std::memory_order_relaxed);
    }
  }
}

ForkHold::~ForkHold() {
  inside.fetch_sub(1, std::memory_order_release);
}

}  // namespace mep

#include "core/world/request_event.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>

#include "base/library_thread.hpp"
#include "base/status.hpp"
#include "base/system_error.hpp"
#include "core/world/doorbell_delays.hpp"

namespace mep {
namespace {

// A bound on what a lost ring could cost, as WaitPolicy::max_sleep_ns.
constexpr uint64_t kLongestSleepNs = 50'000'000;

void ring(int event) {
  const uint64_t one = 1;
  // Cannot fail in a way that matters: the counter is full only if it is readable already.
  (void)!write(event, &one, sizeof one);
}

}  // namespace

RequestEvent::~RequestEvent() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  doorbell_ring(doorbell_);
  if (thread_.joinable()) thread_.join();
}

mep_result_t RequestEvent::add(const Deadline& deadline, UniqueFd* event) {
  UniqueFd made;
  MEP_TRY(open_eventfd("a request's descriptor", 1, &made));
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) {
    MEP_TRY(start_library_thread(
        "a thread for the request", [this] { loop(); }, &thread_));
  }
  events_.insert_or_assign(made.get(), deadline);
  *event = std::move(made);
  changed_.notify_all();
  // An earlier deadline than the one that the thread sleeps for.
  doorbell_ring(doorbell_);
  return MEP_SUCCESS;
}

void RequestEvent::remove(const UniqueFd& event) {
  const std::lock_guard lock(mutex_);
  events_.erase(event.get());
}

void RequestEvent::loop() {
  pthread_setname_np(pthread_self(), "mep-requests");
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !events_.empty(); });
      if (stopping_) return;
    }
    // Events signalled before the sleep is announced ring nobody: so they are told after that. Later ones end the
    // sleep.
    WaitSleep sleep(doorbell_);
    sleep.wait(ring_all());
  }
}

// Returns for how long to sleep.
uint64_t RequestEvent::ring_all() {
  const std::lock_guard lock(mutex_);
  if (stopping_) return 0;
  const uint64_t now = now_ns();
  uint64_t until = now + kLongestSleepNs;
  for (auto& [event, deadline] : events_) {
    ring(event);
    if (deadline.at_ns() <= now) deadline = Deadline::never();
    until = std::min(until, deadline.at_ns());
  }
  return until - now;
}

}  // namespace mep

#include "core/world/progress_thread.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/timerfd.h>

#include <algorithm>

#include "base/library_thread.hpp"
#include "base/status.hpp"
#include "base/system_error.hpp"
#include "base/test_delay.hpp"

namespace mep {
namespace {

// The cores are the program's: it sleeps soon. Over a network it looks that long without giving its core away.
constexpr uint64_t kLookNs = 50'000;

// For so long after a call, at least and at most, it leaves the operations to the program's next call. Between the two no
// call pays for setting the timer back.
constexpr uint64_t kLeastGraceNs = 150'000;
constexpr uint64_t kMostGraceNs = 400'000;

WaitPolicy patient(WaitPolicy policy) {
  policy.spins = 0;
  policy.yield_ns = kLookNs;
  policy.network_spin_ns = std::min(policy.network_spin_ns, kLookNs);
  policy.network_yield_ns = 0;
  policy.gauge = nullptr;
  policy.adapts = false;
  return policy;
}

}  // namespace

ProgressThread::ProgressThread(Doorbell* doorbell, const WaitPolicy& policy)
    : doorbell_(doorbell), policy_(patient(policy)) {}

ProgressThread::~ProgressThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_in(0);
  }
  doorbell_ring(doorbell_);
  if (thread_.joinable()) thread_.join();
}

// --- The user's threads ---------------------------------------------------------------------------

mep_result_t ProgressThread::attach(ProgressClient* client) {
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) {
    if (!timer_.valid()) {
      timer_.reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
      if (!timer_.valid()) return fail_call("the progress thread", "timerfd_create", errno);
    }
    MEP_TRY(start_library_thread(
        "the progress thread", [this] { loop(); }, &thread_));
  }
  clients_.push_back(client);
  return MEP_SUCCESS;
}

void ProgressThread::detach(ProgressClient* client) {
  std::unique_lock lock(mutex_);
  looked_.wait(lock, [&] { return looked_at_ != client; });
  if (std::erase(clients_, client) == 0) return;
  if (client->is_pending_) --pending_;
  client->is_pending_ = false;
  has_begun_ = true;  // a round of looks may have gone over another client
}

void ProgressThread::begin(ProgressClient* client) {
  bool sleeps = false;
  {
    const std::lock_guard lock(mutex_);
    const bool is_new = !client->is_pending_;
    if (is_new) {
      client->is_pending_ = true;
      ++pending_;
      has_begun_ = true;
    }
    sleeps = is_waiting_ && is_new;
    // Another comm that is pending keeps its time.
    if (!is_waiting_ && pending_ == 1 && pauses_ == 0 && timer_due_ns_ < now_ns() + kLeastGraceNs) {
      wake_in(kMostGraceNs);
    }
  }
  if (sleeps) doorbell_ring(doorbell_);
}

ProgressThread::Pause::Pause(ProgressThread* thread) : thread_(thread) {
  if (thread == nullptr) return;
  std::unique_lock lock(thread->mutex_);
  ++thread->pauses_;
  thread->looked_.wait(lock, [&] { return thread->looked_at_ == nullptr; });
}

ProgressThread::Pause::~Pause() {
  if (thread_ == nullptr) return;
  const std::lock_guard lock(thread_->mutex_);
  --thread_->pauses_;
  thread_->wake_in(0);
}

// --- The thread itself ----------------------------------------------------------------------------

void ProgressThread::loop() {
  pthread_setname_np(pthread_self(), "mep-progress");
  while (await_pending()) {
    (void)wait_until(policy_, doorbell_, Deadline::at(due_ns_), [this] { return look_at_all(); });
  }
}

// False: the world ends.
bool ProgressThread::await_pending() {
  {
    const std::lock_guard lock(mutex_);
    if (may_look()) return true;
    is_waiting_ = false;
  }
  for (;;) {
    pollfd timer{timer_.get(), POLLIN, 0};
    (void)poll(&timer, 1, -1);
    const std::lock_guard lock(mutex_);
    uint64_t times = 0;
    // Not readable: a call has set it back since poll().
    const bool is_due = read(timer_.get(), &times, sizeof times) == sizeof times;
    if (stopping_) return false;
    if (!is_due || !may_look()) continue;
    is_waiting_ = true;
    return true;
  }
}

// The mutex is held.
void ProgressThread::wake_in(uint64_t delay_ns) {
  timer_due_ns_ = now_ns() + delay_ns;
  itimerspec at{};
  at.it_value.tv_nsec = static_cast<long>(std::max<uint64_t>(delay_ns, 1));
  (void)timerfd_settime(timer_.get(), 0, &at, nullptr);
}

// True: there is a reason not to go to sleep, or to sleep for another time.
bool ProgressThread::look_at_all() {
  {
    const std::lock_guard lock(mutex_);
    has_begun_ = false;
  }
  bool advanced = false;
  uint64_t due_ns = Progress::kNoDeadline;
  Progress progress;
  for (size_t index = 0; look_at(index, &progress); ++index) {
    advanced = advanced || progress.advanced;
    due_ns = std::min(due_ns, progress.deadline_ns);
  }
  const bool is_due_else = due_ns != due_ns_;
  due_ns_ = due_ns;
  const std::lock_guard lock(mutex_);
  return advanced || is_due_else || has_begun_ || !may_look();
}

// One client, if something is pending there. False: that was the last.
bool ProgressThread::look_at(size_t index, Progress* progress) {
  *progress = {};
  ProgressClient* client = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!may_look() || index >= clients_.size()) return false;
    client = clients_[index];
    if (!client->is_pending_) return true;
    if (!client->enter_look()) {
      // Under the mutex: the call inside sees that it was turned away, and begins the client after this.
      client->is_pending_ = false;
      --pending_;
      return true;
    }
    looked_at_ = client;
  }
  *progress = client->look();
  {
    const std::lock_guard lock(mutex_);
    if (!progress->pending) {
      client->is_pending_ = false;
      --pending_;
    }
    // After this line a call may enter, and begin the client again.
    client->leave_look();
    looked_at_ = nullptr;
  }
  looked_.notify_all();
  return true;
}

}  // namespace mep

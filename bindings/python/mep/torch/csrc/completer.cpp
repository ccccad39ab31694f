#include "completer.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <c10/util/Exception.h>

#include "communicator.hpp"
#include "work.hpp"

namespace mep_torch {

Completer::Completer() : wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  TORCH_CHECK(wake_fd_ >= 0, "mep: no descriptor for the thread of the futures: raise `ulimit -n`");
}

Completer::~Completer() {
  stop();
  close(wake_fd_);
}

void Completer::watch(c10::intrusive_ptr<MepWork> work) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return;
  arrived_.push_back(std::move(work));
  rouse();
}

void Completer::patrol(std::shared_ptr<Communicator> comm) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return;
  to_patrol_.push_back(std::move(comm));
  rouse();
}

void Completer::rouse() {
  if (threads_.empty()) threads_.emplace_back([this] { loop(); });
  wake();
}

void Completer::stop() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    threads.swap(threads_);
  }
  turn_.notify_all();
  wake();
  for (std::thread& thread : threads) {
    // A callback of a future may drop the last reference to the group.
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();
    } else {
      thread.join();
    }
  }
  // Their pending works refer to this object.
  patrolled_.clear();
  to_patrol_.clear();
}

void Completer::wake() const {
  const uint64_t one = 1;
  (void)!write(wake_fd_, &one, sizeof one);
}

void Completer::loop() {
  pthread_setname_np(pthread_self(), "mep-futures");
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    turn_.wait(lock, [this] { return stopping_ || !is_polled_; });
    --idle_;
    if (stopping_) return;
    is_polled_ = true;
    Works ended = await_ended(&lock);
    is_polled_ = false;
    if (stopping_) return;
    if (idle_ == 0) threads_.emplace_back([this] { loop(); });
    turn_.notify_one();
    lock.unlock();
    for (const auto& work : ended) work->announce();
    ended.clear();
    lock.lock();
  }
}

Completer::Works Completer::await_ended(std::unique_lock<std::mutex>* lock) {
  Works ended;
  std::vector<pollfd> events;
  while (!stopping_ && ended.empty()) {
    for (auto& work : arrived_) watched_.push_back(std::move(work));
    arrived_.clear();
    for (auto& comm : to_patrol_) patrolled_.push_back(std::move(comm));
    to_patrol_.clear();
    lock->unlock();
    events.assign(1, pollfd{wake_fd_, POLLIN, 0});
    std::erase_if(watched_, [&](c10::intrusive_ptr<MepWork>& work) {
      if (work->look()) {
        ended.push_back(std::move(work));
        return true;
      }
      const int event = work->event();
      if (event >= 0) events.push_back(pollfd{event, POLLIN, 0});
      return false;
    });
    std::erase_if(patrolled_, [&](const auto& comm) { return comm->patrol(&ended); });
    if (ended.empty()) {
      const bool is_idle = watched_.empty() && patrolled_.empty();
      (void)poll(events.data(), events.size(), is_idle ? -1 : kLongestSleepMs);
      uint64_t count = 0;
      (void)!read(wake_fd_, &count, sizeof count);
    }
    lock->lock();
  }
  return ended;
}

}  // namespace mep_torch

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
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    arrived_.push_back(std::move(work));
    if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
  }
  wake();
}

void Completer::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  if (!thread_.joinable()) return;
  // A callback of a future may drop the last reference to the group.
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void Completer::wake() const {
  const uint64_t one = 1;
  (void)!write(wake_fd_, &one, sizeof one);
}

void Completer::loop() {
  pthread_setname_np(pthread_self(), "mep-futures");
  std::vector<c10::intrusive_ptr<MepWork>> watched;
  std::vector<pollfd> events;
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      for (auto& work : arrived_) watched.push_back(std::move(work));
      arrived_.clear();
    }
    events.assign(1, pollfd{wake_fd_, POLLIN, 0});
    std::erase_if(watched, [&](const c10::intrusive_ptr<MepWork>& work) {
      if (work->isCompleted()) return true;
      const int event = work->event();
      if (event >= 0) events.push_back(pollfd{event, POLLIN, 0});
      return false;
    });
    (void)poll(events.data(), events.size(), watched.empty() ? -1 : kLongestSleepMs);
    uint64_t count = 0;
    (void)!read(wake_fd_, &count, sizeof count);
  }
}

}  // namespace mep_torch

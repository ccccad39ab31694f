#include "transport/gpu_queue/pair_stopper.hpp"

#include <chrono>
#include <utility>

#include "base/library_thread.hpp"

namespace mep::gpu_queue::mlx5 {

PairStopper::~PairStopper() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

mep_result_t PairStopper::start() {
  return start_library_thread(
      "the thread that stops queue pairs", [this] { loop(); }, &thread_);
}

mep_result_t PairStopper::run(Stop* stop, const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  stop->next = std::exchange(asked_, stop);
  changed_.notify_all();
  while (!stop->result && !is_overdue_) {
    changed_.wait_for(lock, std::chrono::milliseconds(deadline.left_ms(1000)));
    if (!stop->result && deadline.expired()) is_overdue_ = true;
  }
  return stop->result.value_or(MEP_ERR_TIMEOUT);
}

void PairStopper::remove(const Stop* stop) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return running_ != stop; });
  for (Stop** at = &asked_; *at != nullptr; at = &(*at)->next) {
    if (*at != stop) continue;
    *at = stop->next;
    return;
  }
}

void PairStopper::loop() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    if (asked_ == nullptr) {
      is_overdue_ = false;
      changed_.wait(lock);
      continue;
    }
    running_ = std::exchange(asked_, asked_->next);
    lock.unlock();
    const mep_result_t result = running_->command();
    lock.lock();
    std::exchange(running_, nullptr)->result = result;
    is_overdue_ = false;
    changed_.notify_all();
  }
}

}  // namespace mep::gpu_queue::mlx5

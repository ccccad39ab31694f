#include "transport/gpu_queue/soft_nic.hpp"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/guarded.hpp"
#include "base/library_thread.hpp"
#include "transport/gpu_queue/poll_pace.hpp"

namespace mep::gpu_queue {
namespace {

constexpr uint64_t kLongestSleepNs = 3600 * uint64_t{1'000'000'000};

}  // namespace

class SoftNic::Hold {
 public:
  explicit Hold(SoftNic* nic) : nic_(nic) {
    nic_->holders_.fetch_add(1, std::memory_order_relaxed);
    nic_->mutex_.lock();
  }
  ~Hold() {
    nic_->mutex_.unlock();
    nic_->holders_.fetch_sub(1, std::memory_order_relaxed);
    // The thread looks at what has changed.
    doorbell_ring(&nic_->sleeper_);
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  SoftNic* nic_;
};

mep_result_t SoftNic::start() {
  const std::lock_guard lock(mutex_);
  if (life_ != Life::kNew) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "software NIC: it has been started before; make another");
  }
  MEP_TRY(start_library_thread(
      "the software NIC's thread", [this] { serve(); }, &thread_));
  life_ = Life::kRunning;
  return MEP_SUCCESS;
}

mep_result_t SoftNic::add_queue(const QueueWiring& wiring, std::unique_ptr<Executor> executor,
                                const QueueFaults& faults) {
  if (executor == nullptr) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "software NIC: a queue needs an executor");
  }
  std::unique_ptr<ServedQueue> queue;
  MEP_TRY(ServedQueue::create(wiring, faults, std::move(executor), &queue));
  const Hold hold(this);
  if (life_ == Life::kStopped)
    return fail(MEP_ERR_INVALID_ARGUMENT, "software NIC: it has been stopped");
  if (find(wiring.queue_pair) != nullptr) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "software NIC: queue pair %u is there already",
                wiring.queue_pair);
  }
  return guarded([&] {
    queues_.push_back(std::move(queue));
    return MEP_SUCCESS;
  });
}

mep_result_t SoftNic::keep_moving(Endpoint* endpoint) {
  const Hold hold(this);
  if (std::find(endpoints_.begin(), endpoints_.end(), endpoint) != endpoints_.end()) {
    return MEP_SUCCESS;
  }
  return guarded([&] {
    endpoints_.push_back(endpoint);
    return MEP_SUCCESS;
  });
}

ServedQueue* SoftNic::find(uint32_t queue_pair) const {
  for (const auto& queue : queues_) {
    if (queue->queue_pair() == queue_pair) return queue.get();
  }
  return nullptr;
}

void SoftNic::finish_queue(uint32_t queue_pair) {
  for (;;) {
    {
      const Hold hold(this);
      const ServedQueue* queue = find(queue_pair);
      if (life_ != Life::kRunning || queue == nullptr || queue->is_finished()) return;
    }
    sched_yield();
  }
}

mep_result_t SoftNic::remove_queue(uint32_t queue_pair) {
  std::unique_ptr<ServedQueue> queue;  // ends after the hold
  const Hold hold(this);
  const auto found = std::find_if(queues_.begin(), queues_.end(), [&](const auto& candidate) {
    return candidate->queue_pair() == queue_pair;
  });
  if (found == queues_.end()) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "software NIC: there is no queue pair %u", queue_pair);
  }
  queue = std::move(*found);
  queues_.erase(found);
  queue->close();
  return MEP_SUCCESS;
}

void SoftNic::stop() {
  stops_.store(true, std::memory_order_release);
  doorbell_ring(&sleeper_);
  if (thread_.joinable()) thread_.join();
  const Hold hold(this);
  life_ = Life::kStopped;
  for (const auto& queue : queues_) queue->close();
  queues_.clear();
}

void SoftNic::serve() {
  PollPace pace;
  while (!stops_.load(std::memory_order_acquire)) {
    const Round round = serve_all();
    if (round.worked) {
      pace.note_work();
    } else if (round.may_sleep && !pace.is_eager()) {
      sleep();
    } else {
      pace.wait();
    }
    while (holders_.load(std::memory_order_relaxed) != 0) sched_yield();
  }
}

SoftNic::Round SoftNic::serve_all() {
  const std::lock_guard lock(mutex_);
  Round round;
  if (!queues_.empty()) {
    round.worked = move_endpoints();
    round.may_sleep = endpoints_.empty();
  }
  for (const auto& queue : queues_) {
    const ServedQueue::Turn turn = queue->take_turn();
    round.worked = round.worked || turn == ServedQueue::Turn::kWorked;
    round.may_sleep =
        round.may_sleep && turn != ServedQueue::Turn::kWaiting && queue->poster_wakes();
  }
  return round;
}

bool SoftNic::move_endpoints() {
  bool worked = false;
  for (Endpoint* endpoint : endpoints_) {
    worked = endpoint->progress(false) || worked;
  }
  return worked;
}

// Until a poster or another call rings.
void SoftNic::sleep() {
  DoorbellSleep sleep(&sleeper_, true);
  if (!stops_.load(std::memory_order_acquire) && may_sleep()) sleep.wait(kLongestSleepNs);
}

bool SoftNic::may_sleep() {
  const std::lock_guard lock(mutex_);
  if (!queues_.empty() && !endpoints_.empty()) return false;
  return std::all_of(queues_.begin(), queues_.end(),
                     [](const auto& queue) { return queue->poster_wakes() && !queue->is_rung(); });
}

}  // namespace mep::gpu_queue

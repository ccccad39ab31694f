#include "transport/gpu_queue/doorbell_carrier.hpp"

#include <algorithm>

#include "base/guarded.hpp"
#include "base/library_thread.hpp"
#include "transport/gpu_queue/memory_operations.hpp"
#include "transport/gpu_queue/poll_pace.hpp"

namespace mep::gpu_queue {

DoorbellCarrier::~DoorbellCarrier() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

mep_result_t DoorbellCarrier::start() {
  return start_library_thread(
      "the thread that rings the adapter", [this] { carry(); }, &thread_);
}

mep_result_t DoorbellCarrier::add(uint64_t* word, uint64_t* doorbell, uint64_t** of_posters) {
  const std::lock_guard lock(mutex_);
  return guarded([&] {
    ways_.push_back({word, doorbell});
    *of_posters = word;
    changed_.notify_one();
    return MEP_SUCCESS;
  });
}

void DoorbellCarrier::remove(const uint64_t* word) {
  const std::lock_guard lock(mutex_);
  std::erase_if(ways_, [word](const Way& way) { return way.word == word; });
}

void DoorbellCarrier::carry() {
  PollPace pace;
  std::unique_lock lock(mutex_);
  while (!stops_) {
    if (ways_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const bool has_worked = carry_all();
    lock.unlock();
    has_worked ? pace.note_work() : pace.wait();
    lock.lock();
  }
}

bool DoorbellCarrier::carry_all() const {
  bool has_worked = false;
  for (const Way& way : ways_) {
    const uint64_t doorbell = SystemMemory::take_doorbell(way.word);
    if (doorbell == 0) continue;
    SystemMemory::ring(way.doorbell, doorbell);
    has_worked = true;
  }
  return has_worked;
}

}  // namespace mep::gpu_queue

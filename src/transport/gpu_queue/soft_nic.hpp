// A NIC in software: one thread that serves many send queues and reaches their peers through executors.
//
// Posters are those of any adapter (send_queue.hpp). Threads of the host post with HostMemory and a HostDoorbell, which
// wakes the NIC; they end before it does. Queues of GPUs are polled with pauses of at most 50 us. The thread sleeps while
// there are none of these and nothing is under way.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "mep.h"
#include "transport/doorbell.hpp"
#include "transport/gpu_queue/executor.hpp"
#include "transport/gpu_queue/memory_operations.hpp"
#include "transport/gpu_queue/served_queue.hpp"

namespace mep::gpu_queue {

class SoftNic {
 public:
  SoftNic() = default;
  ~SoftNic() { stop(); }
  SoftNic(const SoftNic&) = delete;
  SoftNic& operator=(const SoftNic&) = delete;

  [[nodiscard]] mep_result_t start();

  // Each queue has an executor of its own. Any thread.
  [[nodiscard]] mep_result_t add_queue(const QueueWiring& wiring,
                                       std::unique_ptr<Executor> executor,
                                       const QueueFaults& faults = {});
  // A number for a queue that is to be added. Any thread.
  uint32_t new_queue_pair() { return next_queue_pair_.fetch_add(1, std::memory_order_relaxed); }
  // The thread takes what peers of the endpoint post, as long as it has queues: kernels that wait for it cannot. Any thread.
  [[nodiscard]] mep_result_t keep_moving(Endpoint* endpoint);
  // Until all that its posters have rung for is executed, or the queue has failed: what is executed reaches the peer without
  // the queue. At once where the NIC does not run, or has no such queue. Ends by itself, or when the transport gives the
  // peer up. Not the NIC's thread.
  void finish_queue(uint32_t queue_pair);
  // Flushes it with an error, so that posters end; afterwards the NIC touches nothing of it. A transport may still read the
  // sources of puts: the owner flushes it. Any thread.
  [[nodiscard]] mep_result_t remove_queue(uint32_t queue_pair);
  // The same for all queues. Ends the thread; a NIC does not start again.
  void stop();

  // Behind a doorbell of a queue with poster_wakes.
  void wake() { doorbell_ring_sleepers(&sleeper_); }
  // Or is about to.
  bool is_asleep() const {
    // Relaxed: a hint.
    return (sleeper_.sleepers.load(std::memory_order_relaxed) & kSleeperCountMask) != 0;
  }

 private:
  // Keeps the thread off the queues.
  class Hold;

  void serve();
  struct Round {
    bool worked = false;
    bool may_sleep = true;
  };
  Round serve_all();
  bool move_endpoints();
  void sleep();
  bool may_sleep();
  // Under the mutex; null: there is none.
  ServedQueue* find(uint32_t queue_pair) const;

  Doorbell sleeper_{};
  std::atomic<bool> stops_{false};  // speaks of nothing but itself
  std::atomic<uint32_t> holders_{
      0};  // orders nothing: the thread gives way to those that want the mutex
  std::atomic<uint32_t> next_queue_pair_{1};  // orders nothing
  std::mutex mutex_;                          // of what follows
  std::vector<std::unique_ptr<ServedQueue>> queues_;
  std::vector<Endpoint*> endpoints_;
  enum class Life : uint8_t { kNew, kRunning, kStopped } life_ = Life::kNew;
  std::thread thread_;
};

// A doorbell in host memory. Queue::doorbell points to `value`.
struct HostDoorbell {
  uint64_t value = 0;
  SoftNic* nic = nullptr;
};

// Memory of posters that are threads of the host.
struct HostMemory : SystemMemory {
  static void ring(uint64_t* doorbell, uint64_t value) {
    SystemMemory::ring(doorbell, value);
    reinterpret_cast<HostDoorbell*>(doorbell)->nic->wake();
  }
};

}  // namespace mep::gpu_queue

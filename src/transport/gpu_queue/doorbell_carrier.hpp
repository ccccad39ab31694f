// Rings an adapter for posters that do not reach its doorbells: a thread takes each doorbell from a word of the queue, which
// lies where posters reach it, and stores it to the adapter's page. While there are queues the thread pauses for at most
// 50 us.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "mep.h"
#include "transport/gpu_queue/doorbells.hpp"

namespace mep::gpu_queue {

class DoorbellCarrier final : public Doorbells {
 public:
  DoorbellCarrier() = default;
  ~DoorbellCarrier() override;
  DoorbellCarrier(const DoorbellCarrier&) = delete;
  DoorbellCarrier& operator=(const DoorbellCarrier&) = delete;

  // Once.
  [[nodiscard]] mep_result_t start();
  [[nodiscard]] mep_result_t add(uint64_t* word, uint64_t* doorbell,
                                 uint64_t** of_posters) override;
  void remove(const uint64_t* word) override;

 private:
  struct Way {
    uint64_t* word;
    uint64_t* doorbell;
  };

  void carry();
  // Under the mutex.
  bool carry_all() const;

  std::thread thread_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::vector<Way> ways_;
  bool stops_ = false;
};

}  // namespace mep::gpu_queue

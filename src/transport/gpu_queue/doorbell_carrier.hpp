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

namespace mep::gpu_queue {

class DoorbellCarrier {
 public:
  DoorbellCarrier() = default;
  ~DoorbellCarrier();
  DoorbellCarrier(const DoorbellCarrier&) = delete;
  DoorbellCarrier& operator=(const DoorbellCarrier&) = delete;

  // Once.
  [[nodiscard]] mep_result_t start();
  // The word is 0 before posters ring it. Any thread.
  [[nodiscard]] mep_result_t add(uint64_t* word, uint64_t* doorbell);
  // Afterwards the thread touches neither. Any thread.
  void remove(const uint64_t* word);

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

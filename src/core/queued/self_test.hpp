// A test of the adapters of a comm before GPUs post to them, by the very objects that serve EP objects: each rank puts a
// pattern and a word to all others that it has a pair to, and waits for theirs. Threads of the host post, as GPUs do.
//
// All ranks take each step, and go on when all are through it: no packet comes to a queue that is not connected, which an
// adapter would send again only after a try's time. All keep the object until all are through the last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/comm.hpp"
#include "core/queued/queue_pairs.hpp"

namespace mep {

class SelfTest {
 public:
  // Within a call on the comm. `hca` is for error texts, `mapped` see QueuePairs.
  SelfTest(Comm& comm, std::string hca, std::unique_ptr<gpu_queue::NicPairs> nic,
           std::vector<bool> mapped)
      : comm_(comm),
        hca_(std::move(hca)),
        view_(comm.latest_view()),
        pairs_(comm.identity(), std::move(nic), std::move(mapped)) {}
  // Waits for no adapter that has something to do yet.
  ~SelfTest() { pairs_.end(); }
  SelfTest(const SelfTest&) = delete;
  SelfTest& operator=(const SelfTest&) = delete;

  // `number`, the same on all ranks: another for each test of the comm, since windows of an earlier one may still come.
  [[nodiscard]] mep_result_t make(uint32_t number);
  [[nodiscard]] mep_result_t connect(const Deadline& deadline) {
    return pairs_.connect(*view_, deadline);
  }
  [[nodiscard]] mep_result_t exchange(const Deadline& deadline);

 private:
  template <typename Call>
  mep_result_t to_each(const Call& call);
  mep_result_t check(gpu_queue::Status status, uint32_t to, gpu_queue::Queue* queue) const;
  mep_result_t await(uint32_t from, const Deadline& deadline) const;

  Comm& comm_;
  const std::string hca_;
  const std::shared_ptr<const CommView> view_;
  std::vector<std::byte> rings_;
  std::vector<uint64_t> ready_;
  std::vector<uint64_t> source_;
  std::vector<gpu_queue::Queue> queues_;
  QueuePairs pairs_;  // what is before it is its memory
};

}  // namespace mep

// One send queue as a software NIC sees it: requests in order, completions in order, the first error for good.
//
//   told       the poster has told of the requests before it, by record and doorbell
//   executed   those before it were given to the executor
//   completed  those before it are covered by a completion that was written
//
// Invariants
//   - completed <= executed <= told <= completed + entries; a poster that breaks the last is refused.
//   - A request is copied once and then checked and executed from the copy, which stays until a completion covers it.
//   - A word follows only when no source of the puts before it is read any more; so does a completion.
//   - After an error nothing is executed: the completion of the error comes behind those before it, then each request that
//     was told of, and each that comes, is flushed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "mep.h"
#include "transport/gpu_queue/executor.hpp"
#include "transport/gpu_queue/request_check.hpp"
#include "transport/gpu_queue/work_request.hpp"

namespace mep::gpu_queue {

// Where a queue lies, as this process reaches it: host memory, or memory of a GPU that is mapped here. All of it and all
// regions stay until the NIC has given the queue up.
struct QueueWiring {
  const Request* ring = nullptr;
  uint32_t entries = 0;  // power of two, 2 .. 16384
  CompletionEntry* completions = nullptr;
  uint32_t completion_entries = 1;  // 1: a collapsed queue; else a power of two above `entries`
  const DoorbellRecord* record = nullptr;
  const uint64_t* doorbell = nullptr;  // in place of a register: 0 until the poster rings first
  uint32_t queue_pair = 0;             // 1 .. 2^24 - 1
  uint64_t first = 0;                  // index of the first request
  bool poster_wakes = false;           // else it is polled: a GPU cannot wake a thread
  std::vector<LocalRegion> local;
  std::vector<RemoteRegion> remote;  // addresses at multiples of 8
};

// For tests. Polls are turns of the queue.
struct QueueFaults {
  uint64_t fails_at = UINT64_MAX;  // the request with this index
  uint8_t syndrome = 0x15;
  uint8_t vendor = 0x81;
  uint32_t late_polls = 0;  // each completion
  bool repeats = false;     // of a collapsed queue: behind each the one before it, then it again
  bool never_completes = false;  // requests are executed
};

// How far the puts are that an executor was given.
class PutMarks {
 public:
  explicit PutMarks(Executor* executor) : executor_(executor) {}

  void add() { has_more_ = true; }
  // Behind all puts. Others may post to the same peer: it may be later than it needs to be.
  uint64_t mark();
  // No source of the puts before the mark is read any more.
  bool is_through(uint64_t mark);
  // The executor's counts, or the queue, have said so.
  bool is_lost() const { return is_lost_; }
  void lose() { is_lost_ = true; }

 private:
  Executor* executor_;
  bool has_more_ = false;  // behind mark_
  uint64_t mark_ = 0;
  uint64_t reached_ = 0;
  bool is_lost_ = false;
};

class ServedQueue {
 public:
  enum class Turn : uint8_t {
    kIdle,     // until the doorbell is rung
    kWaiting,  // for the executor, or as a fault
    kWorked,
  };

  [[nodiscard]] static mep_result_t create(const QueueWiring& wiring, const QueueFaults& faults,
                                           std::unique_ptr<Executor> executor,
                                           std::unique_ptr<ServedQueue>* out);

  // At most 32 requests, and about a MiB.
  Turn take_turn();
  bool is_rung() const;
  // Nothing that was rung for is left to be executed.
  bool is_finished() const {
    return failure_.index != UINT64_MAX || (!is_rung() && executed_ == told_);
  }
  // The last thing that is written: all requests that are not completed are flushed, and so is the next one, that a poster
  // waits for.
  void close();

  uint32_t queue_pair() const { return wiring_.queue_pair; }
  bool poster_wakes() const { return wiring_.poster_wakes; }

 private:
  struct Pending {
    uint64_t index;
    uint64_t mark;
  };
  struct Failure {
    uint64_t index = UINT64_MAX;
    uint8_t syndrome = 0;
    uint8_t vendor = 0;
  };

  ServedQueue(const QueueWiring& wiring, const QueueFaults& faults,
              std::unique_ptr<Executor> executor);

  bool look();
  bool execute();
  bool execute_one(uint64_t* budget);
  Executed put_part(uint64_t* budget);
  Executed after_puts();
  Executed write_word();
  Executed add();
  bool complete();
  bool flush_rest();
  bool is_due();
  void fail_request(const Refusal& refusal);
  void lose();
  void write_completion(uint64_t index, CompletionOpcode opcode, uint8_t syndrome, uint8_t vendor);
  Request& taken(uint64_t index) { return taken_[index & (wiring_.entries - 1)]; }

  const QueueWiring wiring_;
  const QueueFaults faults_;
  const std::unique_ptr<Executor> executor_;
  uint64_t seen_doorbell_ = 0;
  uint64_t told_;
  uint64_t executed_;
  uint64_t completed_;
  std::vector<Request> taken_;  // by slot
  Accepted current_;            // of executed_, if has_current_
  bool has_current_ = false;
  uint64_t put_bytes_ = 0;  // of current_, given to the executor
  PutMarks puts_;
  std::vector<Pending> pending_;  // by number & (entries - 1)
  uint64_t pending_begin_ = 0;
  uint64_t pending_end_ = 0;
  Failure failure_;  // where its index is not UINT64_MAX nothing is executed any more
  bool has_told_failure_ = false;
  uint32_t polls_ = 0;
  uint64_t written_ = 0;  // completions
  CompletionEntry last_{};
};

}  // namespace mep::gpu_queue

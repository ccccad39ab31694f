// Records of operations on streams, one a request: a kernel writes how its operation ended into pinned memory.
//
// The user's thread lends, gives back and sets events; the watcher of the comm looks. No CUDA here.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "mep.h"

namespace mep {

struct StreamRecord {
  mep_op_status_t* status = nullptr;
  bool is_awaited = false;  // lent, and nobody was told of its end
  bool is_lent = false;
  int event = -1;  // an eventfd to write to when the operation has ended; -1: none
};

// Acquire: the kernel writes the version last, so all of the record and the operation's output is there.
inline bool has_ended(const StreamRecord& record) {
  return std::atomic_ref(record.status->version).load(std::memory_order_acquire) != 0;
}

class StreamRecords {
 public:
  static constexpr size_t kMost = MEP_MAX_STREAM_REQUESTS;
  static size_t bytes(uint32_t ranks) {
    return kMost * mep_op_status_size(static_cast<int32_t>(ranks));
  }
  // memory: bytes(ranks), which kernels can write.
  void open(std::byte* memory, uint32_t ranks);
  // Cleared; null: all are lent.
  StreamRecord* lend();
  void give_back(StreamRecord* record);
  // Rings at once if the operation has ended.
  void set_event(StreamRecord* record, int event);
  // Rings the events of operations that have ended. True: some have, and their users may sleep.
  bool watch();

 private:
  std::mutex mutex_;
  std::array<StreamRecord, kMost> records_;
  size_t most_lent_ = 0;  // records behind it were never lent
  uint32_t ranks_ = 0;
};

}  // namespace mep

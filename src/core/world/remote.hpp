// One rank's copy of a window, as this rank reaches it: in place where it is mapped, else by its
// transport. The same code serves the rank's own copy (mapped, own doorbell).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/world/doorbell_delays.hpp"
#include "core/world/wait.hpp"
#include "mep.h"
#include "transport/transport.hpp"

namespace mep {

// A thread inside a PostingScope, as a post sees it that finds a full queue: a view change waits for no such post.
class Poster {
 public:
  enum class Turn : uint8_t {
    kPost,  // on with the same batch
    kWait,  // a view change is under way: no posting, ask again
    kOver   // the epoch is over: nothing of it is posted any more
  };
  Poster(const Poster&) = delete;
  Poster& operator=(const Poster&) = delete;
  // Out of the scope while a view change is under way, and back in where the epoch goes on after it.
  virtual Turn turn() const = 0;
  // The innermost one of this thread; null: it is in no scope.
  static const Poster* current() { return own(); }

 protected:
  Poster() : place_(&own()), outer_(*place_) { *place_ = this; }
  ~Poster() { *place_ = outer_; }

 private:
  static const Poster*& own();

  const Poster** const place_;
  const Poster* const outer_;
};

struct Remote {
  std::byte* mapped = nullptr;   // null: only put and signal
  Doorbell* doorbell = nullptr;  // of the owner; set exactly when mapped is
  Transport* transport = nullptr;
  NetworkWait* network = nullptr;  // of this rank; null: it has none
  uint64_t window = 0;
  uint64_t host = 0;  // same value: same host
  // Ranks of one host that have the same value here, and not 0, map each other. All ranks know it of all.
  uint64_t sharing = 0;
  pid_t readable_pid =
      0;  // whose memory this rank can read in place (peer_memory.hpp); 0: it cannot
  uint32_t slot = 0;

  mep_result_t put(uint64_t offset, const void* local, size_t bytes) const {
    MEP_TEST_DELAY_POINT("put");
    if (mapped != nullptr) {
      size_t first = 0;
      // In two parts, so that a test can stop this process in the middle of a copy.
      if (failpoints_armed.load(std::memory_order_relaxed)) [[unlikely]] {
        first = bytes / 2;
        if (first != 0) std::memcpy(mapped + offset, local, first);
        MEP_FAILPOINT("put half");
      }
      const auto* from = static_cast<const std::byte*>(local);
      if (bytes != 0) std::memcpy(mapped + offset + first, from + first, bytes - first);
      return MEP_SUCCESS;
    }
    return post(Posting::put(window, offset, local, bytes));
  }

  // To memory that the peer has opened for this rank.
  mep_result_t put_to_target(uint64_t target, uint64_t offset, const void* local,
                             size_t bytes) const {
    MEP_TEST_DELAY_POINT("put");
    return post(Posting::put_to_target(target, offset, local, bytes));
  }

  // Release: whoever reads the word with acquire sees all earlier puts of this thread to this peer.
  mep_result_t signal(uint64_t offset, uint64_t word) const {
    MEP_TEST_DELAY_POINT("signal");
    if (mapped != nullptr) {
      doorbell_signal<DoorbellDelays>(
          doorbell, reinterpret_cast<std::atomic<uint64_t>*>(mapped + offset), word);
      return MEP_SUCCESS;
    }
    return post(Posting::signal(window, offset, word, true));
  }

  // Source bytes of all earlier puts are the caller's again, also after errors. It makes progress meanwhile,
  // and ends by itself or, if the peer does not answer any more, when the membership gives it up. Inside a PostingScope
  // it ends early where the epoch is over: the operation flushes again when it ends.
  void flush() const;

 private:
  mep_result_t post(const Posting& posting) const {
    Batch batch{{&posting, 1}};
    const mep_result_t result = transport->post(slot, &batch);
    return result == MEP_SUCCESS ? result : go_on(result, &batch);
  }
  // Posts what a full queue left, when there is room. A connection that is lost is for the membership to
  // judge, which hears of it from the transport: the operation goes on and ends by the decision, the same on
  // all ranks. MEP_ERR_PEER_FAILED: the epoch of the thread's PostingScope is over, nothing more is to be posted there.
  mep_result_t go_on(mep_result_t result, Batch* batch) const;
  void make_progress() const;
};

// A word of a window in this process: the reader's side of signal(). Acquire: see there.
inline uint64_t load_signal(const std::byte* window, uint64_t offset) {
  return reinterpret_cast<const std::atomic<uint64_t>*>(window + offset)
      ->load(std::memory_order_acquire);
}

// Between two views, while a channel is frozen. Relaxed: nobody posts before the next view is installed, and that
// install is published by locks.
inline void zero_signal(std::byte* window, uint64_t offset) {
  reinterpret_cast<std::atomic<uint64_t>*>(window + offset)->store(0, std::memory_order_relaxed);
}

}  // namespace mep

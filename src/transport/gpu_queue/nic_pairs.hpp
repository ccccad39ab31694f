// The queue pairs of one object, of a NIC in software or of an adapter. Each goes to one peer and lies in memory of the owner.
//
//   make     in reset: the peer may get its address, requests wait
//   connect  to the peer's end: from then on requests are executed
//   finish   waits until peers have all that was rung for
//   fail     posters end with an error, peers get nothing more
//
// By one thread, but for fail().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "mep.h"
#include "transport/gpu_queue/memory_range.hpp"
#include "transport/gpu_queue/send_queue.hpp"

namespace mep {
class Transport;
}

namespace mep::gpu_queue {

// Where requests go to, and how.
struct PeerEnd {
  // Its window by the transports of this process.
  std::byte* mapped = nullptr;  // null: by `transport`
  Transport* transport = nullptr;
  uint32_t slot = 0;
  uint64_t window = 0;
  // Its NicPair::address(), which may be anything.
  std::span<const std::byte> address;
};

// Its memory stays until it has ended.
class NicPair {
 public:
  // Waits for an adapter as long as that takes.
  virtual ~NicPair() = default;

  // For the peer's end, which needs it to connect; empty where NicPairs::is_adapter() is false. The same until the pair ends.
  virtual std::vector<std::byte> address() const = 0;
  // Once. Sets the key and the base of the peer's window. After an error the pair can only end, and its peer does not
  // write.
  [[nodiscard]] virtual mep_result_t connect(const PeerEnd& peer, Queue* queue) = 0;
  // Posters have ended and post no more. Also ends by an error, and by fail().
  virtual void finish() = 0;
  // Any thread, once: before connect(), which then does nothing, during it or after it. After success its peer writes to the
  // window no more; an error, also at the deadline, says that it may until the pair has ended.
  virtual mep_result_t fail(const Deadline& deadline) = 0;
};

class NicPairs {
 public:
  struct Ring {
    std::byte* memory =
        nullptr;  // zeros, bytes_of(entries), on a page or at a multiple of bytes_of(entries) from it
    uint32_t entries = 0;       // see Queue
    uint64_t* ready = nullptr;  // [entries] zeros, where the posters are
    uint32_t suspect_ms = 0;    // a peer that is silent for so long counts as lost
  };
  virtual ~NicPairs() = default;

  // A ring, and what else posters and the NIC share.
  virtual size_t bytes_of(uint32_t entries) const = 0;
  // True: pairs connect by addresses that their peers give, peers write to the window by pairs that are connected here and
  // in no other way, and the two calls below may succeed with memory of a GPU.
  virtual bool is_adapter() const = 0;
  // Peers write the window, which is as long as that of each peer; requests of all pairs read the source, which posters name
  // by the same addresses. Each once, before the first pair, and again with other memory where the NIC has refused. The
  // memory outlives this object.
  [[nodiscard]] virtual mep_result_t use_window(const MemoryRange& window) = 0;
  [[nodiscard]] virtual mep_result_t use_source(const MemoryRange& source) = 0;
  // This object outlives the pair. *queue is as posters need it, but for the peer's window.
  [[nodiscard]] virtual mep_result_t make(const Ring& ring, Queue* queue,
                                          std::unique_ptr<NicPair>* out) = 0;
};

}  // namespace mep::gpu_queue

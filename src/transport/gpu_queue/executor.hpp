// Where a software NIC carries the requests of one queue pair: its peer's memory, by whatever way there is.
//
// By the NIC's thread alone. Nothing here waits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/endpoint.hpp"

namespace mep::gpu_queue {

using Counts = mep::Completion;

// Memory of the peer that requests may name: `bytes` from `address`, under `key`.
struct RemoteRegion {
  uint32_t key = 0;
  uint64_t address = 0;  // as posters name it
  uint64_t bytes = 0;
  uint64_t place = 0;  // the executor's own: a window, or an address of this process
  bool allows_write = true;
  bool allows_atomic = true;
};

enum class Executed : uint8_t {
  kDone,
  kLater,        // there is no room: call again with the same arguments, and with no others before
  kLost,         // the peer does not answer any more
  kRefused,      // no such place
  kUnsupported,  // this way cannot do it
};

class Executor {
 public:
  virtual ~Executor() = default;

  // Calls of one kind and of different kinds need not keep an order; the NIC waits with a word until the counts say that
  // the puts before it are through. `from` is the executor's until then.
  virtual Executed put(const RemoteRegion& region, uint64_t offset, const void* from,
                       size_t bytes) = 0;
  // At a multiple of 8. It publishes to the thread that acquires the word there what was put before.
  virtual Executed write_word(const RemoteRegion& region, uint64_t offset, uint64_t word) = 0;
  // The same; *before: what the word was.
  virtual Executed fetch_add(const RemoteRegion& region, uint64_t offset, uint64_t add,
                             uint64_t* before) = 0;
  // Numbers of what was posted, and up to which no source is read any more. False: the peer is lost.
  virtual bool counts(Counts* out) = 0;
  // Moves what can be moved; called while something is under way.
  virtual void progress() {}
};

}  // namespace mep::gpu_queue

// How a window of one rank becomes reachable for another.
//
// The owner exports it to each peer, the description travels in an authenticated control frame, and the peer
// imports it. Any thread; calls about one (peer, window) one at a time, and none while puts to that window
// are under way, except import_window() of a renewed one. None of them waits for a peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/unique_fd.hpp"
#include "mep.h"
#include "transport/window.hpp"

namespace mep {

// All that a peer must know to reach one of this rank's windows: a few bytes and at most one descriptor.
struct WindowExport {
  std::vector<std::byte> blob;  // at most kMaxWindowBlobBytes
  UniqueFd fd;                  // a duplicate, owned by this struct
};
constexpr size_t kMaxWindowBlobBytes = 512;

struct Doorbell;

class WindowExchange {
 public:
  virtual ~WindowExchange() = default;

  // Describes `window` as it is now to one peer, who may write it from then on, until it is fenced out. Once
  // more after each Window::renew(). MEP_ERR_NO_MEMORY: no descriptors, or the memory cannot be registered.
  [[nodiscard]] virtual mep_result_t export_window(uint32_t slot,
                                                   const std::shared_ptr<Window>& window,
                                                   WindowExport* out) = 0;

  // Takes a peer's description, which may be anything: MEP_ERR_DENIED if it is none, MEP_ERR_MISMATCH if it is
  // of another window or one with less than `bytes`, what this rank's own window has. MEP_ERR_PEER_FAILED: the
  // peer is fenced out. Importing the same id again replaces the old import, at the same mapped address where
  // there is one. After an error all is as before.
  [[nodiscard]] virtual mep_result_t import_window(uint32_t slot, uint64_t window, size_t bytes,
                                                   std::span<const std::byte> blob,
                                                   UniqueFd fd) = 0;

  // Forgets the peer's window; nothing if it is not imported.
  virtual void drop_window(uint32_t slot, uint64_t window) = 0;

  // Memory of the caller that this peer alone may put to, by the number that is returned, until it is closed. 0: this
  // transport puts to windows alone. Any thread. Throws std::bad_alloc.
  virtual uint64_t open_target(uint32_t /*slot*/, std::byte* /*memory*/, size_t /*bytes*/) {
    return 0;
  }
  // Nothing lands there any more; what still comes is dropped. Any thread.
  virtual void close_target(uint32_t /*slot*/, uint64_t /*target*/) {}

  // Where the peer's window can be read and written in place until it is dropped; null: it cannot be, or it is
  // not imported.
  virtual std::byte* map(uint32_t /*slot*/, uint64_t /*window*/) const { return nullptr; }
  // Where posts with a wake ring that peer: its world window as it lies here, also where map() answers null for it.
  virtual Doorbell* doorbell(uint32_t /*slot*/) const { return nullptr; }
};

}  // namespace mep

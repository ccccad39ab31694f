// One of the connections to a peer: what waits to be sent on it, and what of it has come in part.
//
// The peer's out_mutex_ guards what is sent, its in_mutex_ what is received, both the socket.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/unique_fd.hpp"
#include "transport/tcp/frame.hpp"
#include "transport/tcp/out_queue.hpp"
#include "transport/tcp/sealing.hpp"
#include "transport/window.hpp"

namespace mep::tcp {

// For what is received; below the size from which malloc maps memory by itself, peer by peer.
constexpr size_t kBufferBytes = size_t{96} << 10;
constexpr size_t kRecordOverhead = kRecordHeaderBytes + kRecordTagBytes;

// The socket has no room, or nothing to read.
inline bool is_retry(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS;
}

// The put that is landing.
struct Landing {
  size_t left = 0;                 // bytes
  std::byte* at = nullptr;         // null: its window or target is gone, the bytes are dropped
  std::shared_ptr<Window> window;  // keeps `at` valid
  uint64_t number = 0;             // of its target; 0: it goes to a window

  void forget() {
    window.reset();
    at = nullptr;
    left = 0;
  }
};

struct Outgoing {
  OutQueue queue;
  RecordKey key;
  std::vector<std::byte> sealed;  // records, sent from sealed_sent on
  size_t sealed_bytes = 0;
  size_t sealed_sent = 0;
  bool is_blocked = false;
  uint64_t put_bytes = 0;    // since the connection began
  uint64_t told_bytes = 0;   // of them, by the last kAfter
  size_t untried_bytes = 0;  // of puts since the socket was last tried

  size_t unsent() const { return queue.bytes() + sealed_bytes - sealed_sent; }
  void forget() {
    queue.clear();
    sealed_bytes = sealed_sent = 0;
    is_blocked = false;
  }
};

struct Incoming {
  RecordKey key;
  std::vector<std::byte> buffer;
  size_t buffered = 0;  // sealed: up to here it holds records
  size_t opened = 0;   // sealed: of them, up to here they are open; 0 unless the connection is held
  size_t rest_at = 0;  // held: frames in `buffer` behind the kAfter
  size_t rest_bytes = 0;
  std::byte partial[kSignalBytes];
  size_t partial_bytes = 0;  // of a header that has not come whole
  Landing landing;
  uint64_t landed_bytes = 0;  // of puts, dropped ones too, since the connection began
  uint64_t marked = 0;

  void land(size_t bytes) {
    landing.left -= bytes;
    landed_bytes += bytes;
    if (landing.at != nullptr) landing.at += bytes;
    if (landing.left == 0) landing.window.reset();
  }
  void forget() {
    landing.forget();
    partial_bytes = buffered = opened = rest_bytes = 0;
  }
};

struct Stream {
  UniqueFd socket;
  size_t number = 0;      // of the peer's; the first one carries all but some of the large puts
  bool is_ended = false;  // the peer sends nothing more on it; changed under both mutexes
  Outgoing out;
  Incoming in;
};

}  // namespace mep::tcp

// Bytes on their way to peers.
//
// Two one-sided actions, put and signal; every algorithm of the library is right with these alone. A signal
// becomes visible at the target only after the puts to that peer which its thread posted before it.
// Postings of different threads are not ordered among each other.
//
// Nothing here waits. A full queue is an answer: the caller makes progress, on all that its rank sleeps on,
// and goes on with the same batch. Source bytes of a put are the endpoint's until the put has completed, which
// is counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "mep.h"

namespace mep {

// A posting to a peer: bytes for one of its windows or targets, or a word for a window.
struct Posting {
  uint64_t window = 0;  // or the number of a target
  uint64_t offset = 0;  // of a signal a multiple of 8
  const void* local = nullptr;
  size_t bytes = 0;
  uint64_t word = 0;  // of a signal
  bool is_signal = false;
  bool wake = false;  // of a signal: the target's threads are woken if they sleep
  bool is_to_target = false;

  static Posting put(uint64_t window, uint64_t offset, const void* local, size_t bytes) {
    return {window, offset, local, bytes, 0, false, false, false};
  }
  // See WindowExchange::open_target().
  static Posting put_to_target(uint64_t target, uint64_t offset, const void* local, size_t bytes) {
    return {target, offset, local, bytes, 0, false, false, true};
  }
  static Posting signal(uint64_t window, uint64_t offset, uint64_t word, bool wake) {
    return {window, offset, nullptr, sizeof word, word, true, wake, false};
  }
};

// Postings to one peer in their order, and how far an endpoint has come with them.
struct Batch {
  std::span<const Posting> postings;
  size_t next = 0;      // those before it are posted
  uint64_t resume = 0;  // of postings[next], the endpoint's own; 0 to begin with
};

// The answer of a full queue; nothing else answers it.
constexpr mep_result_t kWouldBlock = MEP_ERR_BUSY;

// How far the postings to one peer are; they are numbered from 1 in the order in which they were posted.
struct Completion {
  uint64_t posted = 0;     // the last number
  uint64_t completed = 0;  // up to here no source byte is read any more
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;

  // Posts batch->postings[next] and those behind it. Any thread, several at once; never waits.
  //   MEP_SUCCESS               all are posted
  //   kWouldBlock               the queue is full: make progress, then call again with the same batch
  //   MEP_ERR_INVALID_ARGUMENT  [next] names no such peer, window or place; nothing of it was posted
  //   MEP_ERR_PEER_FAILED       the peer is lost, given up or fenced out; what was posted may not arrive
  // Throws std::bad_alloc; the peer may then have lost what was posted.
  [[nodiscard]] virtual mep_result_t post(uint32_t slot, Batch* batch) = 0;

  // Counts of one peer; says nothing about the target. Any thread; never waits. `is_urgent`: the caller
  // wants its memory back, so what can be hurried or copied is. MEP_ERR_PEER_FAILED: the peer is lost or
  // given up, and no source byte is read any more; of one that was fenced out all has completed.
  [[nodiscard]] virtual mep_result_t completion(uint32_t slot, bool is_urgent, Completion* out) = 0;

  // Moves what can be moved without waiting, in both directions, for all peers; true: something happened.
  // `before_sleep`: the caller is about to sleep on the endpoint's descriptor; from here on whatever comes
  // makes it readable, and the caller looks at its words once more before it sleeps. Any thread, several at
  // once. Drain::take_failure() tells what is wrong with a peer. Does not throw.
  virtual bool progress(bool before_sleep) = 0;
};

}  // namespace mep

// The checks of an adapter before it executes a request, and the error with which it refuses one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "transport/gpu_queue/executor.hpp"
#include "transport/gpu_queue/work_request.hpp"

namespace mep::gpu_queue {

// The vendor's syndrome of a software NIC: what exactly was wrong.
enum class Reason : uint8_t {
  kNone = 0,
  // kOperation
  kDoorbell,   // names another queue pair
  kRecord,     // goes back, or tells of more than the ring has
  kIndex,      // of another request
  kQueuePair,  // of another queue
  kOpcode,
  kModifier,
  kSegments,    // not as many as the opcode has
  kReserved,    // signature, stream, immediate, or of the remote segment: not 0
  kCompletion,  // fm_ce_se is no Completion
  kCompare,     // an addition that compares
  // kLength
  kBytes,        // none, or more than kMaxWrite
  kInlineBytes,  // none, or not what the segments hold
  kAtomicBytes,  // not 8
  // kLocalProtection
  kLocalKey,
  kLocalRange,
  kLocalAccess,
  // kRemoteAccess
  kRemoteKey,
  kRemoteRange,
  kRemoteAccess,
  kRemotePlace,  // the transport knows no such window or place
  // kRemoteRequest
  kMisaligned,   // an atomic
  kUnsupported,  // an immediate, or an atomic that the way to the peer cannot do
  // kRetriesExhausted
  kPeerLost,
  // kFlushed
  kStopped = 0xf8,  // the NIC serves the queue no more
  kFlushed = 0xf9,  // an earlier request has failed
};

struct Refusal {
  Syndrome syndrome = Syndrome::kOperation;
  Reason reason = Reason::kNone;
};
const char* text_of(Reason reason);
// For people: request, syndromes, and what they mean.
std::string text_of(const QueueError& error);

// Memory of this side that requests may name: `bytes` from `address`, under `key`.
struct LocalRegion {
  uint32_t key = 0;
  uint64_t address = 0;  // as posters name it
  uint64_t bytes = 0;
  std::byte* here = nullptr;  // as this process reaches it
  bool allows_write = true;
};

struct RequestRules {
  uint32_t queue_pair = 0;
  std::span<const LocalRegion> local;
  std::span<const RemoteRegion> remote;
};

// A request that may be executed.
struct Accepted {
  enum class Kind : uint8_t { kNothing, kPut, kWord, kAdd };
  Kind kind = Kind::kNothing;
  bool completes = false;
  const RemoteRegion* remote = nullptr;
  uint64_t offset = 0;              // in it
  const std::byte* from = nullptr;  // of a put or word; inline bytes lie in the request itself
  uint64_t bytes = 0;
  uint64_t add = 0;
  std::byte* before = nullptr;
};

// `request` is the NIC's own copy; it stays where it is as long as *out is used. A write of 8 bytes to an aligned address
// is a word. False: *why.
[[nodiscard]] bool check_request(const RequestRules& rules, uint64_t index, const Request& request,
                                 Accepted* out, Refusal* why);

}  // namespace mep::gpu_queue

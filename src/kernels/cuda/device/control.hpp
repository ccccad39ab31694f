// Shared by host and device for EP objects: the control block, a channel's state and its report. Each buffer of an
// object is a channel. Plain C++, so that host code needs no CUDA header.
//
//   DeviceControl  device memory, one for each buffer and rank. The host alone writes it, by a copy in the order of
//                  the stream, so no kernel meets a block that changes. A graph captures its address, never its
//                  content.
//   DeviceChannel  device memory, one for each buffer and rank. The kernels of that buffer, which run one after the
//                  other, advance it; the first call of a new epoch resets `use`, in the order of the stream.
//   DeviceReport   pinned host memory, one for each buffer and rank. One kernel thread writes it, once for a failed
//                  epoch; `ready` last. The host takes it and stores 0 there.
//   abort word     pinned host memory, one for each EP object and rank: every epoch up to its value is over, and
//                  kernels that wait in it leave. It only rises, so a kernel of the next epoch goes on.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mep::device {

constexpr uint32_t kMaskWords = 4;
constexpr uint32_t kMaxRanks = kMaskWords * 64;
constexpr uint32_t kNobody = UINT32_MAX;

struct DeviceControl {
  uint64_t epoch;             // of the comm, from 1
  uint64_t timeout_ns;        // of one wait; 0: none
  uint64_t live[kMaskWords];  // ranks that take part
  uint32_t rank;
  uint32_t ranks;
  uint32_t partial_allowed;  // EpShape::allows_partial
  uint32_t reserved;
  const uint64_t* abort_word;  // device address of the pinned word; null: there is none
};

// Why a kernel left without its result.
enum class Cause : uint32_t {
  kNone = 0,
  kDeadline = 1,     // a wait took longer than timeout_ns
  kAborted = 2,      // the abort word says that the epoch is over
  kBadBytes = 3,     // a peer wrote what cannot be
  kOldEpoch = 4,     // the operation was begun in an epoch that is over
  kUnreachable = 5,  // the queue to a rank has ended: the rank or the way to it may be gone
  kRefused = 6,      // the NIC has refused a request of the queue to a rank
};

struct DeviceReport {
  uint64_t channel;
  uint64_t epoch;
  uint64_t seq;
  uint32_t missing;      // rank that was waited for, kNobody: none
  uint32_t phase;        // of the kernel family
  uint32_t cause;        // Cause
  uint32_t queue_error;  // of the queue to `missing`, as its low 32 bits; 0: none
  uint64_t ready;        // written last: epoch with bit 63 set; 0: nothing to read
};

struct DeviceChannel {
  uint64_t id;
  uint64_t epoch;         // in which the last operation was begun
  uint64_t seq;           // of the last operation begun; goes on over epochs
  uint64_t use;           // of the channel's words; 0 after an epoch change
  uint64_t failed_epoch;  // in which an operation failed; later ones of that epoch leave at once
  uint64_t failed_seq;
  uint32_t failed_cause;  // Cause
  uint32_t failed_rank;
  uint64_t claimed_epoch;    // whose first failure some thread records or has recorded
  uint32_t ticket[2];        // of the CTAs of a kernel, per stage of it; 0 between kernels
  uint64_t next_abort_look;  // by nanoseconds(): no thread looks at the abort word before
  DeviceReport* report;
};

}  // namespace mep::device

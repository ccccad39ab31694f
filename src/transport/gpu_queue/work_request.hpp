// Work requests, completions and doorbells of mlx5 NICs, for hosts and kernels.
//
// Sources: rdma-core, providers/mlx5 (mlx5dv.h, qp.c, cq.c), and Linux, include/linux/mlx5 (qp.h, device.h, cq.h):
// control, remote address, data, inline and atomic segments, opcodes, CQEs, doorbell records. NVSHMEM (transport IBGDA),
// DOCA GPUNetIO and UCX (module gda): the doorbell that carries the next index. NVIDIA, "Ethernet Adapters Programming
// Manual" (PRM): all of it.
//
// All fields are big endian. A work request here takes exactly one basic block of 64 bytes, so the index of a request, the
// index of its block and its place in the ring are the same number.
#pragma once

#include <cstddef>
#include <cstdint>

#include "protocol/host_device.hpp"

namespace mep::gpu_queue {

// --- Byte order (both sides are little endian) --------------------------------------------------------

MEP_HOST_DEVICE constexpr uint32_t swapped(uint32_t v) {
  return v >> 24 | (v >> 8 & 0xff00) | (v << 8 & 0xff0000) | v << 24;
}
MEP_HOST_DEVICE constexpr uint64_t swapped(uint64_t v) {
  return uint64_t{swapped(static_cast<uint32_t>(v))} << 32 |
         swapped(static_cast<uint32_t>(v >> 32));
}
struct Big32 {
  uint32_t raw;
  Big32() = default;
  MEP_HOST_DEVICE constexpr Big32(uint32_t value)
      : raw(swapped(value)) {}  // NOLINT(google-explicit-constructor)
  MEP_HOST_DEVICE constexpr uint32_t value() const { return swapped(raw); }
};
struct Big64 {
  uint64_t raw;
  Big64() = default;
  MEP_HOST_DEVICE constexpr Big64(uint64_t value)
      : raw(swapped(value)) {}  // NOLINT(google-explicit-constructor)
  MEP_HOST_DEVICE constexpr uint64_t value() const { return swapped(raw); }
};

// --- Segments, 16 bytes each --------------------------------------------------------------------------

enum class Opcode : uint8_t {
  kNop = 0x00,
  kWrite = 0x08,
  kWriteImmediate = 0x09,
  kFetchAdd = 0x12,
  kNone = 0xff,  // no request
};
// Which completions a request writes: one only if it fails, or one in any case.
enum class Completion : uint8_t { kOnError = 0x00, kAlways = 0x08 };

struct ControlSegment {  // struct mlx5_wqe_ctrl_seg
  Big32
      index_opcode;  // modifier of the opcode << 24 | 16 bits of the request's index << 8 | opcode
  Big32
      queue_segments;  // number of the queue pair << 8 | segments of the request, this one included
  uint8_t signature;   // 0
  uint8_t stream[2];   // 0
  uint8_t completion;  // fm_ce_se; here a Completion alone
  Big32 immediate;     // else 0
};
struct RemoteSegment {  // struct mlx5_wqe_raddr_seg
  Big64 address;
  Big32 key;
  Big32 reserved;
};
struct DataSegment {  // struct mlx5_wqe_data_seg
  Big32 bytes;        // bit 31 is 0
  Big32 key;
  Big64 address;
};
struct InlineHead {  // struct mlx5_wqe_inl_data_seg; the bytes follow, padded to whole segments
  Big32 bytes;       // kInline | count
};
struct AtomicSegment {  // struct mlx5_wqe_atomic_seg
  Big64 add;
  Big64 compare;  // 0 for fetch-and-add
};
constexpr uint32_t kInline = 0x80000000u;
static_assert(sizeof(ControlSegment) == 16 && offsetof(ControlSegment, queue_segments) == 4 &&
              offsetof(ControlSegment, completion) == 11 &&
              offsetof(ControlSegment, immediate) == 12);
static_assert(sizeof(RemoteSegment) == 16 && offsetof(RemoteSegment, key) == 8);
static_assert(sizeof(DataSegment) == 16 && offsetof(DataSegment, key) == 4 &&
              offsetof(DataSegment, address) == 8);
static_assert(sizeof(InlineHead) == 4);
static_assert(sizeof(AtomicSegment) == 16 && offsetof(AtomicSegment, compare) == 8);

// --- Requests -----------------------------------------------------------------------------------------

constexpr uint32_t kRequestBytes = 64;
constexpr uint32_t kRequestWords = 16;
// The most bytes that a request of one block carries itself: two segments less the inline head.
constexpr uint32_t kMaxInline = 28;
// The most bytes of one write: any adapter takes 2^30 (log_max_msg).
constexpr uint64_t kMaxWrite = uint64_t{1} << 30;

// One block of the ring. The queue sets index and queue pair when it posts one; builders leave both 0.
struct alignas(kRequestBytes) Request {
  uint32_t words[kRequestWords];
};
static_assert(sizeof(Request) == kRequestBytes);

struct Segment {
  uint32_t words[4];
};
template <typename T>
MEP_HOST_DEVICE constexpr void set_segment(Request* request, uint32_t at, const T& segment) {
  static_assert(sizeof(T) == sizeof(Segment));
  const auto words = __builtin_bit_cast(Segment, segment);
  for (uint32_t i = 0; i < 4; ++i) request->words[4 * at + i] = words.words[i];
}
template <typename T>
MEP_HOST_DEVICE constexpr T get_segment(const Request& request, uint32_t at) {
  static_assert(sizeof(T) == sizeof(Segment));
  Segment words{};
  for (uint32_t i = 0; i < 4; ++i) words.words[i] = request.words[4 * at + i];
  return __builtin_bit_cast(T, words);
}

// Index and opcode of a request.
MEP_HOST_DEVICE constexpr Big32 index_opcode(uint64_t index, Opcode opcode) {
  return Big32(static_cast<uint32_t>(index & 0xffff) << 8 | static_cast<uint32_t>(opcode));
}
MEP_HOST_DEVICE constexpr uint32_t segments_of(const Request& request) {
  return get_segment<ControlSegment>(request, 0).queue_segments.value() & 0x3f;
}

struct RemoteMemory {
  uint64_t address;
  uint32_t key;
};
struct LocalMemory {
  const void* address;
  uint32_t key;
};

MEP_HOST_DEVICE constexpr Request request_of(Opcode opcode, uint32_t segments,
                                             uint32_t immediate = 0) {
  Request request{};
  set_segment(
      &request, 0,
      ControlSegment{index_opcode(0, opcode), Big32(segments), 0, {0, 0}, 0, Big32(immediate)});
  return request;
}
MEP_HOST_DEVICE constexpr Request nop() {
  return request_of(Opcode::kNop, 1);
}

MEP_HOST_DEVICE constexpr void set_remote(Request* request, const RemoteMemory& remote) {
  set_segment(request, 1, RemoteSegment{Big64(remote.address), Big32(remote.key), Big32(0)});
}
MEP_HOST_DEVICE inline void set_data(Request* request, uint32_t at, const LocalMemory& local,
                                     uint32_t bytes) {
  const auto address = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(local.address));
  set_segment(request, at, DataSegment{Big32(bytes), Big32(local.key), Big64(address)});
}
// 1 .. kMaxWrite bytes.
MEP_HOST_DEVICE inline Request write(const RemoteMemory& remote, const LocalMemory& local,
                                     uint32_t bytes) {
  Request request = request_of(Opcode::kWrite, 3);
  set_remote(&request, remote);
  set_data(&request, 2, local, bytes);
  return request;
}
// The same; the immediate arrives in a completion of the target.
MEP_HOST_DEVICE inline Request write_immediate(const RemoteMemory& remote, const LocalMemory& local,
                                               uint32_t bytes, uint32_t immediate) {
  Request request = request_of(Opcode::kWriteImmediate, 3, immediate);
  set_remote(&request, remote);
  set_data(&request, 2, local, bytes);
  return request;
}
// 1 .. kMaxInline bytes, which the request carries: `data` is free afterwards.
MEP_HOST_DEVICE inline Request write_inline(const RemoteMemory& remote, const void* data,
                                            uint32_t bytes) {
  Request request = request_of(Opcode::kWrite, bytes <= 12 ? 3 : 4);
  set_remote(&request, remote);
  request.words[8] = Big32(kInline | bytes).raw;
  const auto* from = static_cast<const uint8_t*>(data);
  for (uint32_t i = 0; i < kMaxInline; ++i) {
    if (i < bytes) request.words[9 + i / 4] |= uint32_t{from[i]} << 8 * (i % 4);
  }
  return request;
}
MEP_HOST_DEVICE constexpr Request write_word(const RemoteMemory& remote, uint64_t value) {
  Request request = request_of(Opcode::kWrite, 3);
  set_remote(&request, remote);
  request.words[8] = Big32(kInline | 8).raw;
  request.words[9] = static_cast<uint32_t>(value);
  request.words[10] = static_cast<uint32_t>(value >> 32);
  return request;
}
// Adds to an aligned 64-bit word; `before`, 8 bytes, takes the value that it had, big endian.
MEP_HOST_DEVICE inline Request fetch_add(const RemoteMemory& remote, uint64_t add,
                                         const LocalMemory& before) {
  Request request = request_of(Opcode::kFetchAdd, 4);
  set_remote(&request, remote);
  set_segment(&request, 2, AtomicSegment{Big64(add), Big64(0)});
  set_data(&request, 3, before, 8);
  return request;
}

// --- Completions --------------------------------------------------------------------------------------

enum class CompletionOpcode : uint8_t {
  kRequest = 0,  // a request of this side is done, and so are all before it
  kRequestError = 13,
  kResponseError = 14,
  kInvalid = 15,  // nothing has been written yet
};

// struct mlx5_cqe64 and mlx5_err_cqe, 64 bytes. Fields without a name here are not read.
struct alignas(64) CompletionEntry {
  uint8_t unread[52];
  Big32 syndromes;  // of an error: hw_error_syndrome, hw_syndrome_type, vendor_err_synd, syndrome
  Big32 opcode_queue;  // opcode of the request << 24 | queue pair
  Big32
      counter_opcode;  // wqe_counter, 16 bits | signature, 8 | CompletionOpcode, 4 | format, 2 | solicited | owner
};
static_assert(sizeof(CompletionEntry) == 64 && offsetof(CompletionEntry, syndromes) == 52 &&
              offsetof(CompletionEntry, counter_opcode) == 60);

MEP_HOST_DEVICE constexpr uint16_t counter_of(Big32 counter_opcode) {
  return static_cast<uint16_t>(counter_opcode.value() >> 16);
}
MEP_HOST_DEVICE constexpr CompletionOpcode opcode_of(Big32 counter_opcode) {
  return static_cast<CompletionOpcode>(counter_opcode.value() >> 4 & 0xf);
}

// MLX5_CQE_SYNDROME_...
enum class Syndrome : uint8_t {
  kLength = 0x01,
  kOperation = 0x02,
  kLocalProtection = 0x04,
  kFlushed = 0x05,
  kRemoteRequest = 0x12,
  kRemoteAccess = 0x13,
  kRemoteOperation = 0x14,
  kRetriesExhausted = 0x15,
};

// A NIC's report of the request that failed.
struct QueueError {
  // Whether the peer or the way to it may be gone; else no request of MEP should have this error.
  MEP_HOST_DEVICE constexpr bool is_of_peer() const {
    const auto what = static_cast<Syndrome>(syndrome);
    return what == Syndrome::kFlushed || what == Syndrome::kRemoteOperation ||
           what == Syndrome::kRetriesExhausted;
  }

  uint8_t
      syndrome;    // a Syndrome, or any other number; 0x05: flushed, an earlier request has failed
  uint8_t vendor;  // for NVIDIA's support
  uint16_t wqe_counter;
};

// --- Doorbells ----------------------------------------------------------------------------------------

// A doorbell record has two 32-bit words, of the receive queue and of the send queue.
struct alignas(8) DoorbellRecord {
  Big32 receive;
  Big32 send;  // 16 bits of the next index
};
static_assert(sizeof(DoorbellRecord) == 8 && offsetof(DoorbellRecord, send) == 4);

MEP_HOST_DEVICE constexpr Big32 record_of(uint64_t next) {
  return Big32(static_cast<uint32_t>(next & 0xffff));
}
// One store of 8 bytes to a register of the NIC.
MEP_HOST_DEVICE constexpr uint64_t doorbell_of(uint64_t next, uint32_t queue_pair) {
  return uint64_t{Big32(queue_pair << 8).raw} << 32 |
         Big32(static_cast<uint32_t>(next & 0xffff) << 8).raw;
}

}  // namespace mep::gpu_queue

// Commands of mlx5 NICs that make and connect a queue pair, as they are given through DevX.
//
// A command is a mailbox of big-endian bits. Its answer begins with a status, 0 if all went well, and a syndrome that NVIDIA
// can read. Offsets are in bits from the begin of the mailbox, those of a context from the begin of the context.
//
// Sources: Linux, include/linux/mlx5/mlx5_ifc.h (mlx5_ifc_..._bits: all layouts); rdma-core, providers/mlx5/mlx5_ifc.h;
// NVSHMEM (transport IBGDA), Mooncake and DOCA GPUNetIO: the values that a queue of a GPU is given.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace mep::gpu_queue::mlx5 {

struct Field {
  uint32_t at;
  uint32_t bits;  // 1 .. 64
};
// A field of a context that lies at `context` in its mailbox.
constexpr Field within(uint32_t context, Field field) {
  return {context + field.at, field.bits};
}

// The longest mailbox is the answer to a query of capabilities.
class Mailbox {
 public:
  static constexpr size_t kMostBytes = 4112;

  explicit constexpr Mailbox(size_t bytes) : bytes_(bytes) {}

  constexpr void set(Field field, uint64_t value) {
    for (uint32_t i = 0; i < field.bits; ++i) {
      const uint32_t bit = field.at + field.bits - 1 - i;
      const auto mask = static_cast<uint8_t>(0x80u >> (bit % 8));
      uint8_t& byte = data_[bit / 8];
      byte = static_cast<uint8_t>((value >> i & 1) != 0 ? byte | mask : byte & ~mask);
    }
  }
  constexpr uint64_t get(Field field) const {
    uint64_t value = 0;
    for (uint32_t bit = field.at; bit < field.at + field.bits; ++bit) {
      value = value << 1 | (data_[bit / 8] >> (7 - bit % 8) & 1u);
    }
    return value;
  }
  void set_bytes(uint32_t at, std::span<const uint8_t> from) {
    for (size_t i = 0; i < from.size(); ++i) data_[at / 8 + i] = from[i];
  }

  uint8_t* data() { return data_.data(); }
  const uint8_t* data() const { return data_.data(); }
  size_t size() const { return bytes_; }

 private:
  size_t bytes_;
  std::array<uint8_t, kMostBytes> data_{};
};

enum class Command : uint16_t {
  kQueryHcaCap = 0x100,
  kCreateCq = 0x400,
  kCreateQp = 0x500,
  kReset2Init = 0x502,
  kInit2Rtr = 0x503,
  kRtr2Rts = 0x504,
  kToError = 0x507,
};

// All commands and answers.
constexpr Field kOpcode{0x0, 16};
constexpr Field kOpMod{0x30, 16};
constexpr Field kStatus{0x0, 8};
constexpr Field kSyndrome{0x20, 32};
constexpr Field kNumber{0x48,
                        24};  // of the object: in the answer of a creation, and in what changes it
constexpr size_t kShortBytes = 16;
constexpr size_t kLongBytes = 272;

// --- QUERY_HCA_CAP ------------------------------------------------------------------------------------

constexpr size_t kCapabilityAnswerBytes = 4112;
constexpr uint32_t kCapabilityAt = 0x80;
enum class CapabilityKind : uint16_t { kGeneral = 0, kAtomic = 3 };
constexpr uint64_t op_mod_of(CapabilityKind kind) {
  return static_cast<uint64_t>(kind) << 1 | 1;  // 1: what is set now
}
namespace general {
constexpr Field kLogMaxQueueEntries{0x88, 8};
constexpr Field kLogMaxCompletionEntries{0xc8, 8};
constexpr Field kPortType{0x1b6, 2};  // 0: InfiniBand, 1: Ethernet
constexpr Field kLogMaxMessage{0x1c3, 5};
constexpr Field kCompletionVersion{0x1fc, 4};
constexpr Field kRoce{0x21d, 1};
constexpr Field kAtomic{0x21e, 1};
constexpr Field kIgnoresOverrun{0x220, 1};  // cq_oi
}  // namespace general
namespace atomic {
constexpr Field kOperations{0x90, 16};  // bit 1: fetch-and-add
constexpr Field kSizes{0xb0, 16};       // bit 3: of 8 bytes
}  // namespace atomic

// --- CREATE_CQ ----------------------------------------------------------------------------------------

constexpr uint32_t kCqContextAt = 0x80;
namespace cq {
constexpr Field kRecordUmemValid{0x6, 1};
constexpr Field kEntrySize{0x8, 3};  // 0: 64 bytes
constexpr Field kCollapsed{0xb, 1};
constexpr Field kIgnoresOverrun{0xe, 1};
constexpr Field kRecordUmem{0x20, 32};
constexpr Field kLogSize{0x63, 5};
constexpr Field kUar{0x68, 24};
constexpr Field kEventQueue{0xb8, 8};
constexpr Field kLogPageSize{0xc3, 5};  // over 4 KiB
constexpr Field kRecordAddress{0x1c0, 64};
}  // namespace cq
constexpr Field kCqUmemOffset{0x280, 64};
constexpr Field kCqUmem{0x2c0, 32};
constexpr Field kCqUmemValid{0x2e0, 1};

// --- CREATE_QP and its changes of state ---------------------------------------------------------------

constexpr uint32_t kQpContextAt = 0xc0;
constexpr Field kQpUmemOffset{0x800, 64};
constexpr Field kQpUmem{0x840, 32};
constexpr Field kQpUmemValid{0x860, 1};
namespace qp {
constexpr Field kService{0x8, 8};         // 0: RC
constexpr Field kPathMigration{0x13, 2};  // 3: migrated
constexpr Field kProtectionDomain{0x28, 24};
constexpr Field kMtu{0x40, 3};  // 1 .. 5: 256 .. 4096 bytes
constexpr Field kLogMaxMessage{0x43, 5};
constexpr Field kLogSendQueue{0x51, 4};
constexpr Field kTimestamps{0x58, 2};  // 1: as the NIC is set up
constexpr Field kUar{0x68, 24};
constexpr Field kLogPageSize{0xa3, 5};
constexpr Field kRemoteNumber{0xa8, 24};
constexpr uint32_t kPathAt = 0xc0;
constexpr Field kRetries{0x38d, 3};
constexpr Field kNotReadyRetries{0x390, 3};
constexpr Field kNextSendPsn{0x3c8, 24};
constexpr Field kSendCq{0x3e8, 24};
constexpr Field kAtomicMode{0x48c, 4};  // 3: up to 8 bytes
constexpr Field kAllowsRead{0x490, 1};
constexpr Field kAllowsWrite{0x491, 1};
constexpr Field kAllowsAtomic{0x492, 1};
constexpr Field kNotReadyTimer{0x4a3, 5};
constexpr Field kNextReceivePsn{0x4a8, 24};
constexpr Field kRecordAddress{0x500, 64};
constexpr Field kReceiveQueueType{0x565, 3};  // 3: none
constexpr Field kRequestsInCompletions{0x630, 8};
constexpr Field kResponsesInCompletions{0x638, 8};
constexpr Field kRecordUmemValid{0x683, 1};
constexpr Field kRecordUmem{0x720, 32};
}  // namespace qp
// The path to the peer, at kPathAt in the context of a queue pair.
namespace path {
constexpr Field kKeyIndex{0x10, 16};
constexpr Field kGlobalHeader{0x28, 1};
constexpr Field kLid{0x30, 16};
constexpr Field kAckTimeout{0x40, 5};
constexpr Field kSourceAddress{0x48, 8};
constexpr Field kHopLimit{0x58, 8};
constexpr Field kTrafficClass{0x64, 8};
constexpr uint32_t kGidAt = 0x80;  // 16 bytes
constexpr Field kDscp{0x10a, 6};
constexpr Field kUdpPort{0x110, 16};
constexpr Field kPriority{0x121, 3};
constexpr Field kServiceLevel{0x124, 4};
constexpr Field kPort{0x128, 8};
constexpr uint32_t kMacAt = 0x130;  // 6 bytes
}  // namespace path
constexpr Field in_qp(Field field) {
  return within(kQpContextAt, field);
}
constexpr Field in_path(Field field) {
  return within(kQpContextAt + qp::kPathAt, field);
}

}  // namespace mep::gpu_queue::mlx5

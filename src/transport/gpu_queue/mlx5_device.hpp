// A device gives all that a queue pair of an mlx5 NIC is made with: commands, memory that the NIC reads, a page of
// doorbells. The library libmlx5 gives these (verbs/mlx5_device.hpp); tests give a model of the firmware.
//
// By one thread at a time. Objects end in the reverse order of their making, before their device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "mep.h"
#include "transport/gpu_queue/memory_range.hpp"
#include "transport/gpu_queue/mlx5_commands.hpp"

namespace mep::gpu_queue::mlx5 {

// Made by a command; its destructor destroys it.
class Object {
 public:
  virtual ~Object() = default;
  [[nodiscard]] virtual mep_result_t modify(const Mailbox& in, Mailbox* out) = 0;
};

// Memory that the NIC may read and write, until this ends: "umem".
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  virtual uint32_t id() const = 0;
};

// A page of the NIC's registers: "UAR".
class DoorbellPage {
 public:
  virtual ~DoorbellPage() = default;
  virtual uint32_t id() const = 0;
  // Where doorbells of 8 bytes are stored. Write-only, and of the host: a GPU maps it first.
  virtual uint64_t* address() const = 0;
};

// Memory that requests may name by its address, until this ends: "MR".
class RegisteredMemory {
 public:
  virtual ~RegisteredMemory() = default;
  virtual uint32_t local_key() const = 0;
  virtual uint32_t remote_key() const = 0;
};

// Tells a peer of a queue pair, and how to reach it.
struct QueueAddress {
  uint32_t queue_pair = 0;
  uint32_t first_psn = 0;  // 24 bits
  uint32_t mtu = 0;        // 1 .. 5: 256 .. 4096 bytes
  uint16_t lid = 0;
  bool has_gid = false;  // InfiniBand only: RoCE always has one
  std::array<uint8_t, 16> gid{};
  std::array<uint8_t, 6> mac{};  // Ethernet
};

// How this end sends.
struct PathOptions {
  uint8_t port = 1;
  uint16_t key_index = 0;
  uint8_t gid_index = 0;
  uint8_t traffic_class = 0;
  uint8_t service_level = 0;
  bool needs_global_header = false;  // of a port of InfiniBand: IBV_QPF_GRH_REQUIRED
  bool is_roce_v2 = true;
};

struct Port {
  QueueAddress address;  // of a queue pair there, without its numbers
  PathOptions path;
  std::string description;  // for people: link, addresses, firmware
};

class Device {
 public:
  virtual ~Device() = default;

  // The answer's status is checked: a refusal is MEP_ERR_SYSTEM and its text has command, status and syndrome.
  [[nodiscard]] virtual mep_result_t query(const Mailbox& in, Mailbox* out) = 0;
  [[nodiscard]] virtual mep_result_t create(const Mailbox& in, Mailbox* out,
                                            std::unique_ptr<Object>* object) = 0;
  [[nodiscard]] virtual mep_result_t share(const MemoryRange& range,
                                           std::unique_ptr<SharedMemory>* memory) = 0;
  [[nodiscard]] virtual mep_result_t doorbells(std::unique_ptr<DoorbellPage>* page) = 0;
  // Any, for a completion queue that never raises an event.
  [[nodiscard]] virtual mep_result_t event_queue(uint32_t* number) = 0;
  virtual uint32_t protection_domain() const = 0;
  // For requests of queue pairs of this device, and of those that reach them.
  [[nodiscard]] virtual mep_result_t register_memory(const MemoryRange& range,
                                                     std::unique_ptr<RegisteredMemory>* memory) = 0;
  // The first one that is active.
  [[nodiscard]] virtual mep_result_t find_port(Port* out) = 0;
};

// For implementations: MEP_SUCCESS, or the error that an answer speaks of.
[[nodiscard]] mep_result_t check_answer(const Mailbox& in, const Mailbox& out);

}  // namespace mep::gpu_queue::mlx5

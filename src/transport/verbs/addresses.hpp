// The facts that two ranks must know of each other to connect queue pairs, and what follows from them. Values and
// pure functions only: nothing here calls verbs, so that it can be tried without a device.
//
// Invariants
//   - All data from a peer is checked in decode_*; what passes is within the arrays.
//   - pair_rails() gives both ends of a pair the same answer from the same two offers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mep.h"

namespace mep::verbs {

using Gid = std::array<uint8_t, 16>;

// A rail is a pair of HCA ports, one of either rank, with one queue pair between them.
constexpr size_t kMaxRails = 4;
constexpr uint32_t kLargestMtu = 5;  // verbs' code for 4096 bytes; 1 stands for 256

enum class GidType { kInfiniband, kRoceV1, kRoceV2 };

struct GidEntry {
  uint32_t index = 0;
  GidType type = GidType::kInfiniband;
  Gid gid{};
  uint32_t interface = 0;  // of the network; 0: none
};

bool is_zero(const Gid& gid);
bool is_ipv4_mapped(const Gid& gid);  // ::ffff:a.b.c.d
bool is_link_local(const Gid& gid);   // fe80::/10

// The index to address a port by; -1: none will do. RoCE v2 can be routed and is what fabrics are
// set up for, IPv4 addresses are what people give their interfaces. `wanted` is the user's choice,
// -1: none; it must exist.
int choose_gid(std::span<const GidEntry> entries, bool is_infiniband, int wanted);

// One port of a rank, as its peers see it.
struct PortAddress {
  bool is_infiniband = false;
  uint32_t mtu = 1;         // verbs' code
  uint16_t lid = 0;         // InfiniBand only
  uint32_t speed_mbps = 0;  // 0: not known
  Gid gid{};
};

std::vector<std::byte> encode_offer(std::span<const PortAddress> ports);
[[nodiscard]] mep_result_t decode_offer(std::span<const std::byte> bytes,
                                        std::vector<PortAddress>* ports);

struct RailPorts {
  size_t lower = 0;   // index in the offer of the rank with the lower slot
  size_t higher = 0;  // index in the other one's
};
// Each port of the lower slot, in its order, takes the first free port of the other that it can
// reach. Empty: they have no fabric in common.
std::vector<RailPorts> pair_rails(std::span<const PortAddress> lower,
                                  std::span<const PortAddress> higher);
bool same_fabric(const PortAddress& one, const PortAddress& other);
// Whether packets carry a global route: always over Ethernet, else between subnets.
bool needs_global_route(const PortAddress& one, const PortAddress& other);

// "mlx5_0:1,mlx5_1" -> names and ports (0: the first that is active).
struct PortName {
  std::string device;
  int port = 0;
};
[[nodiscard]] mep_result_t parse_port_list(const std::string& text, std::vector<PortName>* ports);

// A window as it is told to one peer, with this rank's ends of the queue pairs to that peer.
struct WindowRail {
  uint32_t rkey = 0;
  uint32_t queue_pair = 0;  // 24 bits
  uint32_t first_psn = 0;   // 24 bits: the packet number that this rank's side begins with
};
struct WindowAddress {
  uint64_t window = 0;
  uint64_t bytes = 0;
  uint64_t address = 0;
  uint32_t generation = 0;
  std::vector<WindowRail> rails;
};
std::vector<std::byte> encode_window(const WindowAddress& address);
// Also checks that it is the window of this id, with at least `bytes`, over `rails` rails.
[[nodiscard]] mep_result_t decode_window(std::span<const std::byte> blob, uint64_t window,
                                         size_t bytes, size_t rails, WindowAddress* out);

// How `bytes` are spread over rails: rail i takes [begin(i), begin(i + 1)).
class Striping {
 public:
  // Below this the latency of a second rail costs more than its bandwidth gains.
  static constexpr size_t kMinBytes = 128 << 10;
  static constexpr size_t kUnitBytes = 4096;
  Striping(size_t bytes, size_t rails);
  size_t rails() const { return rails_; }
  size_t begin(size_t rail) const;

 private:
  size_t bytes_;
  size_t rails_;
};

}  // namespace mep::verbs

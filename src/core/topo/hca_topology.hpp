// Where HCAs, GPUs and memory of a host are attached, as plain values: read from hwloc once, judged
// by hca_choice.hpp. An HCA that hwloc does not know (a software device) has an unknown place.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "mep.h"

namespace mep {

struct PciAddress {
  uint32_t domain = 0;
  uint32_t bus = 0;
  uint32_t device = 0;
  uint32_t function = 0;
  auto operator<=>(const PciAddress&) const = default;
};
std::string pci_text(const PciAddress& address);
// "0000:18:00.0", the domain may be absent or longer; hexadecimal. False: no PCI address.
bool parse_pci_address(const std::string& text, PciAddress* out);

struct DevicePlace {
  bool is_known = false;
  std::vector<uint32_t> bridges;     // ids, from the host bridge inwards; may be empty
  std::vector<uint64_t> cpus;        // next to it, one bit a logical CPU
  std::vector<uint32_t> numa_nodes;  // next to it, ascending numbers of the system
  int package = -1;                  // -1: in none
};

enum class LinkState { kUnknown, kDown, kInitializing, kArmed, kActive };

struct HcaPort {
  int number = 1;
  LinkState state = LinkState::kUnknown;
  double rate_gbit = 0;    // 0: unknown
  std::string link_layer;  // "InfiniBand", "Ethernet" or empty
};

struct TopologyHca {
  std::string name;
  DevicePlace place;
  std::vector<HcaPort> ports;  // ascending
};

struct PciDevice {
  PciAddress address;
  DevicePlace place;
};

// Buses below a bridge: for addresses whose device hwloc did not keep.
struct PciBridge {
  uint32_t domain = 0;
  uint32_t first_bus = 0;
  uint32_t last_bus = 0;
  DevicePlace place;  // of what is right below it
};

struct Gpu {
  std::string name;  // "cuda0", "nvml0", or what it is called by its PCI address alone
  std::string pci;   // its address; empty: unknown
  DevicePlace place;
};

struct NumaNode {
  uint32_t number = 0;
  int package = -1;
  std::vector<uint64_t> cpus;
};

struct HcaTopology {
  bool is_this_host = true;
  std::vector<uint64_t> cpus;  // all of the machine
  std::vector<NumaNode> numa_nodes;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> numa_distance;  // by numbers; may be empty
  std::vector<TopologyHca> hcas;
  std::vector<Gpu> gpus;  // gpu:0, gpu:1, ...
  std::vector<PciDevice> pci_devices;
  std::vector<PciBridge> bridges;
};

// `xml_file` empty: this host (or what hwloc's own variables say), and its link states as the kernel
// shows them. Else an export of hwloc; states from the attributes PortNState, and PortNRate and
// PortNLinkLayer, which hwloc does not write but a person may add. An unreadable file is
// MEP_ERR_INVALID_ARGUMENT.
[[nodiscard]] mep_result_t read_hca_topology(const std::string& xml_file, HcaTopology* out);

// Ports, states and rates of a folder like /sys/class/infiniband; adds HCAs that are not there yet.
void read_link_states(const std::string& folder, HcaTopology* topology);

}  // namespace mep

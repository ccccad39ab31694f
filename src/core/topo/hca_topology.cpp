// One hwloc topology is loaded, read and destroyed; all that outlives it are values. Loading takes
// milliseconds.
#include "core/topo/hca_topology.hpp"

#include <hwloc.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>

#include "base/status.hpp"

namespace mep {
namespace {

constexpr const char* kHcaFolder = "/sys/class/infiniband";
constexpr int kMaxPorts = 255;
constexpr uint32_t kMaxCpus = 1 << 16;

struct DestroyHcaTopology {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using HcaTopologyPointer =
    std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, DestroyHcaTopology>;

std::string info_of(hwloc_obj_t object, const std::string& name) {
  const char* text = hwloc_obj_get_info_by_name(object, name.c_str());
  return text == nullptr ? "" : text;
}

std::vector<uint64_t> cpu_words(hwloc_const_cpuset_t set) {
  std::vector<uint64_t> words;
  if (set == nullptr) return words;
  for (int cpu = hwloc_bitmap_first(set); cpu >= 0 && cpu < static_cast<int>(kMaxCpus);
       cpu = hwloc_bitmap_next(set, cpu)) {
    const size_t word = static_cast<size_t>(cpu) / 64;
    if (word >= words.size()) words.resize(word + 1, 0);
    words[word] |= uint64_t{1} << (cpu % 64);
  }
  return words;
}

int package_of(hwloc_topology_t topology, hwloc_obj_t object) {
  if (object->type == HWLOC_OBJ_PACKAGE) return static_cast<int>(object->logical_index);
  const hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_PACKAGE, object);
  return package == nullptr ? -1 : static_cast<int>(package->logical_index);
}

// Where something right below `parent` is attached.
DevicePlace place_below(hwloc_topology_t topology, hwloc_obj_t parent) {
  DevicePlace place;
  place.is_known = true;
  hwloc_obj_t object = parent;
  for (; object != nullptr && hwloc_obj_type_is_io(object->type) != 0; object = object->parent) {
    if (object->type == HWLOC_OBJ_BRIDGE) {
      place.bridges.insert(place.bridges.begin(), static_cast<uint32_t>(object->gp_index));
    }
  }
  if (object == nullptr) return place;
  place.cpus = cpu_words(object->cpuset);
  place.package = package_of(topology, object);
  if (object->nodeset == nullptr) return place;
  for (int node = hwloc_bitmap_first(object->nodeset); node >= 0;
       node = hwloc_bitmap_next(object->nodeset, node)) {
    if (place.numa_nodes.size() >= kMaxCpus) break;
    place.numa_nodes.push_back(static_cast<uint32_t>(node));
  }
  return place;
}

void read_numa_nodes(hwloc_topology_t topology, HcaTopology* out) {
  hwloc_obj_t node = nullptr;
  while ((node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr) {
    out->numa_nodes.push_back(
        {node->os_index, package_of(topology, node), cpu_words(node->cpuset)});
  }
  unsigned count = 1;
  hwloc_distances_s* distances = nullptr;
  if (hwloc_distances_get_by_type(topology, HWLOC_OBJ_NUMANODE, &count, &distances,
                                  HWLOC_DISTANCES_KIND_MEANS_LATENCY, 0) != 0 ||
      count == 0 || distances == nullptr) {
    return;
  }
  for (unsigned from = 0; from < distances->nbobjs; ++from) {
    for (unsigned to = 0; to < distances->nbobjs; ++to) {
      if (distances->objs[from] == nullptr || distances->objs[to] == nullptr) continue;
      out->numa_distance[{distances->objs[from]->os_index, distances->objs[to]->os_index}] =
          distances->values[from * distances->nbobjs + to];
    }
  }
  hwloc_distances_release(topology, distances);
}

PciAddress address_of(const hwloc_obj_attr_u::hwloc_pcidev_attr_s& pci) {
  return {pci.domain, pci.bus, pci.dev, pci.func};
}

// hwloc writes the state as the verbs number: 1 down, 2 initializing, 3 armed, 4 active.
LinkState state_of(const std::string& text) {
  switch (text.empty() ? '0' : text[0]) {
    case '1':
      return LinkState::kDown;
    case '2':
      return LinkState::kInitializing;
    case '3':
      return LinkState::kArmed;
    case '4':
      return LinkState::kActive;
    default:
      return LinkState::kUnknown;
  }
}

// "100 Gb/sec (4X EDR)"
double rate_of(const std::string& text) {
  const double rate = std::strtod(text.c_str(), nullptr);
  return rate > 0 && rate < 1e6 ? rate : 0;
}

TopologyHca hca_of(hwloc_topology_t topology, hwloc_obj_t object) {
  TopologyHca hca;
  hca.name = object->name == nullptr ? "?" : object->name;
  hca.place = place_below(topology, object->parent);
  for (int number = 1; number <= kMaxPorts; ++number) {
    const std::string prefix = "Port" + std::to_string(number);
    const std::string state = info_of(object, prefix + "State");
    if (state.empty() && info_of(object, prefix + "LID").empty()) break;
    hca.ports.push_back({number, state_of(state), rate_of(info_of(object, prefix + "Rate")),
                         info_of(object, prefix + "LinkLayer")});
  }
  if (hca.ports.empty()) hca.ports.emplace_back();
  return hca;
}

void read_gpus(hwloc_topology_t topology, HcaTopology* out) {
  // CUDA's own numbers where hwloc knows them, then NVML's, then the order of PCI addresses.
  for (const std::string kind : {"cuda", "nvml"}) {
    hwloc_obj_t object = nullptr;
    while ((object = hwloc_get_next_osdev(topology, object)) != nullptr) {
      if (object->name == nullptr || object->name != kind + std::to_string(out->gpus.size())) {
        continue;
      }
      const hwloc_obj_t parent = object->parent;
      const bool has_address = parent->type == HWLOC_OBJ_PCI_DEVICE;
      out->gpus.push_back({object->name,
                           has_address ? pci_text(address_of(parent->attr->pcidev)) : "",
                           place_below(topology, parent)});
      object = nullptr;  // the next number may stand before this one
    }
    if (!out->gpus.empty()) return;
  }
  constexpr unsigned kNvidia = 0x10de;
  constexpr unsigned kAmd = 0x1002;
  for (const unsigned vendor : {kNvidia, kAmd}) {
    std::vector<std::pair<PciAddress, hwloc_obj_t>> found;
    hwloc_obj_t object = nullptr;
    while ((object = hwloc_get_next_pcidev(topology, object)) != nullptr) {
      const hwloc_obj_attr_u::hwloc_pcidev_attr_s& pci = object->attr->pcidev;
      const unsigned device_class = pci.class_id >> 8;  // 3: display, 0x12: accelerator
      if (pci.vendor_id != vendor || (device_class != 0x03 && device_class != 0x12)) continue;
      found.emplace_back(address_of(pci), object);
    }
    std::sort(found.begin(), found.end());
    for (const auto& [address, device] : found) {
      const std::string model = info_of(device, "PCIDevice");
      out->gpus.push_back({model.empty() ? "a GPU" : model, pci_text(address),
                           place_below(topology, device->parent)});
    }
    if (!out->gpus.empty()) return;
  }
}

void read_objects(hwloc_topology_t topology, HcaTopology* out) {
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_osdev(topology, object)) != nullptr) {
    if (object->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS) {
      out->hcas.push_back(hca_of(topology, object));
    }
  }
  while ((object = hwloc_get_next_pcidev(topology, object)) != nullptr) {
    out->pci_devices.push_back(
        {address_of(object->attr->pcidev), place_below(topology, object->parent)});
  }
  while ((object = hwloc_get_next_bridge(topology, object)) != nullptr) {
    if (object->attr->bridge.downstream_type != HWLOC_OBJ_BRIDGE_PCI) continue;
    const auto& pci = object->attr->bridge.downstream.pci;
    out->bridges.push_back(
        {pci.domain, pci.secondary_bus, pci.subordinate_bus, place_below(topology, object)});
  }
  read_gpus(topology, out);
}

// The first line of a file of the kernel; empty: there is none.
std::string line_of(const std::string& path) {
  std::ifstream file(path);
  char text[256] = {};
  file.getline(text, sizeof text);
  return text;
}

}  // namespace

std::string pci_text(const PciAddress& address) {
  char text[32];
  (void)std::snprintf(text, sizeof text, "%04x:%02x:%02x.%x", address.domain, address.bus,
                      address.device, address.function);
  return text;
}

bool parse_pci_address(const std::string& text, PciAddress* out) {
  uint32_t numbers[4] = {};
  const bool has_domain = std::count(text.begin(), text.end(), ':') == 2;
  const char* at = text.data();
  const char* end = at + text.size();
  const char separators[4] = {':', ':', '.', '\0'};
  for (int i = has_domain ? 0 : 1; i < 4; ++i) {
    const auto [stop, error] = std::from_chars(at, end, numbers[i], 16);
    if (error != std::errc()) return false;
    if (i == 3) {
      at = stop;
      break;
    }
    if (stop == end || *stop != separators[i]) return false;
    at = stop + 1;
  }
  if (at != end || numbers[1] > 0xff || numbers[2] > 0x1f || numbers[3] > 7) return false;
  *out = {numbers[0], numbers[1], numbers[2], numbers[3]};
  return true;
}

mep_result_t read_hca_topology(const std::string& xml_file, HcaTopology* out) {
  *out = HcaTopology();
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) {
    return fail(MEP_ERR_NO_MEMORY, "hwloc_topology_init failed");
  }
  const HcaTopologyPointer owner(raw);
  if (!xml_file.empty() && hwloc_topology_set_xml(raw, xml_file.c_str()) != 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "%s cannot be read as an XML export of hwloc: %s",
                xml_file.c_str(), std::generic_category().message(errno).c_str());
  }
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (hwloc_topology_load(raw) != 0) {
    const std::string reason = std::generic_category().message(errno);
    if (xml_file.empty()) {
      return fail(MEP_ERR_SYSTEM, "hwloc cannot read this host's topology: %s", reason.c_str());
    }
    return fail(MEP_ERR_INVALID_ARGUMENT, "%s cannot be loaded by hwloc: %s", xml_file.c_str(),
                reason.c_str());
  }
  out->is_this_host = hwloc_topology_is_thissystem(raw) != 0;
  out->cpus = cpu_words(hwloc_topology_get_topology_cpuset(raw));
  read_numa_nodes(raw, out);
  read_objects(raw, out);
  if (out->is_this_host) read_link_states(kHcaFolder, out);
  return MEP_SUCCESS;
}

void read_link_states(const std::string& folder, HcaTopology* topology) {
  std::error_code error;
  for (const auto& device : std::filesystem::directory_iterator(folder, error)) {
    std::vector<HcaPort> ports;
    std::error_code port_error;
    for (const auto& port :
         std::filesystem::directory_iterator(device.path() / "ports", port_error)) {
      const std::string path = port.path().string();
      const int number = std::atoi(port.path().filename().c_str());
      if (number < 1 || number > kMaxPorts) continue;
      ports.push_back({number, state_of(line_of(path + "/state")), rate_of(line_of(path + "/rate")),
                       line_of(path + "/link_layer")});
    }
    if (ports.empty()) continue;
    std::sort(ports.begin(), ports.end(),
              [](const HcaPort& a, const HcaPort& b) { return a.number < b.number; });
    const std::string name = device.path().filename().string();
    const auto found = std::find_if(topology->hcas.begin(), topology->hcas.end(),
                                    [&](const TopologyHca& hca) { return hca.name == name; });
    if (found != topology->hcas.end()) {
      found->ports = std::move(ports);
    } else {
      topology->hcas.push_back({name, DevicePlace(), std::move(ports)});
    }
  }
}

}  // namespace mep

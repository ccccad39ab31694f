// Ports are compared by (nearness, distance, link state, rate); ties are broken by the HCA's name, so
// that every rank of a host sees the same order before local ranks rotate it.
#include "core/topo/hca_choice.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <tuple>

#include "base/env.hpp"
#include "base/status.hpp"
#include "core/bootstrap/launcher_environment.hpp"
#include "core/topo/usable.hpp"

namespace mep {
namespace {

using Cpus = std::vector<uint64_t>;

bool intersects(const Cpus& a, const Cpus& b) {
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if ((a[i] & b[i]) != 0) return true;
  }
  return false;
}

bool contains(const Cpus& outer, const Cpus& inner) {
  for (size_t i = 0; i < inner.size(); ++i) {
    if ((inner[i] & ~(i < outer.size() ? outer[i] : 0)) != 0) return false;
  }
  return true;
}

const NumaNode* node_of(const HcaTopology& topology, uint32_t number) {
  for (const NumaNode& node : topology.numa_nodes) {
    if (node.number == number) return &node;
  }
  return nullptr;
}

std::vector<uint32_t> nodes_next_to(const HcaTopology& topology, const Cpus& cpus) {
  std::vector<uint32_t> nodes;
  for (const NumaNode& node : topology.numa_nodes) {
    if (intersects(node.cpus, cpus)) nodes.push_back(node.number);
  }
  return nodes;
}

// Attached to the machine as a whole although it has parts.
bool is_central(const HcaTopology& topology, const DevicePlace& place) {
  return topology.numa_nodes.size() > 1 && contains(place.cpus, topology.cpus);
}

struct Measure {
  Nearness nearness = Nearness::kUnknown;
  uint64_t distance = 0;
};

// `nodes` and `packages` are the location's; what is not nearer than its package is judged here.
Measure far_measure(const HcaTopology& topology, const DevicePlace& hca,
                    const std::vector<uint32_t>& nodes, const std::vector<int>& packages) {
  if (is_central(topology, hca)) return {Nearness::kMachine, 0};
  if (hca.package >= 0 &&
      std::find(packages.begin(), packages.end(), hca.package) != packages.end()) {
    return {Nearness::kPackage, 0};
  }
  uint64_t nearest = 0;
  for (const uint32_t from : nodes) {
    for (const uint32_t to : hca.numa_nodes) {
      const auto found = topology.numa_distance.find({from, to});
      if (found == topology.numa_distance.end()) continue;
      nearest = nearest == 0 ? found->second : std::min(nearest, found->second);
    }
  }
  return {Nearness::kFar, nearest};
}

std::vector<int> packages_of(const HcaTopology& topology, const std::vector<uint32_t>& nodes) {
  std::vector<int> packages;
  for (const uint32_t number : nodes) {
    const NumaNode* node = node_of(topology, number);
    if (node != nullptr && node->package >= 0) packages.push_back(node->package);
  }
  return packages;
}

Measure measure_from_cores(const HcaTopology& topology, const Cpus& cores, const DevicePlace& hca) {
  // Not bound: any HCA is as near as another.
  if (contains(cores, topology.cpus)) return {Nearness::kNode, 0};
  const std::vector<uint32_t> nodes = nodes_next_to(topology, cores);
  if (!is_central(topology, hca)) {
    if (contains(hca.cpus, cores)) return {Nearness::kNode, 0};
    if (intersects(hca.cpus, cores)) return {Nearness::kSomeCores, 0};
  }
  return far_measure(topology, hca, nodes, packages_of(topology, nodes));
}

bool has_node(const DevicePlace& place, uint32_t node) {
  return std::binary_search(place.numa_nodes.begin(), place.numa_nodes.end(), node);
}

Measure measure_from_memory(const HcaTopology& topology, uint32_t node, const DevicePlace& hca) {
  if (has_node(hca, node) && !is_central(topology, hca)) return {Nearness::kNode, 0};
  return far_measure(topology, hca, {node}, packages_of(topology, {node}));
}

Measure measure_from_device(const HcaTopology& topology, const DevicePlace& device,
                            const DevicePlace& hca) {
  if (!device.is_known) return {};
  const auto [end, hca_end] = std::mismatch(device.bridges.begin(), device.bridges.end(),
                                            hca.bridges.begin(), hca.bridges.end());
  const size_t common = static_cast<size_t>(end - device.bridges.begin());
  // The first bridge is the host's; one more in common is a switch or port.
  if (common > 1) {
    return {Nearness::kSwitch, device.bridges.size() + hca.bridges.size() - 2 * common};
  }
  if (common == 1) return {Nearness::kRootComplex, 0};
  if (is_central(topology, device)) return {Nearness::kMachine, 0};
  if (!is_central(topology, hca)) {
    for (const uint32_t node : device.numa_nodes) {
      if (has_node(hca, node)) return {Nearness::kNode, 0};
    }
  }
  return far_measure(topology, hca, device.numa_nodes, {device.package});
}

Measure measure(const HcaTopology& topology, const HcaLocation& location, const DevicePlace& hca) {
  if (!hca.is_known) return {};
  switch (location.kind) {
    case HcaLocation::Kind::kCores:
      return measure_from_cores(topology, location.cpus, hca);
    case HcaLocation::Kind::kMemory:
      return measure_from_memory(topology, location.numa_node, hca);
    default:
      return measure_from_device(topology, location.place, hca);
  }
}

// --- Words ----------------------------------------------------------------------------------------

std::string nearness_words(const HcaTopology& topology, const HcaLocation& location,
                           const RankedPort& ranked) {
  const bool is_cores = location.kind == HcaLocation::Kind::kCores;
  switch (ranked.nearness) {
    case Nearness::kSwitch:
      return ranked.distance == 0 ? "behind the same PCIe port"
                                  : "behind the same PCIe switch, " +
                                        std::to_string(ranked.distance) + " bridges between";
    case Nearness::kRootComplex:
      return "below the same PCIe host bridge";
    case Nearness::kNode:
      if (is_cores && contains(location.cpus, topology.cpus)) {
        return "equally near, these are all cores";
      }
      return is_cores ? "next to these cores" : "at the same NUMA node";
    case Nearness::kSomeCores:
      return "next to some of these cores";
    case Nearness::kPackage:
      return "at another NUMA node of the same package";
    case Nearness::kMachine:
      return "at the same distance to the whole machine";
    case Nearness::kFar:
      return "at another package" +
             (ranked.distance == 0 ? ""
                                   : " (NUMA distance " + std::to_string(ranked.distance) + ")");
    default:
      return "where it is attached is unknown";
  }
}

const char* state_words(LinkState state) {
  switch (state) {
    case LinkState::kDown:
      return "link down";
    case LinkState::kInitializing:
      return "link initializing";
    case LinkState::kArmed:
      return "link armed, not active";
    case LinkState::kActive:
      return "link active";
    default:
      return "link state unknown";
  }
}

std::string rate_words(double rate_gbit) {
  if (rate_gbit <= 0) return "rate unknown";
  char text[32];
  (void)std::snprintf(text, sizeof text, "%g Gb/s", rate_gbit);
  return text;
}

std::string link_words(const HcaPort& port) {
  std::string words = std::string(state_words(port.state)) + ", " + rate_words(port.rate_gbit);
  if (!port.link_layer.empty()) words += " " + port.link_layer;
  return words;
}

// --- Order ----------------------------------------------------------------------------------------

auto merit(const RankedPort& ranked) {
  return std::make_tuple(ranked.nearness, ranked.distance,
                         ranked.port.state == LinkState::kActive ? 0 : 1, -ranked.port.rate_gbit);
}

// "mlx5_2" before "mlx5_10".
auto natural_key(const std::string& name) {
  const size_t stem = name.find_last_not_of("0123456789") + 1;
  unsigned long long number = 0;
  (void)std::from_chars(name.data() + stem, name.data() + name.size(), number);
  return std::make_tuple(name.substr(0, stem), number, name);
}

// Deals the ports that are as good as the best: first a port of each HCA, then the second ones, so that ranks fill
// all HCAs before they share one.
size_t deal_equals(std::vector<RankedPort>* ports, size_t usable, uint32_t local_rank) {
  size_t equals = 1;
  while (equals < usable && merit((*ports)[equals]) == merit((*ports)[0])) ++equals;
  const auto begin = ports->begin();
  const auto end = begin + static_cast<std::ptrdiff_t>(equals);
  std::vector<std::pair<size_t, RankedPort>> dealt;
  for (auto it = begin; it != end; ++it) {
    const auto earlier =
        std::count_if(begin, it, [&](const RankedPort& other) { return other.hca == it->hca; });
    dealt.emplace_back(static_cast<size_t>(earlier), *it);
  }
  std::stable_sort(dealt.begin(), dealt.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::transform(dealt.begin(), dealt.end(), begin, [](auto& entry) { return entry.second; });
  std::rotate(begin, begin + static_cast<std::ptrdiff_t>(local_rank % equals), end);
  return equals;
}

std::string outcome_of(const RankedPort& ranked, const RankedPort& best) {
  if (ranked.nearness != best.nearness || ranked.distance != best.distance) return "farther";
  if (ranked.port.state != best.port.state) return "its link may not be up";
  return "slower: " + rate_words(ranked.port.rate_gbit) + ", not " +
         rate_words(best.port.rate_gbit);
}

void judge(HcaChoice* choice, uint32_t local_rank) {
  choice->ports[0].outcome = "chosen";
  for (size_t i = 1; i < choice->usable; ++i) {
    RankedPort& ranked = choice->ports[i];
    if (i >= choice->equals) {
      ranked.outcome = outcome_of(ranked, choice->ports[0]);
      continue;
    }
    const size_t taker = (local_rank + i) % choice->equals;
    ranked.outcome = "equally good; for local rank " + std::to_string(taker);
  }
}

std::string summary_of(const HcaChoice& choice, const HcaLocation& location, uint32_t local_rank) {
  if (choice.ports.empty()) return "this machine has no HCA";
  if (choice.usable == 0) {
    std::string text = "no HCA can be used:";
    for (const RankedPort& ranked : choice.ports) {
      text += " " + ranked.name() + ": " + ranked.outcome + ";";
    }
    text.pop_back();
    return text;
  }
  const RankedPort& best = choice.ports[0];
  std::string text = best.name() + " for " + location.words + ": " + best.properties;
  if (choice.equals > 1) {
    text += "; one of " + std::to_string(choice.equals) +
            " that are equally good, dealt to local rank " + std::to_string(local_rank);
  } else if (choice.usable > 1) {
    text += "; the others that could be used are farther or slower";
  } else {
    text += "; the only one that can be used";
  }
  return text;
}

}  // namespace

mep_result_t find_location(const HcaTopology& topology, const std::string& text,
                           const std::vector<uint64_t>& bound_to, HcaLocation* out) {
  *out = HcaLocation();
  if (text == "cpu") {
    out->cpus = bound_to;
    out->words = "the cores " + cpu_list_text(bound_to);
    return MEP_SUCCESS;
  }
  PciAddress address;
  const bool is_gpu = text.rfind("gpu:", 0) == 0;
  if (is_gpu || text.rfind("numa:", 0) == 0) {
    const char* begin = text.data() + (is_gpu ? 4 : 5);
    const char* end = text.data() + text.size();
    uint32_t number = 0;
    const auto [stop, error] = std::from_chars(begin, end, number, 10);
    if (error == std::errc() && stop == end && !is_gpu) {
      out->kind = HcaLocation::Kind::kMemory;
      out->numa_node = number;
      out->words = "the memory of NUMA node " + std::to_string(number);
      if (node_of(topology, number) != nullptr) return MEP_SUCCESS;
      return fail(MEP_ERR_NOT_FOUND, "there is no NUMA node %u among the %zu of this machine",
                  number, topology.numa_nodes.size());
    }
    if (error == std::errc() && stop == end) {
      if (number >= topology.gpus.size()) {
        return fail(MEP_ERR_NOT_FOUND, "there is no gpu:%u: %zu GPUs are known here", number,
                    topology.gpus.size());
      }
      const Gpu& gpu = topology.gpus[number];
      out->kind = HcaLocation::Kind::kDevice;
      out->place = gpu.place;
      out->words = text + " (" + gpu.name + (gpu.pci.empty() ? "" : " at PCI " + gpu.pci) + ")";
      return MEP_SUCCESS;
    }
  } else if (parse_pci_address(text, &address)) {
    out->kind = HcaLocation::Kind::kDevice;
    out->words = "PCI " + pci_text(address);
    for (const PciDevice& device : topology.pci_devices) {
      if (device.address != address) continue;
      out->place = device.place;
      return MEP_SUCCESS;
    }
    for (const PciBridge& bridge : topology.bridges) {
      if (bridge.domain != address.domain || address.bus < bridge.first_bus ||
          address.bus > bridge.last_bus) {
        continue;
      }
      // The innermost one that leads there.
      if (!out->place.is_known || bridge.place.bridges.size() > out->place.bridges.size()) {
        out->place = bridge.place;
      }
    }
    if (out->place.is_known) return MEP_SUCCESS;
    return fail(MEP_ERR_NOT_FOUND, "there is no PCI device %s on this machine",
                pci_text(address).c_str());
  }
  return fail(MEP_ERR_INVALID_ARGUMENT,
              "'%.64s' is no location; it is cpu, gpu:0, numa:0 or a PCI address like 0000:18:00.0",
              text.c_str());
}

HcaChoice choose_hca(const HcaTopology& topology, const HcaLocation& location,
                     const DeviceFilter& filter, uint32_t local_rank) {
  HcaChoice choice;
  for (const TopologyHca& hca : topology.hcas) {
    const Measure found = measure(topology, location, hca.place);
    for (const HcaPort& port : hca.ports) {
      RankedPort ranked{hca.name, port, found.nearness, found.distance, false, "", ""};
      ranked.properties = nearness_words(topology, location, ranked) + "; " + link_words(port);
      if (!filter.allows(hca.name, port.number)) {
        ranked.outcome = "excluded by MEP_HCA";
      } else if (port.state != LinkState::kActive && port.state != LinkState::kUnknown) {
        ranked.outcome = state_words(port.state);
      } else {
        ranked.is_usable = true;
        ++choice.usable;
      }
      choice.ports.push_back(std::move(ranked));
    }
  }
  std::sort(choice.ports.begin(), choice.ports.end(), [](const RankedPort& a, const RankedPort& b) {
    return std::make_tuple(!a.is_usable, merit(a), natural_key(a.hca), a.port.number) <
           std::make_tuple(!b.is_usable, merit(b), natural_key(b.hca), b.port.number);
  });
  if (choice.usable > 0) {
    choice.equals = deal_equals(&choice.ports, choice.usable, local_rank);
    judge(&choice, local_rank);
  }
  choice.summary = summary_of(choice, location, local_rank);
  return choice;
}

mep_result_t choose_preferred_hca(const HcaQuestion& question, HcaChoice* choice) {
  bool is_set = false;
  std::string list;
  MEP_TRY(env_string("MEP_HCA", &list, &is_set));
  DeviceFilter filter;
  MEP_TRY(DeviceFilter::parse(list, "MEP_HCA", &filter));
  uint64_t local_rank = static_cast<uint64_t>(question.fallback_rank);
  MEP_TRY(find_local_rank(&local_rank));

  HcaTopology topology;
  MEP_TRY(read_hca_topology(question.xml_file, &topology));
  std::vector<uint64_t> bound_to = topology.cpus;
  if (topology.is_this_host) MEP_TRY(affinity_mask(&bound_to));
  HcaLocation location;
  MEP_TRY(find_location(topology, question.location, bound_to, &location));
  *choice = choose_hca(topology, location, filter, static_cast<uint32_t>(local_rank));
  return MEP_SUCCESS;
}

}  // namespace mep

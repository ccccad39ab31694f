// Which HCA port to use from where: a pure function of values, so that it can be tried on any
// machine's topology. Nearest first; then the link (active before unknown, faster before slower);
// those that are equal in all of it are dealt out by local rank. Ports whose link is not up, and
// those that the user excludes, are never chosen.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/device_filter.hpp"
#include "core/topo/hca_topology.hpp"
#include "mep.h"

namespace mep {

// The place that the HCA shall be near to.
struct HcaLocation {
  enum class Kind { kCores, kMemory, kDevice };
  Kind kind = Kind::kCores;
  std::string words;           // "gpu:0 (cuda0 at PCI 0000:84:00.0)"
  std::vector<uint64_t> cpus;  // kCores
  uint32_t numa_node = 0;      // kMemory
  DevicePlace place;           // kDevice
};

// "cpu" (the cores `bound_to`), "numa:1", "gpu:0" or a PCI address. Malformed:
// MEP_ERR_INVALID_ARGUMENT; no such thing in the topology: MEP_ERR_NOT_FOUND.
[[nodiscard]] mep_result_t find_location(const HcaTopology& topology, const std::string& text,
                                         const std::vector<uint64_t>& bound_to, HcaLocation* out);

// The nearer one first.
enum class Nearness {
  kSwitch,       // behind a PCIe switch (or port) that the location is behind, too
  kRootComplex,  // below the same host bridge
  kNode,         // at the NUMA node of the location
  kSomeCores,    // next to some of the cores
  kPackage,      // at another NUMA node of the same package
  kMachine,      // attached to no package in particular
  kFar,          // at another package
  kUnknown,      // nobody knows where it is attached
};

struct RankedPort {
  std::string hca;
  HcaPort port;
  Nearness nearness = Nearness::kUnknown;
  uint64_t distance = 0;  // within that: bridges between, or the NUMA distance; 0: not known
  bool is_usable = false;
  std::string properties;  // "behind the same PCIe switch; link active, 200 Gb/s InfiniBand"
  std::string outcome;     // "chosen", "farther", "its link is down", ...
  std::string name() const { return hca + ":" + std::to_string(port.number); }
};

struct HcaChoice {
  std::vector<RankedPort> ports;  // the usable ones first, the best one first
  size_t usable = 0;
  size_t equals = 0;    // at the beginning: as good as the chosen one, itself counted
  std::string summary;  // a sentence: what was chosen and why, or why nothing was
};

[[nodiscard]] HcaChoice choose_hca(const HcaTopology& topology, const HcaLocation& location,
                                   const DeviceFilter& filter, uint32_t local_rank);

// --- For this process: topology, MEP_HCA, core binding and local rank put together ---

struct HcaQuestion {
  std::string location = "cpu";
  std::string xml_file;       // another machine's topology; empty: this host's
  int32_t fallback_rank = 0;  // the local rank if neither MEP_LOCAL_RANK nor a launcher says one
};

// In another machine's topology "cpu" means all its cores: this process is not bound there.
// Errors: those of find_location and read_hca_topology, and of MEP_HCA and MEP_LOCAL_RANK. That
// nothing can be used is no error: choice->usable is 0 then.
[[nodiscard]] mep_result_t choose_preferred_hca(const HcaQuestion& question, HcaChoice* choice);

}  // namespace mep

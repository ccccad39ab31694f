// This host as hwloc knows it, as plain values. Reading it takes milliseconds: for start-up and mep_info, not for
// inner loops.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mep.h"

namespace mep {

struct CacheKind {
  std::string name;  // "L1d", "L2", "L3"
  uint64_t bytes = 0;
  int count = 0;  // caches of that kind and size
};

// A device that the operating system has a name for.
struct HostDevice {
  std::string kind;    // "GPU", "RDMA", "network", "coprocessor"
  std::string name;    // "mlx5_0", "eth0", "cuda0"
  std::string model;   // may be empty
  int numa_node = -1;  // the one next to it; -1: all are equally near, or unknown
};

struct HostTopology {
  int packages = 0;
  int cores = 0;
  int hardware_threads = 0;
  int numa_nodes = 0;
  uint64_t memory_bytes = 0;
  std::string cpu_model;  // may be empty
  std::vector<CacheKind> caches;
  std::vector<HostDevice> devices;
};

[[nodiscard]] mep_result_t read_host_topology(HostTopology* topology);

}  // namespace mep

// One hwloc topology is loaded, read and destroyed. hwloc's own variables apply: HWLOC_XMLFILE
// shows another machine than this one.
#include "core/topo/host_topology.hpp"

#include <hwloc.h>

#include <cerrno>
#include <memory>
#include <system_error>

#include "base/status.hpp"
#include "base/system_error.hpp"

namespace mep {
namespace {

struct DestroyTopology {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using TopologyPointer = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, DestroyTopology>;

int count_of(hwloc_topology_t topology, hwloc_obj_type_t type) {
  const int count = hwloc_get_nbobjs_by_type(topology, type);
  return count < 0 ? 0 : count;  // negative: in more than one depth
}

std::string info_of(hwloc_obj_t object, const char* name) {
  const char* text = object == nullptr ? nullptr : hwloc_obj_get_info_by_name(object, name);
  return text == nullptr ? "" : text;
}

void read_caches(hwloc_topology_t topology, std::vector<CacheKind>* caches) {
  constexpr hwloc_obj_type_t kTypes[] = {HWLOC_OBJ_L1CACHE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L3CACHE,
                                         HWLOC_OBJ_L4CACHE};
  for (const hwloc_obj_type_t type : kTypes) {
    hwloc_obj_t cache = nullptr;
    while ((cache = hwloc_get_next_obj_by_type(topology, type, cache)) != nullptr) {
      const std::string name =
          type == HWLOC_OBJ_L1CACHE ? "L1d" : "L" + std::to_string(cache->attr->cache.depth);
      const uint64_t bytes = cache->attr->cache.size;
      if (caches->empty() || caches->back().name != name || caches->back().bytes != bytes) {
        caches->push_back({name, bytes, 0});
      }
      ++caches->back().count;
    }
  }
}

// The NUMA node next to a device, if it is next to one and not to all.
int nearest_numa_node(hwloc_topology_t topology, hwloc_obj_t device) {
  const hwloc_obj_t place = hwloc_get_non_io_ancestor_obj(topology, device);
  if (place == nullptr || place->nodeset == nullptr) return -1;
  if (hwloc_bitmap_weight(place->nodeset) != 1) return -1;
  return hwloc_bitmap_first(place->nodeset);
}

const char* device_kind(hwloc_obj_osdev_type_t type) {
  switch (type) {
    case HWLOC_OBJ_OSDEV_GPU:
      return "GPU";
    case HWLOC_OBJ_OSDEV_COPROC:
      return "coprocessor";
    case HWLOC_OBJ_OSDEV_NETWORK:
      return "network";
    case HWLOC_OBJ_OSDEV_OPENFABRICS:
      return "RDMA";
    default:
      return nullptr;  // disks and DMA engines carry no bytes of MEP
  }
}

void read_devices(hwloc_topology_t topology, std::vector<HostDevice>* devices) {
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_osdev(topology, object)) != nullptr) {
    const char* kind = device_kind(object->attr->osdev.type);
    if (kind == nullptr) continue;
    HostDevice device;
    device.kind = kind;
    device.name = object->name == nullptr ? "?" : object->name;
    // The model stands on the device or on the PCI function that it belongs to.
    for (const char* key : {"GPUModel", "CoProcModel", "PCIDevice"}) {
      if (device.model.empty()) device.model = info_of(object, key);
      if (device.model.empty()) device.model = info_of(object->parent, key);
    }
    device.numa_node = nearest_numa_node(topology, object);
    devices->push_back(std::move(device));
  }
}

}  // namespace

mep_result_t read_host_topology(HostTopology* topology) {
  *topology = HostTopology();
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) {
    return fail(MEP_ERR_NO_MEMORY, "hwloc_topology_init failed");
  }
  const TopologyPointer owner(raw);
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (hwloc_topology_load(raw) != 0) {
    return fail(result_of_errno(errno), "hwloc cannot read this host's topology: %s",
                std::generic_category().message(errno).c_str());
  }
  topology->packages = count_of(raw, HWLOC_OBJ_PACKAGE);
  topology->cores = count_of(raw, HWLOC_OBJ_CORE);
  topology->hardware_threads = count_of(raw, HWLOC_OBJ_PU);
  topology->numa_nodes = count_of(raw, HWLOC_OBJ_NUMANODE);
  topology->memory_bytes = hwloc_get_root_obj(raw)->total_memory;
  topology->cpu_model =
      info_of(hwloc_get_next_obj_by_type(raw, HWLOC_OBJ_PACKAGE, nullptr), "CPUModel");
  read_caches(raw, &topology->caches);
  read_devices(raw, &topology->devices);
  return MEP_SUCCESS;
}

}  // namespace mep

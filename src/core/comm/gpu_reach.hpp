// How the GPUs of a comm's ranks reach each other, as a whole. With queues some may map each other besides: see
// GpuBackend::mapped_ranks().
#pragma once

#include <cstdint>

namespace mep {

// From the fastest on.
enum class GpuReach : uint8_t {
  kDeviceWindows,  // kernels write to windows in the memory of the peers' GPUs
  kHostWindows,    // ... in pinned memory of the host that all ranks share
  kQueues,  // dispatch and combine post to queues where they do not map a peer; collectives run on a comm of the host
};

// MEP_GPU_QUEUES: what executes the queues.
enum class GpuQueues : uint8_t {
  kHost,      // a software NIC
  kAdapter,   // an adapter of each rank
  kAuto,      // adapters where they pass a test on all ranks, else software NICs
  kAssisted,  // as kAdapter, and threads of the host ring the adapters
};

}  // namespace mep

// EP objects of a comm with a GPU, without CUDA: limits and sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/comm/comm.hpp"
#include "core/comm/gpu_backend.hpp"
#include "core/ep/ep_config.hpp"
#include "mep.h"

namespace mep {

// Fields of the config that are for GPUs alone.
struct EpDeviceOptions {
  bool column_major = false;  // scales
  uint32_t num_sms = 0;       // blocks of a kernel at most; 0: chosen
};

// Refuses what the kernels cannot do.
[[nodiscard]] mep_result_t check_ep_device(const Comm& comm, const EpShape& shape);
// The memory that GpuBuffers would take.
void estimate_ep_device_size(const EpShape& shape, const EpDeviceOptions& options,
                             const GpuBackend& gpu, mep_ep_size_t* out);

}  // namespace mep

// An EP object's shape as the kernels see it, and what they can do.
#pragma once

#include "core/comm/comm.hpp"
#include "core/comm/gpu_backend.hpp"
#include "core/ep/ep_config.hpp"
#include "kernels/cuda/ep/kernels.hpp"
#include "mep.h"

namespace mep {

device::EpGeometry ep_geometry(const EpShape& shape, const EpDeviceOptions& options,
                               GpuReach reach);
// Refuses what the kernels cannot do.
[[nodiscard]] mep_result_t check_ep_shape(const EpShape& shape);
// The memory that GpuBuffers would take.
[[nodiscard]] mep_result_t estimate_gpu_buffers(const GpuBackend& gpu, const EpShape& shape,
                                                const EpDeviceOptions& options, mep_ep_size_t* out);

// Whether the host has so much memory for each of its ranks. Pinned memory is taken at once: a control group that has less
// would kill a rank.
[[nodiscard]] mep_result_t check_pinned_bytes(uint64_t bytes, uint32_t ranks_on_host);

}  // namespace mep

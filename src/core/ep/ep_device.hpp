// EP objects of a comm with a GPU. No CUDA here; builds without it have the same interface and answer
// MEP_ERR_UNSUPPORTED.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/comm/comm.hpp"
#include "core/comm/gpu_backend.hpp"
#include "core/ep/ep_config.hpp"
#include "core/ep/ep_side.hpp"
#include "mep.h"

namespace mep {

// Fields of the config that are for GPUs alone.
struct EpDeviceOptions {
  bool column_major = false;  // scales
  uint32_t num_sms = 0;       // blocks of a kernel at most; 0: chosen
};

// Not open yet.
[[nodiscard]] mep_result_t make_ep_device(Comm& comm, GpuBackend& side, const EpShape& shape,
                                          const EpDeviceOptions& options,
                                          std::unique_ptr<EpSide>* out);

// Refuses what the kernels cannot do.
[[nodiscard]] mep_result_t check_ep_device(const Comm& comm, const EpShape& shape);
// The memory that make_ep_device would take.
void estimate_ep_device_size(const EpShape& shape, const EpDeviceOptions& options, GpuReach reach,
                             mep_ep_size_t* out);

}  // namespace mep

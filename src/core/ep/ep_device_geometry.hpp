// An EP object's shape as the kernels see it.
#pragma once

#include "core/ep/ep_device.hpp"
#include "kernels/cuda/ep/kernels.hpp"

namespace mep {

device::EpGeometry ep_device_geometry(const EpShape& shape, const EpDeviceOptions& options,
                                      GpuReach reach);

}  // namespace mep

// A collective on device memory.
#pragma once

#include <memory>

#include "collectives.hpp"
#include "device/context.hpp"

namespace mep::perf {

// The call's buffers are where inputs are made and results compared, on the host.
std::unique_ptr<Case> make_device_collective(DeviceContext& context, const CollectiveCall& call);

}  // namespace mep::perf

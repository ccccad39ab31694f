// A collective on device memory.
#pragma once

#include <functional>
#include <memory>

#include "collectives.hpp"
#include "device/context.hpp"

namespace mep::perf {

// Enqueues the call, whose buffers are on the GPU, on the context's stream.
using Enqueue = std::function<void(const CollectiveCall& call)>;

// The call's buffers are where inputs are made and results compared, on the host.
std::unique_ptr<Case> make_device_collective(DeviceContext& context, const CollectiveCall& call,
                                             Enqueue enqueue);

}  // namespace mep::perf

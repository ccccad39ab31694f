// A MoE layer's communication on device memory.
#pragma once

#include <memory>

#include "device/context.hpp"
#include "moe_side.hpp"

namespace mep::perf {

// Collective. The problem, on the host, is where inputs are made and results compared.
std::unique_ptr<Case> make_device_moe(DeviceContext& context, MoeOperation operation,
                                      MoeProblem& problem, const Options& options);

}  // namespace mep::perf

// mep_dispatch_layout.
#pragma once

#include "core/comm/backend.hpp"
#include "kernels/cuda/ep/dispatch_layout.hpp"
#include "mep.h"

namespace mep {

// layout.ranks: those of the communicator.
[[nodiscard]] mep_result_t count_layout(Backend& backend, const device::DispatchLayout& layout,
                                        void* stream);

}  // namespace mep

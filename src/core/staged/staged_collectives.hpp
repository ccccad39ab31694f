// What a staged collective is on the host: an operation of a comm, on memory that kernels have filled.
#pragma once

#include "core/comm/comm.hpp"
#include "kernels/cuda/coll/stage_mailbox.hpp"

namespace mep {

[[nodiscard]] mep_result_t serve_staged_collective(Comm& comm, const device::StageRequest& request,
                                                   device::StageAnswer* answer);

}  // namespace mep

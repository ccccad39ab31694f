// What a staged collective is on the host: an operation of a comm, on memory that kernels have filled.
#pragma once

#include <functional>

#include "core/comm/comm.hpp"
#include "kernels/cuda/coll/stage_mailbox.hpp"

namespace mep {

// tell: a rank was lost before anybody had called the operation and has been replaced since, so that the operation goes
// on. The text is the last error.
[[nodiscard]] mep_result_t serve_staged_collective(Comm& comm, const device::StageRequest& request,
                                                   device::StageAnswer* answer,
                                                   const std::function<void(mep_result_t)>& tell);

}  // namespace mep

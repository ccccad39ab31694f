// What a staged collective is on the host: an operation of a comm, on memory that kernels have filled.
#pragma once

#include <functional>

#include "core/comm/comm.hpp"
#include "kernels/cuda/coll/stage_mailbox.hpp"

namespace mep {

// A rank was lost before anybody had called the operation and has been replaced since, so that the operation goes on. Or a
// message has failed. The text is the last error.
using TellStaged = std::function<void(mep_result_t)>;

// An operation of the comm; after a failure the answer's status says how it ended. begins: nothing of the caller's
// operation ran before.
[[nodiscard]] mep_result_t run_staged(Comm& comm, Collective kind, const CollectiveArgs& args,
                                      bool begins, const TellStaged& tell,
                                      device::StageAnswer* answer);
// After success.
void tell_last_status(const Comm& comm, device::StageAnswer* answer);

[[nodiscard]] mep_result_t serve_staged_collective(Comm& comm, const device::StageRequest& request,
                                                   device::StageAnswer* answer,
                                                   const TellStaged& tell);

}  // namespace mep

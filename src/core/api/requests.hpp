// Beginning a nonblocking operation.
#pragma once

#include "core/api/api_guard.hpp"

namespace mep {

[[nodiscard]] mep_result_t start_request(mep_comm_t comm, Collective kind,
                                         const CollectiveArgs& args, mep_request_t* request);

}  // namespace mep

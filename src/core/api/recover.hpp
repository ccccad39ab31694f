// Automatic recovery: a barrier on the world that admits whoever is ready.
#pragma once

#include "core/comm/comm.hpp"

namespace mep {

// A barrier; then, if every live rank has a newcomer whose links are tested, their admission.
[[nodiscard]] mep_result_t barrier_with_admission(Comm& world_comm);

}  // namespace mep

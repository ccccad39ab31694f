#pragma once

#include <cstdint>

namespace mep::sim {

// One view change in worlds of up to `most_ranks` ranks: messages, bytes and rounds against the
// rank count. Returns an exit status.
int run_soak(uint32_t most_ranks);

}  // namespace mep::sim

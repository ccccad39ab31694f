// The reference of --check for dispatch and combine: plain loops over the shape, the routing of all
// ranks computed anew. It shares no code with the library nor with the fast loops in
// moe_kernels.cpp.
#pragma once

#include <cstdint>

#include "moe_side.hpp"

namespace mep::perf {

// Counts, order and content of what the last dispatch brought to this rank: wrong counts and wrong
// rows' values. The rows are those of `round`, sent by the routing of `routed`; others than its own has a replay alone.
uint64_t count_received_errors(const MoeProblem& problem, const MoeSide& side, uint32_t round,
                               uint32_t routed);

// Values of out that differ in a bit from the reference.
uint64_t count_output_errors(const MoeProblem& problem);

}  // namespace mep::perf

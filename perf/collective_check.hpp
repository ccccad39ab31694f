// The reference of --check for collectives. Inputs are a function of (rank, index, round), so every
// rank can compute every other rank's input by itself.
#pragma once

#include <cstdint>

#include "collectives.hpp"

namespace mep::perf {

// Writes this rank's input of the round, and bytes into the receive buffer that no result has.
void fill_collective(const CollectiveCall& call, uint32_t round);

// How many elements of the receive buffer differ, bit by bit, from what they should be.
uint64_t count_collective_errors(const CollectiveCall& call, uint32_t round);

}  // namespace mep::perf

// mep_perf recovery: how long the death of a rank holds up the others, and how long its replacement takes to be in.
#pragma once

#include "mep.h"
#include "options.hpp"

namespace mep::perf {

// Called while the process has one thread. Each process that mep_run started runs its rank as a child, which it kills
// and replaces. The exit status of the tool; throws PerfError.
int run_recovery(const Options& options, const mep_comm_config_t& config);

}  // namespace mep::perf

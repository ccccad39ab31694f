// One rank's work once it has its communicator: every size of the operation, checked and timed.
#pragma once

#include "device_side.hpp"
#include "machine.hpp"
#include "mep.h"
#include "options.hpp"
#include "team.hpp"

namespace mep::perf {

struct RankContext {
  const Options* options = nullptr;
  Team* team = nullptr;
  mep_comm_t comm = nullptr;     // null when only MPI runs
  DeviceRank* device = nullptr;  // null on hosts
  DeviceFloors floors;           // of the device, on rank 0
};

// Collective. True: --check found nothing wrong on any rank. Throws PerfError.
bool run_session(const RankContext& context);

}  // namespace mep::perf

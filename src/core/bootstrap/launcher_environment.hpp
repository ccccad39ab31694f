// The launcher's statement about this process in the environment. These variables are other programs' and so not in
// the table of base/env.cpp.
#pragma once

#include <cstdint>
#include <string>

#include "mep.h"

namespace mep {

struct LauncherPlace {
  bool found = false;
  int32_t rank = 0;
  int32_t size = 0;
  std::string job;  // empty: the launcher does not name its jobs
  std::string
      rendezvous;  // empty: all ranks are on this host, or the launcher names no place to meet
  std::string no_rendezvous;  // why it names none though ranks are on other hosts; else empty
  const char* launcher;       // for texts
};

// torchrun, Open MPI, PMIx, PMI (MPICH and its kin) and Slurm, in this order: the later ones' variables are
// also seen by processes that an earlier one started within their allocation. Last, torch's variables that a
// program set by hand. A launcher whose variables are incomplete or malformed is an error that names them.
[[nodiscard]] mep_result_t read_launcher_environment(LauncherPlace* out);

// The index among the ranks of this host, if MEP_LOCAL_RANK or a launcher says it; else *rank stays as
// it was.
[[nodiscard]] mep_result_t find_local_rank(uint64_t* rank);

}  // namespace mep

// The HCA choice for this process: topology, MEP_HCA, core binding and local rank put together.
#pragma once

#include <cstdint>
#include <string>

#include "core/topo/hca_choice.hpp"
#include "mep.h"

namespace mep {

struct HcaQuestion {
  std::string location = "cpu";
  std::string xml_file;       // another machine's topology; empty: this host's
  int32_t fallback_rank = 0;  // the local rank if neither MEP_LOCAL_RANK nor a launcher says one
};

// In another machine's topology "cpu" means all its cores: this process is not bound there.
// Errors: those of find_location and read_hca_topology, and of MEP_HCA and MEP_LOCAL_RANK. That
// nothing can be used is no error: choice->usable is 0 then.
[[nodiscard]] mep_result_t choose_preferred_hca(const HcaQuestion& question, HcaChoice* choice);

}  // namespace mep

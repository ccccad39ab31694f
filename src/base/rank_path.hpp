// The paths of files that each rank has one of: MEP_METRICS_FILE, MEP_FLIGHT_RECORDER.
#pragma once

#include <cstdint>
#include <string>

#include "mep.h"

namespace mep {

// The value `pattern` of that variable for that rank: %r is the rank, %p this process, %% a percent sign. `is_alone`: the
// world has one rank for good; else %r must be there. Empty for an empty pattern.
[[nodiscard]] mep_result_t rank_path(const char* variable, const std::string& pattern,
                                     uint32_t rank, bool is_alone, std::string* path);

}  // namespace mep

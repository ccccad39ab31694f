// The paths of files that each rank may have one of: MEP_METRICS_FILE, MEP_FLIGHT_RECORDER, MEP_LOG_FILE.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "mep.h"

namespace mep {

// The value `pattern` of that variable for that rank: %r is the rank, which must be known then, %p this process, %% a
// percent sign. `may_share`: one file will do, as for a world that has one rank for good; else %r must be there. Empty
// for an empty pattern.
[[nodiscard]] mep_result_t rank_path(const char* variable, const std::string& pattern,
                                     std::optional<uint32_t> rank, bool may_share,
                                     std::string* path);

}  // namespace mep

// The path that MEP_METRICS_FILE means.
#pragma once

#include <cstdint>
#include <string>

#include "mep.h"

namespace mep {

// The value of MEP_METRICS_FILE for that rank: %r is the rank, %p this process, %% a percent sign. `is_alone`: the
// world has one rank for good; else %r must be there. Empty for an empty pattern.
[[nodiscard]] mep_result_t metrics_path(const std::string& pattern, uint32_t rank, bool is_alone,
                                        std::string* path);

}  // namespace mep

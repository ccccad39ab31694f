// The rows as one JSON array of objects. Fields that do not apply are absent (mpi_us_p50 or nccl_us_p50, and
// ratio, without --vs, floor_us without a GPU) or null (errors without --check).
#pragma once

#include <string>
#include <vector>

#include "row.hpp"

namespace mep::perf {

std::string rows_to_json(const std::vector<Row>& rows);

// Throws when the file cannot be written. Called once at the start with no rows, so that a wrong
// path is noticed before an hour of measuring.
void write_json(const std::string& path, const std::vector<Row>& rows);

}  // namespace mep::perf

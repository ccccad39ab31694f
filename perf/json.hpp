// The rows as one JSON array of objects. Fields that do not apply are absent (mpi_us_p50 or nccl_us_p50, and
// ratio, without --vs, floor_us without a GPU) or null (errors without --check).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "row.hpp"

namespace mep::perf {

class JsonObject {
 public:
  void text(const char* name, const std::string& value);
  void null(const char* name) { field(name, "null"); }
  void whole(const char* name, uint64_t value) { field(name, std::to_string(value)); }
  void number(const char* name, double value);
  // The object; nothing is added afterwards.
  std::string end() const { return (text_.empty() ? "{" : text_) + "}"; }

 private:
  void field(const char* name, const std::string& value);

  std::string text_;
};

// Throws when the file cannot be written. Called once at the start with no rows, so that a wrong
// path is noticed before an hour of measuring.
void write_json_objects(const std::string& path, const std::vector<std::string>& objects);
void write_json(const std::string& path, const std::vector<Row>& rows);

}  // namespace mep::perf

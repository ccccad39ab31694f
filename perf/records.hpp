// The rows as one JSON array of objects, and as CSV with one line of column names. In JSON a field that does not
// apply is absent (mpi_us_p50 or nccl_us_p50, and ratio, without --vs, floor_us without a GPU) or null (errors
// without --check); in CSV it is empty.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "options.hpp"
#include "row.hpp"

namespace mep::perf {

struct Field {
  std::string name;
  std::string json;
  std::string csv;
};

class Record {
 public:
  void text(const std::string& name, const std::string& value);
  void texts(const std::string& name, const std::vector<std::string>& values);
  void null(const std::string& name) { fields_.push_back({name, "null", ""}); }
  void whole(const std::string& name, uint64_t value);
  void number(const std::string& name, double value);
  const std::vector<Field>& fields() const { return fields_; }

 private:
  std::vector<Field> fields_;
};

// A JSON string, with its quotes.
std::string json_text(const std::string& value);
// The name of this host; "unknown" where the system has none.
std::string host_name();

// Where rows were measured.
struct Origin {
  std::string version;             // of the library
  std::vector<std::string> hosts;  // of the ranks, each once, in order of their first rank
};

void add_origin(Record* record, const Origin& origin);

// Writes the files of --json and --csv, if any. Throws when one cannot be written. Called once at the
// start with no rows, so that a wrong path is noticed before an hour of measuring.
void write_records(const Options& options, const std::vector<Record>& records);
void write_rows(const Options& options, const Origin& origin, const std::vector<Row>& rows);

}  // namespace mep::perf

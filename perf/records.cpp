#include "records.hpp"

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <string_view>

#include "error.hpp"

namespace mep::perf {
namespace {

void add_layer(Record* line, const Layer& layer) {
  line->text("mode", layer.mode);
  line->text("routing", layer.routing);
  layer.preset.empty() ? line->null("preset") : line->text("preset", layer.preset);
  line->whole("tokens", layer.tokens);
  line->whole("hidden", layer.hidden);
  line->whole("experts", layer.experts);
  line->whole("topk", layer.top_k);
  layer.imbalance ? line->number("imbalance", *layer.imbalance) : line->null("imbalance");
}

void add_switches(Record* line, const std::string& side, const Statistics& statistics) {
  if (!statistics.switches) return;
  line->number(side + "_switches_voluntary", statistics.switches->voluntary);
  line->number(side + "_switches_involuntary", statistics.switches->involuntary);
}

Record row_record(const Row& row, const Origin& origin) {
  Record line;
  line.text("op", row.operation);
  line.whole("ranks", static_cast<uint64_t>(row.ranks));
  line.whole("bytes", row.bytes);
  line.text("dtype", row.dtype);
  if (row.layer) add_layer(&line, *row.layer);
  if (row.mep) {
    line.number("mep_us_p50", row.mep->p50_us);
    line.number("mep_us_p99", row.mep->p99_us);
    add_switches(&line, "mep", *row.mep);
  }
  if (row.peer) {
    const std::string side = std::string_view(row.peer_name) == "MPI" ? "mpi" : "nccl";
    line.number(side + "_us_p50", row.peer->p50_us);
    add_switches(&line, side, *row.peer);
  }
  if (const auto ratio = row.ratio()) line.number("ratio", *ratio);
  line.number("algbw_gbps", row.algbw_gbps());
  line.number("busbw_gbps", row.busbw_gbps());
  if (row.floor_us > 0) line.number("floor_us", row.floor_us);
  const auto errors = row.mep ? row.errors : row.peer_errors;
  errors ? line.whole("errors", *errors) : line.null("errors");
  add_origin(&line, origin);
  return line;
}

// RFC 4180.
std::string csv_text(const std::string& value) {
  if (value.find_first_of(",\"\r\n") == std::string::npos) return value;
  std::string quoted = "\"";
  for (const char letter : value)
    quoted += letter == '"' ? std::string("\"\"") : std::string(1, letter);
  return quoted + "\"";
}

std::string all_json(const std::vector<Record>& records) {
  std::string text = "[";
  for (size_t i = 0; i < records.size(); ++i) {
    text += i == 0 ? "\n  " : ",\n  ";
    const char* before = "{";
    for (const Field& field : records[i].fields()) {
      text += before + json_text(field.name) + ": " + field.json;
      before = ", ";
    }
    text += "}";
  }
  return text + "\n]\n";
}

// The columns are the fields of all rows, in the order in which they first occur.
std::string all_csv(const std::vector<Record>& records) {
  std::vector<std::string> columns;
  std::map<std::string, size_t> places;
  for (const Record& record : records) {
    for (const Field& field : record.fields()) {
      if (places.emplace(field.name, columns.size()).second) columns.push_back(field.name);
    }
  }
  std::string text;
  const auto add_line = [&text](const std::vector<std::string>& cells) {
    for (size_t i = 0; i < cells.size(); ++i) text += (i == 0 ? "" : ",") + csv_text(cells[i]);
    text += "\n";
  };
  if (!columns.empty()) add_line(columns);
  for (const Record& record : records) {
    std::vector<std::string> cells(columns.size());
    for (const Field& field : record.fields()) cells[places[field.name]] = field.csv;
    add_line(cells);
  }
  return text;
}

void write_file(const char* option, const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::trunc);
  file << text;
  file.close();
  if (!file) throw PerfError(std::string(option) + ": " + path + " cannot be written");
}

}  // namespace

std::string json_text(const std::string& value) {
  std::string quoted = "\"";
  for (const char letter : value) {
    if (letter == '"' || letter == '\\' || static_cast<unsigned char>(letter) < 0x20) {
      char code[8];
      (void)std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(letter));
      quoted += code;
    } else {
      quoted += letter;
    }
  }
  return quoted + "\"";
}

void Record::text(const std::string& name, const std::string& value) {
  fields_.push_back({name, json_text(value), value});
}

void Record::texts(const std::string& name, const std::vector<std::string>& values) {
  Field field{name, "[", ""};
  for (const std::string& value : values) {
    field.json += (field.csv.empty() ? "" : ", ") + json_text(value);
    field.csv += (field.csv.empty() ? "" : " ") + value;
  }
  field.json += "]";
  fields_.push_back(std::move(field));
}

void Record::whole(const std::string& name, uint64_t value) {
  fields_.push_back({name, std::to_string(value), std::to_string(value)});
}

void Record::number(const std::string& name, double value) {
  char text[40];
  (void)std::snprintf(text, sizeof text, "%.6g", value);
  fields_.push_back({name, text, text});
}

std::string host_name() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "unknown";
  return name;
}

void add_origin(Record* record, const Origin& origin) {
  record->text("version", origin.version);
  record->texts("hosts", origin.hosts);
}

void write_records(const Options& options, const std::vector<Record>& records) {
  if (!options.json_path.empty()) write_file("--json", options.json_path, all_json(records));
  if (!options.csv_path.empty()) write_file("--csv", options.csv_path, all_csv(records));
}

void write_rows(const Options& options, const Origin& origin, const std::vector<Row>& rows) {
  std::vector<Record> records;
  records.reserve(rows.size());
  for (const Row& row : rows) records.push_back(row_record(row, origin));
  write_records(options, records);
}

}  // namespace mep::perf

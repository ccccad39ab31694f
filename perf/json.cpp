#include "json.hpp"

#include <cstdio>
#include <fstream>
#include <string_view>

#include "error.hpp"

namespace mep::perf {
namespace {

void add_text(std::string* line, const char* name, const std::string& value) {
  *line += std::string("\"") + name + "\": \"";
  for (const char letter : value) {
    if (letter == '"' || letter == '\\' || static_cast<unsigned char>(letter) < 0x20) {
      char code[8];
      (void)std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(letter));
      *line += code;
    } else {
      *line += letter;
    }
  }
  *line += "\", ";
}
void add_null(std::string* line, const char* name) {
  *line += std::string("\"") + name + "\": null, ";
}
void add_whole(std::string* line, const char* name, uint64_t value) {
  *line += std::string("\"") + name + "\": " + std::to_string(value) + ", ";
}
void add_number(std::string* line, const char* name, double value) {
  char text[40];
  (void)std::snprintf(text, sizeof text, "%.6g", value);
  *line += std::string("\"") + name + "\": " + text + ", ";
}

void add_layer(std::string* line, const Layer& layer) {
  add_text(line, "mode", layer.mode);
  add_text(line, "routing", layer.routing);
  layer.preset.empty() ? add_null(line, "preset") : add_text(line, "preset", layer.preset);
  add_whole(line, "tokens", layer.tokens);
  add_whole(line, "hidden", layer.hidden);
  add_whole(line, "experts", layer.experts);
  add_whole(line, "topk", layer.top_k);
  layer.imbalance ? add_number(line, "imbalance", *layer.imbalance) : add_null(line, "imbalance");
}

void add_switches(std::string* line, const std::string& side, const Statistics& statistics) {
  if (!statistics.switches) return;
  add_number(line, (side + "_switches_voluntary").c_str(), statistics.switches->voluntary);
  add_number(line, (side + "_switches_involuntary").c_str(), statistics.switches->involuntary);
}

std::string row_to_json(const Row& row) {
  std::string line = "{";
  add_text(&line, "op", row.operation);
  add_whole(&line, "ranks", static_cast<uint64_t>(row.ranks));
  add_whole(&line, "bytes", row.bytes);
  add_text(&line, "dtype", row.dtype);
  if (row.layer) add_layer(&line, *row.layer);
  if (row.mep) {
    add_number(&line, "mep_us_p50", row.mep->p50_us);
    add_number(&line, "mep_us_p99", row.mep->p99_us);
    add_switches(&line, "mep", *row.mep);
  }
  if (row.peer) {
    const std::string side = std::string_view(row.peer_name) == "MPI" ? "mpi" : "nccl";
    add_number(&line, (side + "_us_p50").c_str(), row.peer->p50_us);
    add_switches(&line, side, *row.peer);
  }
  if (const auto ratio = row.ratio()) add_number(&line, "ratio", *ratio);
  add_number(&line, "algbw_gbps", row.algbw_gbps());
  add_number(&line, "busbw_gbps", row.busbw_gbps());
  if (row.floor_us > 0) add_number(&line, "floor_us", row.floor_us);
  const auto errors = row.mep ? row.errors : row.peer_errors;
  line += "\"errors\": " + (errors ? std::to_string(*errors) : std::string("null")) + "}";
  return line;
}

}  // namespace

std::string rows_to_json(const std::vector<Row>& rows) {
  std::string text = "[";
  for (size_t i = 0; i < rows.size(); ++i) {
    text += i == 0 ? "\n  " : ",\n  ";
    text += row_to_json(rows[i]);
  }
  return text + "\n]\n";
}

void write_json(const std::string& path, const std::vector<Row>& rows) {
  std::ofstream file(path, std::ios::trunc);
  file << rows_to_json(rows);
  file.close();
  if (!file) throw PerfError("--json: " + path + " cannot be written");
}

}  // namespace mep::perf

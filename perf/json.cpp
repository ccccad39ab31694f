#include "json.hpp"

#include <cstdio>
#include <fstream>
#include <string_view>

#include "error.hpp"

namespace mep::perf {
namespace {

void add_layer(JsonObject* line, const Layer& layer) {
  line->text("mode", layer.mode);
  line->text("routing", layer.routing);
  layer.preset.empty() ? line->null("preset") : line->text("preset", layer.preset);
  line->whole("tokens", layer.tokens);
  line->whole("hidden", layer.hidden);
  line->whole("experts", layer.experts);
  line->whole("topk", layer.top_k);
  layer.imbalance ? line->number("imbalance", *layer.imbalance) : line->null("imbalance");
}

void add_switches(JsonObject* line, const std::string& side, const Statistics& statistics) {
  if (!statistics.switches) return;
  line->number((side + "_switches_voluntary").c_str(), statistics.switches->voluntary);
  line->number((side + "_switches_involuntary").c_str(), statistics.switches->involuntary);
}

std::string row_to_json(const Row& row) {
  JsonObject line;
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
    line.number((side + "_us_p50").c_str(), row.peer->p50_us);
    add_switches(&line, side, *row.peer);
  }
  if (const auto ratio = row.ratio()) line.number("ratio", *ratio);
  line.number("algbw_gbps", row.algbw_gbps());
  line.number("busbw_gbps", row.busbw_gbps());
  if (row.floor_us > 0) line.number("floor_us", row.floor_us);
  const auto errors = row.mep ? row.errors : row.peer_errors;
  errors ? line.whole("errors", *errors) : line.null("errors");
  return line.end();
}

}  // namespace

void JsonObject::field(const char* name, const std::string& value) {
  text_ += text_.empty() ? "{" : ", ";
  text_ += std::string("\"") + name + "\": " + value;
}

void JsonObject::text(const char* name, const std::string& value) {
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
  field(name, quoted + "\"");
}

void JsonObject::number(const char* name, double value) {
  char text[40];
  (void)std::snprintf(text, sizeof text, "%.6g", value);
  field(name, text);
}

void write_json_objects(const std::string& path, const std::vector<std::string>& objects) {
  std::string text = "[";
  for (size_t i = 0; i < objects.size(); ++i) text += (i == 0 ? "\n  " : ",\n  ") + objects[i];
  std::ofstream file(path, std::ios::trunc);
  file << text << "\n]\n";
  file.close();
  if (!file) throw PerfError("--json: " + path + " cannot be written");
}

void write_json(const std::string& path, const std::vector<Row>& rows) {
  std::vector<std::string> objects;
  objects.reserve(rows.size());
  for (const Row& row : rows) objects.push_back(row_to_json(row));
  write_json_objects(path, objects);
}

}  // namespace mep::perf

#include "trace.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <fstream>
#include <sstream>

#include "error.hpp"
#include "npy.hpp"

namespace mep::perf {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;

// `where` names the row in the file.
void check_row(const int64_t* row, uint32_t experts, uint32_t top_k, const std::string& where) {
  for (uint32_t k = 0; k < top_k; ++k) {
    if (row[k] < -1 || row[k] >= static_cast<int64_t>(experts)) {
      throw PerfError(where + ": expert " + std::to_string(row[k]) + " is outside -1 to " +
                      std::to_string(experts - 1));
    }
    if (row[k] >= 0 && std::find(row, row + k, row[k]) != row + k) {
      throw PerfError(where + ": expert " + std::to_string(row[k]) + " twice");
    }
  }
}

Trace parse_text(std::string_view bytes, uint32_t experts, uint32_t top_k) {
  Trace trace;
  std::istringstream lines{std::string(bytes)};
  std::string line;
  for (size_t number = 1; std::getline(lines, line); ++number) {
    const std::string where = "line " + std::to_string(number);
    std::istringstream words(line.substr(0, line.find('#')));
    std::vector<int64_t> row;
    int64_t expert = 0;
    while (words >> expert) row.push_back(expert);
    if (!words.eof()) throw PerfError(where + ": not a list of whole numbers");
    if (row.empty()) continue;
    if (row.size() != top_k) {
      throw PerfError(where + ": " + std::to_string(row.size()) + " experts where --topk says " +
                      std::to_string(top_k));
    }
    check_row(row.data(), experts, top_k, where);
    trace.experts.insert(trace.experts.end(), row.begin(), row.end());
  }
  if (trace.experts.empty()) throw PerfError("there is no line with experts");
  return trace;
}

void read_experts(std::string_view file, uint32_t experts, uint32_t top_k, Trace* trace) {
  const NpyRows rows = read_npy(file, "topk_idx", {{"<i4", 4}, {"<i8", 8}}, top_k);
  if (rows.count == 0) throw PerfError("topk_idx has no row");
  trace->experts.resize(rows.count * top_k);
  for (size_t i = 0; i < trace->experts.size(); ++i) {
    const uint64_t bits = read_little_endian(rows.data, i * rows.type.width, rows.type.width);
    trace->experts[i] = rows.type.width == 4 ? static_cast<int32_t>(static_cast<uint32_t>(bits))
                                             : static_cast<int64_t>(bits);
  }
  for (uint64_t row = 0; row < rows.count; ++row) {
    check_row(trace->experts.data() + row * top_k, experts, top_k,
              "topk_idx, row " + std::to_string(row));
  }
}

void read_weights(std::string_view file, uint32_t top_k, Trace* trace) {
  const NpyRows rows = read_npy(file, "topk_weights", {{"<f4", 4}}, top_k);
  if (rows.count != trace->experts.size() / top_k) {
    throw PerfError("topk_weights has " + std::to_string(rows.count) + " rows where topk_idx has " +
                    std::to_string(trace->experts.size() / top_k));
  }
  trace->weights.resize(trace->experts.size());
  for (size_t i = 0; i < trace->weights.size(); ++i) {
    if (trace->experts[i] < 0) continue;
    const auto bits = static_cast<uint32_t>(read_little_endian(rows.data, i * 4, 4));
    trace->weights[i] = std::bit_cast<float>(bits);
    if (!std::isfinite(trace->weights[i])) {
      throw PerfError("topk_weights, row " + std::to_string(i / top_k) + ": a weight is no number");
    }
  }
}

Trace parse_npz(std::string_view bytes, uint32_t experts, uint32_t top_k) {
  const auto idx = find_in_npz(bytes, "topk_idx.npy");
  if (!idx) throw PerfError("there is no array topk_idx; write np.savez(file, topk_idx=...)");
  Trace trace;
  read_experts(*idx, experts, top_k, &trace);
  const auto weights = find_in_npz(bytes, "topk_weights.npy");
  if (weights) read_weights(*weights, top_k, &trace);
  return trace;
}

}  // namespace

Trace parse_trace(const std::string& path, std::string_view bytes, uint32_t experts,
                  uint32_t top_k) {
  try {
    if (path.ends_with(".npz")) return parse_npz(bytes, experts, top_k);
    if (!path.ends_with(".npy")) return parse_text(bytes, experts, top_k);
    Trace trace;
    read_experts(bytes, experts, top_k, &trace);
    return trace;
  } catch (const PerfError& error) {
    throw PerfError("routing file " + path + ": " + error.what());
  }
}

Trace read_trace(const std::string& path, uint32_t experts, uint32_t top_k) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes;
  std::array<char, 1 << 16> block{};
  while (file && bytes.size() <= kMaxBytes) {
    file.read(block.data(), block.size());
    bytes.append(block.data(), static_cast<size_t>(file.gcount()));
  }
  if (!file.eof() && bytes.size() <= kMaxBytes) {
    throw PerfError("routing file " + path + " cannot be read");
  }
  if (bytes.size() > kMaxBytes) throw PerfError("routing file " + path + " is larger than 1 GiB");
  return parse_trace(path, bytes, experts, top_k);
}

}  // namespace mep::perf

// Random numbers come from a counter-based mix, not from the standard library's distributions, so a
// run is the same on every machine.
#include "routing.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <sstream>

#include "error.hpp"

namespace mep::perf {
namespace {

uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

// In (0, 1].
double unit(uint64_t bits) {
  return (static_cast<double>(bits >> 11) + 1) * 0x1p-53;
}

[[noreturn]] void refuse_line(const std::string& path, size_t line, const std::string& why) {
  throw PerfError("routing file " + path + ", line " + std::to_string(line) + ": " + why);
}

}  // namespace

Router::Router(const Routing& routing, uint32_t experts, uint32_t top_k)
    : routing_(routing), experts_(experts), top_k_(top_k) {
  if (routing.kind == RoutingKind::kFile) read_file(routing.path);
  if (routing.kind != RoutingKind::kZipf) return;
  // Popularity is spread over the ids, so that the popular experts are not all on the first rank.
  std::vector<uint32_t> order(experts);
  std::iota(order.begin(), order.end(), 0u);
  for (uint32_t i = experts; i > 1; --i) std::swap(order[i - 1], order[mix(i) % i]);
  inverse_weight_.resize(experts);
  for (uint32_t i = 0; i < experts; ++i) {
    inverse_weight_[order[i]] = std::pow(i + 1.0, routing.exponent);
  }
}

void Router::read_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw PerfError("routing file " + path + " cannot be read");
  std::string line;
  for (size_t number = 1; std::getline(file, line); ++number) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::vector<int64_t> row;
    int64_t expert = 0;
    while (words >> expert) row.push_back(expert);
    if (!words.eof()) refuse_line(path, number, "not a list of whole numbers");
    if (row.empty()) continue;
    if (row.size() != top_k_) {
      refuse_line(
          path, number,
          std::to_string(row.size()) + " experts where --topk says " + std::to_string(top_k_));
    }
    for (size_t k = 0; k < row.size(); ++k) {
      if (row[k] < -1 || row[k] >= static_cast<int64_t>(experts_)) {
        refuse_line(path, number,
                    "expert " + std::to_string(row[k]) + " is outside -1 to " +
                        std::to_string(experts_ - 1));
      }
      const auto place = row.begin() + static_cast<std::ptrdiff_t>(k);
      if (row[k] >= 0 && std::find(row.begin(), place, row[k]) != place) {
        refuse_line(path, number, "expert " + std::to_string(row[k]) + " twice");
      }
    }
    lines_.insert(lines_.end(), row.begin(), row.end());
  }
  if (lines_.empty()) throw PerfError("routing file " + path + " has no line with experts");
}

void Router::route_uniform(uint64_t seed, int64_t* experts) const {
  for (uint32_t k = 0; k < top_k_; ++k) {
    int64_t chosen = 0;
    do {
      chosen = static_cast<int64_t>(mix(seed++) % experts_);
    } while (std::find(experts, experts + k, chosen) != experts + k);
    experts[k] = chosen;
  }
}

// Drawing without replacement by weight is taking the smallest of exponentially distributed times.
void Router::route_zipf(uint64_t seed, int64_t* experts) const {
  std::vector<std::pair<double, int64_t>> times(experts_);
  for (uint32_t e = 0; e < experts_; ++e) {
    times[e] = {-std::log(unit(mix(seed + e))) * inverse_weight_[e], e};
  }
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(top_k_);
  std::partial_sort(times.begin(), middle, times.end());
  for (uint32_t k = 0; k < top_k_; ++k) experts[k] = times[k].second;
}

void Router::route(int rank, uint32_t tokens, uint32_t round, std::vector<int64_t>* experts) const {
  experts->resize(static_cast<size_t>(tokens) * top_k_);
  for (uint32_t token = 0; token < tokens; ++token) {
    int64_t* row = experts->data() + static_cast<size_t>(token) * top_k_;
    if (routing_.kind == RoutingKind::kFile) {
      const size_t lines = lines_.size() / top_k_;
      const size_t line = (static_cast<size_t>(rank) * tokens + token + round) % lines;
      std::copy_n(lines_.data() + line * top_k_, top_k_, row);
      continue;
    }
    const uint64_t seed =
        mix(mix(mix(round) + static_cast<uint64_t>(static_cast<uint32_t>(rank))) + token);
    routing_.kind == RoutingKind::kZipf ? route_zipf(seed, row) : route_uniform(seed, row);
  }
}

}  // namespace mep::perf

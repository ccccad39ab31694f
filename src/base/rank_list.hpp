// Ranks in the text of an error or a log line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace mep {

// "rank 4", "ranks 3, 5-7": of rising ranks; the first sixteen ranges.
inline std::string list_ranks(const std::vector<int32_t>& ranks) {
  constexpr size_t kMaxRanges = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  size_t ranges = 0;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (ranges++ == kMaxRanges) return text + ", ...";
    if (i != 0) text += ", ";
    text += std::to_string(ranks[i]);
    if (end - i > 1) text += "-" + std::to_string(ranks[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace mep

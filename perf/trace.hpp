// Reads a trace: which experts the tokens of a recorded run went to.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mep::perf {

struct Trace {
  std::vector<int64_t>
      experts;                 // [row][top_k], distinct in a row; -1: none. There is a row at least
  std::vector<float> weights;  // the same, 0 with -1; empty: the file has none
};

// A name that ends in .npz or .npy is NumPy's, any other a text with the experts of a token in each line. Throw
// PerfError if it is not a trace of that form with `top_k` of `experts` experts.
Trace read_trace(const std::string& path, uint32_t experts, uint32_t top_k);
Trace parse_trace(const std::string& path, std::string_view bytes, uint32_t experts,
                  uint32_t top_k);

}  // namespace mep::perf

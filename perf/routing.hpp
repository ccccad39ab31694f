// Which experts a token goes to, and with which weights. A function of (routing, rank, token, round), so every rank can
// compute every other rank's routing by itself.
#pragma once

#include <cstdint>
#include <vector>

#include "options.hpp"
#include "trace.hpp"

namespace mep::perf {

// The experts of DeepSeek-V3 are in groups, one after the other; a token takes its experts from some of them.
constexpr uint32_t kExpertGroups = 8;
constexpr uint32_t kKeptGroups = 4;

struct Choice {
  std::vector<int64_t>
      experts;  // [tokens][top_k], distinct within a token; -1 (from a file only): none
  std::vector<float> weights;  // the same
};

class Router {
 public:
  // Throws when a routing file cannot be read or has an expert that does not exist.
  Router(const Routing& routing, uint32_t experts, uint32_t top_k);

  Choice route(int rank, uint32_t tokens, uint32_t round) const;

 private:
  void route_uniform(uint64_t seed, int64_t* experts) const;
  void route_zipf(uint64_t seed, int64_t* experts) const;
  void route_deepseek_v3(uint64_t seed, int64_t* experts, float* weights) const;
  void route_trace(size_t token, int64_t* experts, float* weights) const;

  Routing routing_;
  uint32_t experts_;
  uint32_t top_k_;
  std::vector<double> inverse_weight_;  // zipf: of each expert
  std::vector<float> bias_;             // deepseek-v3: of each expert
  Trace trace_;                         // file
};

// The gate of DeepSeek-V3 from scores[E] and bias[E]: of the groups those with the largest sums of their two largest
// scores + bias, in these the experts with the largest scores + bias; weights are scores alone, with the sum 2.5.
void choose_in_groups(const std::vector<float>& scores, const std::vector<float>& bias,
                      uint32_t top_k, int64_t* experts, float* weights);

}  // namespace mep::perf

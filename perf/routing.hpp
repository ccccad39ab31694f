// Which experts a token goes to. A function of (routing, rank, token, round), so every rank can
// compute every other rank's routing by itself.
#pragma once

#include <cstdint>
#include <vector>

#include "options.hpp"

namespace mep::perf {

class Router {
 public:
  // Throws when a routing file cannot be read or has an expert that does not exist.
  Router(const Routing& routing, uint32_t experts, uint32_t top_k);

  // experts[tokens][top_k], distinct within a token; -1 (from a file only): none.
  void route(int rank, uint32_t tokens, uint32_t round, std::vector<int64_t>* experts) const;

 private:
  void read_file(const std::string& path);
  void route_uniform(uint64_t seed, int64_t* experts) const;
  void route_zipf(uint64_t seed, int64_t* experts) const;

  Routing routing_;
  uint32_t experts_;
  uint32_t top_k_;
  std::vector<double> inverse_weight_;  // zipf: of each expert
  std::vector<int64_t> lines_;          // file: [line][top_k]
};

}  // namespace mep::perf

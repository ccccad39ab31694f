// Worlds of threads whose ranks count as being on several hosts, one letter of a placement for each
// rank: ranks of different hosts reach each other by put and signal, which TestNetwork counts.
#pragma once

#include <string>

#include "support/coll_ranks.hpp"

namespace mep_test {

inline size_t hosts_in(const std::string& placement) {
  size_t hosts = 0;
  for (size_t i = 0; i < placement.size(); ++i) hosts += placement.find(placement[i]) == i ? 1 : 0;
  return hosts;
}

inline void with_placement(const std::string& placement, Report& report, const RankBody& body,
                           uint32_t flags = 0) {
  hosts_pattern() = placement;
  with_rank_threads(static_cast<int>(placement.size()), patient_config(flags), report, body);
  hosts_pattern().clear();
}

}  // namespace mep_test

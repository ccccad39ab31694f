// Worlds of threads whose ranks count as being on several hosts, one letter of a placement for each
// rank: ranks of different hosts reach each other by put and signal, which TestNetwork counts.
#pragma once

#include <barrier>
#include <string>

#include "support/coll_matrix.hpp"
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

// Runs c where its messages are counted. A root that waits for nobody has ended before the others begin: when they have
// waited 20 ms for it, they show their calls.
inline void run_counted(const Case& c, bool root_waits, int rank, int size, mep_comm_t comm,
                        std::barrier<>& together, Report& found) {
  const bool root_first = c.facts().only_root_gives() && !root_waits;
  if (root_first && rank != c.root) together.arrive_and_wait();
  run_case(c, rank, size, comm, c.seed % 2 == 1, found);
  if (root_first && rank == c.root) together.arrive_and_wait();
}

}  // namespace mep_test

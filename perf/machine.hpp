// What the machine itself can do: how fast memory is copied and how fast a cache line moves from
// core to core. The table's shares are of these.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "team.hpp"

namespace mep::perf {

// Payload (bytes copied, counted once) per second with `cores` threads that each copy blocks of
// `bytes`.
struct CopyRate {
  size_t bytes = 0;
  int cores = 0;
  double gbps = 0;
};

struct Machine {
  int cores = 0;       // that the ranks may use together; 0: not measured
  double line_ns = 0;  // one way, between two cores; 0: there is only one core
  std::vector<CopyRate> copies;
};

// Collective. Measured by rank 0 while the others sleep; on other ranks the result is empty, and on
// rank 0 too when the ranks are on several hosts.
Machine measure_machine(Team& team);

// The rate for that many cores with so many bytes each, between measured sizes by interpolation; 0:
// not measured.
double copy_gbps(const Machine& machine, int cores, double bytes_per_core);

// Two lines for people.
std::string describe(const Machine& machine);

}  // namespace mep::perf

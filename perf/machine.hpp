// The machine's own abilities: how fast memory is copied and how fast a cache line moves from
// core to core; on a GPU, copies, signals and launches. The table's shares are of these.
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

// The GPUs' abilities: the parts of which the floor of an operation is made.
struct DeviceFloors {
  std::string gpu;       // its name
  int gpus = 1;          // that the ranks are spread over, evenly
  double copy_gbps = 0;  // read + written, by a copy of 1 GiB; 0: not measured
  double signal_us = 0;  // one way between two kernels, through device memory
  double launch_us = 0;  // an empty kernel in a graph
  // Between two GPUs; 0: not measured.
  double link_gbps = 0;       // one way, by a peer copy of 1 GiB
  double link_signal_us = 0;  // one way between two kernels, each waits on its own memory
};

struct Machine {
  int cores = 0;       // that the ranks may use together; 0: not measured
  double line_ns = 0;  // one way, between two cores; 0: there is only one core
  std::vector<CopyRate> copies;
  DeviceFloors device;
};

// Collective. Measured by rank 0 while the others sleep; on other ranks the result is empty, and on
// rank 0 too when the ranks are on several hosts.
Machine measure_machine(Team& team);

// The rate for that many cores with so many bytes each, between measured sizes by interpolation; 0:
// not measured.
double copy_gbps(const Machine& machine, int cores, double bytes_per_core);

// Time in which the GPUs could move so many bytes (read + written, on all together), each take in so many
// from others, and as many signals, one after the other; 0: not measured.
double floor_us(const DeviceFloors& device, double bytes, double taken_in, int signals);

// Two lines for people.
std::string describe(const Machine& machine);

}  // namespace mep::perf

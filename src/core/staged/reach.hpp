// How the GPUs of a comm's ranks are to reach each other, from facts that all ranks have of all. No CUDA here.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/comm/gpu_reach.hpp"
#include "mep.h"

namespace mep {

// What a rank tells the others of itself; whole words, as it is exchanged.
struct ReachFacts {
  uint64_t host = 0;
  uint64_t process = 0;
  uint64_t least = 0;       // GpuReach: MEP_CUDA_REACH rules faster ones out
  uint64_t device[2] = {};  // the GPU's UUID
};

struct ReachChoice {
  GpuReach reach = GpuReach::kDeviceWindows;  // the fastest that may work
  std::string why;                            // not device windows: for people
};

// By rank; a rank that is absent has no place here. `ranks` says whose facts they are.
ReachChoice choose_reach(std::span<const ReachFacts> facts, std::span<const uint32_t> ranks);

// Ranks that share a GPU, of one process or of several: the most on any.
uint32_t most_on_one_gpu(std::span<const ReachFacts> facts);

// MEP_CUDA_REACH: auto, host or queues.
[[nodiscard]] mep_result_t read_reach_setting(GpuReach* least);

}  // namespace mep

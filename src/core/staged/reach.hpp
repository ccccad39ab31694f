// How the GPUs of a comm's ranks are to reach each other, from facts that all ranks have of all. No CUDA here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/comm/gpu_reach.hpp"
#include "mep.h"

namespace mep {

// What a rank tells the others of itself; whole words, as it is exchanged.
struct ReachFacts {
  uint64_t host = 0;
  uint64_t process = 0;
  uint64_t least = 0;        // GpuReach: MEP_CUDA_REACH rules faster ones out
  uint64_t device[2] = {};   // the GPU's UUID
  uint64_t group = 0;        // with queues ranks of one host and group map each other; 0: none
  uint64_t most_blocks = 0;  // of a kernel; 0: no limit
  uint64_t queues = 0;       // GpuQueues
};

struct ReachChoice {
  GpuReach reach = GpuReach::kDeviceWindows;  // the fastest that may work
  std::string why;                            // not device windows: for people
};

// By rank; a rank that is absent has no place here. `ranks` says whose facts they are.
ReachChoice choose_reach(std::span<const ReachFacts> facts, std::span<const uint32_t> ranks);

// The number of the group that a rank of a host and `group` belongs to; 0: to none.
uint64_t group_number(const ReachFacts& facts);

// By rank of `size`, the numbers of their groups; 0 also of those that are alone in theirs, and of absent ranks.
std::vector<uint64_t> groups_of(std::span<const ReachFacts> facts, std::span<const uint32_t> ranks,
                                uint32_t size);

// By rank, the group of the rank `own`; empty: it is in none.
std::vector<bool> group_of(std::span<const uint64_t> groups, uint32_t own);

// Ranks that share a GPU, of one process or of several: the most on any.
uint32_t most_on_one_gpu(std::span<const ReachFacts> facts);

// The least limit of all that have one; 0: nobody has.
uint32_t most_blocks_of(std::span<const ReachFacts> facts);

// MEP_ERR_MISMATCH if not all are to have their queues executed in one way.
[[nodiscard]] mep_result_t check_queues(std::span<const ReachFacts> facts,
                                        std::span<const uint32_t> ranks);

// Writes least and group of a rank from MEP_CUDA_REACH: auto, host, queues, or mixed: even and odd ranks
// are two groups. Writes queues from MEP_GPU_QUEUES: host, adapter, auto or assisted.
[[nodiscard]] mep_result_t read_reach_setting(uint32_t rank, ReachFacts* facts);

}  // namespace mep

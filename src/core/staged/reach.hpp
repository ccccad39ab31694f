// How the GPUs of a comm's ranks reach each other: mapped (kernels write to each other's windows) or staged
// (through pinned host memory and the host's transports). One answer for the whole comm, from facts that
// all ranks have of all. No CUDA here.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "mep.h"

namespace mep {

// What a rank tells the others of itself; whole words, as it is exchanged.
struct ReachFacts {
  uint64_t host = 0;
  uint64_t process = 0;
  uint64_t forced = 0;      // MEP_CUDA_REACH=host
  uint64_t device[2] = {};  // the GPU's UUID
};

struct ReachChoice {
  bool staged = false;
  std::string why;  // staged: for people
  bool one_process = true;
};

// By rank; a rank that is absent has no place here. `ranks` says whose facts they are.
ReachChoice choose_reach(std::span<const ReachFacts> facts, std::span<const uint32_t> ranks);

// Ranks that share a GPU, of one process or of several: the most on any.
uint32_t most_on_one_gpu(std::span<const ReachFacts> facts);

// MEP_CUDA_REACH: auto or host.
[[nodiscard]] mep_result_t read_reach_setting(bool* forced);

}  // namespace mep

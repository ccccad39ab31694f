// Kernels whose times are the parts of a floor.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace mep::perf {

// Two of these answer each other `rounds` times.
struct PingPong {
  uint64_t* mine;
  const uint64_t* other;
  uint32_t done;  // what the words hold at first
  uint32_t rounds;
  bool begins;        // writes first
  uint32_t* is_late;  // set if it takes seconds
};
cudaError_t launch_ping_pong(const PingPong& call, cudaStream_t stream);
cudaError_t launch_nothing(cudaStream_t stream);
// Loads them: the first launch of one would wait for another that waits for it.
cudaError_t load_floor_kernels();

}  // namespace mep::perf

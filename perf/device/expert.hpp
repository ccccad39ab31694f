// The stand-in expert as a kernel: each row that arrived times its expert's factor; in high throughput the weighted
// sum of the row times the factors of its experts here.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "mep.h"

namespace mep::perf {

struct ExpertCall {
  const void* rows;                 // [experts, capacity, hidden], bfloat16 or e4m3
  const float* scales;              // [experts, capacity, ceil(hidden / 128)] of e4m3; else null
  const mep_range_t* layout_range;  // [experts, sources]
  void* y;                          // [experts, capacity, hidden] bfloat16
  uint32_t experts;                 // of this rank
  uint32_t sources;
  uint32_t capacity;  // rows of one expert
  uint32_t hidden;    // a multiple of 8
  uint64_t first_expert;
  // High throughput, else null: [capacity, top_k] of the rows, which have no experts in their places then.
  const int32_t* topk_idx;
  const float* topk_weights;
  uint32_t top_k;
};

// A first launch waits for the kernels that run, which may be those of ranks that wait for this one.
cudaError_t load_expert_kernels();
cudaError_t launch_expert(const ExpertCall& call, cudaStream_t stream);

}  // namespace mep::perf

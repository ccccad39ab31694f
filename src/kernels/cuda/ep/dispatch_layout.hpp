// Where the tokens of a routing go (mep_dispatch_layout). Plain C++; streams are cudaStream_t as void*, results are
// cudaError_t as int, 0 is success.
#pragma once

#include <cstdint>

namespace mep::device {

struct DispatchLayout {
  const void* topk_idx;  // [tokens, top_k]
  uint32_t idx_is_int32;
  uint32_t tokens, top_k, experts, ranks;
  // Null: not wanted.
  int32_t* per_rank;    // [ranks]
  int32_t* per_expert;  // [experts]
  uint8_t* in_rank;     // [tokens, ranks]

  uint32_t local_experts() const { return (experts + ranks - 1) / ranks; }
};

// Enqueues one kernel.
int launch_dispatch_layout(const DispatchLayout& layout, void* stream);

}  // namespace mep::device

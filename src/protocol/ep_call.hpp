// The arguments of a dispatch and a combine, by halves, after the caller's options were read. mep.h explains the fields,
// under the same names. A half that receives looks at the options of receiving alone, and at the flags of a combine.
#pragma once

#include <cstdint>

#include "mep.h"

namespace mep {

struct DispatchInput {
  bool replays = false;
  bool has_rows = true;     // false: a replay of the routing alone
  uint32_t timeout_ms = 0;  // of the call; 0: the object's
  mep_dtype_t topk_idx_type = 0;
  uint32_t num_tokens = 0;
  const void* x = nullptr;
  uint64_t x_stride_bytes = 0;
  const void* x_scales = nullptr;
  uint64_t x_scales_stride_bytes = 0;
  const void* topk_idx = nullptr;
  const float* topk_weights = nullptr;
};

struct DispatchOutput : mep_dispatch_options_t {
  bool counts_only = false;  // the rows come with a later call
};

struct CombineInput {
  uint32_t timeout_ms = 0;
  const void* y = nullptr;
  const float* topk_weights = nullptr;
};

struct CombineOutput : mep_combine_options_t {
  void* out = nullptr;
};

}  // namespace mep

// The arguments of a dispatch and a combine, by halves, after the caller's options were read. mep.h explains the fields,
// under the same names.
#pragma once

#include <cstdint>

#include "mep.h"

namespace mep {

struct DispatchInput {
  bool replays = false;
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

struct DispatchOutput {
  bool counts_only = false;  // the rows come with a later call
  uint32_t timeout_ms = 0;
  void* recv_x = nullptr;
  uint64_t recv_capacity = 0;
  void* recv_scales = nullptr;
  uint64_t recv_scales_token_stride_bytes = 0;
  uint64_t recv_scales_group_stride_bytes = 0;
  int32_t* recv_count = nullptr;
  int32_t* recv_count_host = nullptr;
  int32_t* src_info = nullptr;
  mep_range_t* layout_range = nullptr;
  mep_range_t* token_range = nullptr;
  int32_t* recv_topk_idx = nullptr;
  float* recv_topk_weights = nullptr;
  int64_t* recv_total = nullptr;
  void* statistics = nullptr;
  mep_op_status_t* op_status = nullptr;
  uint64_t op_status_bytes = 0;
  int64_t* wait_ns = nullptr;
  mep_dtype_t statistics_type = 0;
};

struct CombineInput {
  uint32_t timeout_ms = 0;
  const void* y = nullptr;
  const float* topk_weights = nullptr;
};

struct CombineOutput {
  bool renormalizes = false;
  uint32_t num_tokens = 0;
  uint32_t timeout_ms = 0;
  void* out = nullptr;
  uint64_t out_stride_bytes = 0;
  const float* weights = nullptr;
  const void* bias = nullptr;
  mep_op_status_t* op_status = nullptr;
  uint64_t op_status_bytes = 0;
  float* topk_weights = nullptr;
  int64_t* wait_ns = nullptr;
  const void* token_bias = nullptr;
  const void* token_bias2 = nullptr;
};

}  // namespace mep

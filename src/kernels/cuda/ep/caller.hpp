// A dispatch's arguments as kernels take them: strides filled in, and null for what is not wanted.
#pragma once

#include "kernels/cuda/device/op_status.hpp"
#include "kernels/cuda/ep/geometry.hpp"
#include "protocol/ep_call.hpp"

namespace mep::device {

struct DispatchInputs {
  const std::byte* x;
  const std::byte* x_scales;
  uint64_t x_stride, x_scales_stride;
};

struct DispatchOutputs {
  std::byte* recv_x;
  std::byte* recv_scales;
  uint64_t recv_scales_row_step, recv_scales_expert_step;
  int32_t* recv_count[2];
  int32_t* src_info;
  int64_t* layout_range[2];
  int64_t* recv_total;
  int64_t* statistics;
  int32_t* recv_topk_idx;
  float* recv_topk_weights;
  OpStatusPlace op_status;
};

// Expanded: where rows go, and what the library keeps of them besides the caller.
struct ExpandedOutputs {
  std::byte* x;       // null: no rows came
  std::byte* scales;  // null: rows have none, or none came
  uint64_t scale_row_step;
  int32_t* tokens[2];
  float* weights[2];
  int64_t* ranges[2];
};

inline DispatchInputs dispatch_inputs(const EpGeometry& g, const DispatchInput& args) {
  const uint64_t scale_row = uint64_t{g.groups} * g.scale_bytes;
  return {static_cast<const std::byte*>(args.x), static_cast<const std::byte*>(args.x_scales),
          args.x_stride_bytes != 0 ? args.x_stride_bytes : g.input_row,
          args.x_scales_stride_bytes != 0 ? args.x_scales_stride_bytes : scale_row};
}

// Kernels write a range as one word. It lies on 8 bytes.
inline int64_t* range_words(mep_range_t* ranges) {
  return reinterpret_cast<int64_t*>(ranges);
}

inline DispatchOutputs dispatch_outputs(const EpGeometry& g, const DispatchOutput& args) {
  DispatchOutputs out{};
  out.recv_count[0] = args.recv_count;
  out.recv_count[1] = args.recv_count_host;
  out.layout_range[0] = range_words(args.token_range);
  out.recv_total = args.recv_total;
  if (args.counts_only) return out;
  // Those of expanded rows come later.
  if (g.expanded.rows == 0) out.layout_range[1] = range_words(args.layout_range);
  out.recv_x = static_cast<std::byte*>(args.recv_x);
  out.recv_scales = static_cast<std::byte*>(args.recv_scales);
  out.src_info = args.src_info;
  out.recv_scales_row_step = args.recv_scales_token_stride_bytes != 0
                                 ? args.recv_scales_token_stride_bytes
                                 : g.scale_row_step;
  out.recv_scales_expert_step = args.recv_scales_group_stride_bytes;
  if (out.recv_scales_expert_step == 0) {
    const bool row_major = g.sizes.column_major == 0;
    out.recv_scales_expert_step =
        row_major ? out.recv_scales_row_step * g.rows_per_expert : g.scale_expert_step;
  }
  out.statistics = static_cast<int64_t*>(args.statistics);
  out.recv_topk_idx = args.recv_topk_idx;
  out.recv_topk_weights = args.recv_topk_weights;
  out.op_status = op_status_place(args.op_status, args.op_status_bytes, g.sizes.ranks);
  return out;
}

// kept: a block of EpExpandedLayout.
inline ExpandedOutputs expanded_outputs(const EpGeometry& g, std::byte* kept,
                                        const DispatchOutput& args) {
  const EpExpandedLayout& layout = g.expanded;
  ExpandedOutputs out{};
  out.x = args.recv_x != nullptr ? static_cast<std::byte*>(args.recv_x) : kept + layout.x;
  if (g.groups != 0) {
    const bool is_callers = args.recv_scales != nullptr;
    out.scales = is_callers ? static_cast<std::byte*>(args.recv_scales) : kept + layout.scales;
    out.scale_row_step = is_callers && args.recv_scales_token_stride_bytes != 0
                             ? args.recv_scales_token_stride_bytes
                             : layout.scale_row_step;
  }
  out.tokens[0] = reinterpret_cast<int32_t*>(kept + layout.tokens);
  out.tokens[1] = args.src_info;
  out.weights[0] = reinterpret_cast<float*>(kept + layout.weights);
  out.weights[1] = args.recv_topk_weights;
  out.ranges[0] = reinterpret_cast<int64_t*>(kept + layout.ranges);
  out.ranges[1] = range_words(args.layout_range);
  return out;
}

inline bool on_multiple_of(const void* pointer, uint64_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}
// Rows are copied 16 bytes at a time.
inline bool is_row(const void* pointer) {
  return on_multiple_of(pointer, 16);
}

inline bool are_aligned(const EpGeometry& g, const DispatchInputs& in, const DispatchOutputs& out) {
  const uint64_t scale = g.scale_bytes != 0 ? g.scale_bytes : 1;
  return is_row(in.x) && in.x_stride % 16 == 0 && is_row(out.recv_x) &&
         on_multiple_of(in.x_scales, scale) && in.x_scales_stride % scale == 0 &&
         on_multiple_of(out.recv_scales, scale) && out.recv_scales_row_step % scale == 0 &&
         out.recv_scales_expert_step % scale == 0;
}

}  // namespace mep::device

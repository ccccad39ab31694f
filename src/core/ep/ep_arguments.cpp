#include "core/ep/ep_arguments.hpp"

#include "base/memory_range.hpp"
#include "base/status.hpp"

namespace mep {
namespace {

mep_result_t check_counts(const EpShape& shape, const DispatchInput& input) {
  if (!shape.high_throughput()) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "mep_dispatch_counts belongs to MEP_EP_HIGH_THROUGHPUT; call mep_dispatch_send");
  }
  if (!input.replays) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT,
              "MEP_DISPATCH_REPLAY: a replay exchanges no counts; call mep_dispatch_send");
}

mep_result_t check_has_no_rows(const DispatchOutput& output) {
  const struct {
    const void* memory;
    const char* name;
  } outputs[] = {{output.recv_x, "recv_x"},
                 {output.recv_scales, "recv_scales"},
                 {output.statistics, "statistics"}};
  for (const auto& [memory, name] : outputs) {
    if (memory == nullptr) continue;
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "%s is given, but no rows come with MEP_DISPATCH_NO_ROWS; it must be NULL", name);
  }
  return MEP_SUCCESS;
}

mep_result_t check_row_memory(const EpShape& shape, const DispatchOutput& output) {
  const char* missing = output.recv_x == nullptr ? "recv_x" : "recv_scales";
  const bool has_all =
      output.recv_x != nullptr && (output.recv_scales != nullptr || !shape.has_scales());
  if (shape.has_row_memory() || has_all) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT,
              "%s is NULL; the EP object was made with MEP_EP_NO_ROW_MEMORY, so give memory for it",
              missing);
}

}  // namespace

mep_result_t check_topk_idx_type(mep_dtype_t type) {
  if (type == 0 || type == MEP_INT64 || type == MEP_INT32) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT, "topk_idx_type is %u; it must be MEP_INT32 or MEP_INT64",
              type);
}

mep_result_t check_dispatch_input(const EpShape& shape, const DispatchInput& input) {
  if (input.num_tokens > shape.max_tokens) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "num_tokens is %u; max_tokens_per_rank is %u",
                input.num_tokens, shape.max_tokens);
  }
  const bool replays = input.replays;
  if (replays && !shape.high_throughput()) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "MEP_DISPATCH_REPLAY belongs to MEP_EP_HIGH_THROUGHPUT");
  }
  MEP_TRY(check_topk_idx_type(input.topk_idx_type));
  if (!input.has_rows) {
    if (replays) return MEP_SUCCESS;
    return fail(MEP_ERR_INVALID_ARGUMENT, "MEP_DISPATCH_NO_ROWS belongs to MEP_DISPATCH_REPLAY");
  }
  const bool lacks_routing = input.topk_idx == nullptr && !replays;
  if (input.num_tokens != 0 && (input.x == nullptr || lacks_routing)) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "%s is NULL, but there are %u tokens",
                input.x == nullptr ? "x" : "topk_idx", input.num_tokens);
  }
  const bool needs_scales = shape.takes_scales();
  if (input.num_tokens != 0 && needs_scales != (input.x_scales != nullptr)) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                needs_scales
                    ? "x_scales is NULL; e4m3 input needs its scales, an opaque row its side words"
                    : "x_scales is given; only e4m3 input and opaque rows with side_bytes have it");
  }
  if (input.x_stride_bytes != 0 && input.x_stride_bytes < shape.input_row_bytes()) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "x_stride_bytes is %llu; a row has %zu",
                static_cast<unsigned long long>(input.x_stride_bytes), shape.input_row_bytes());
  }
  if (input.x_scales_stride_bytes != 0 && input.x_scales_stride_bytes < shape.scale_row_bytes()) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "x_scales_stride_bytes is %llu; the scales of a row have "
                "%zu",
                static_cast<unsigned long long>(input.x_scales_stride_bytes),
                shape.scale_row_bytes());
  }
  return MEP_SUCCESS;
}

mep_result_t check_replay(uint64_t routed_epoch, uint32_t routed_tokens, uint64_t epoch,
                          uint32_t tokens) {
  if (routed_epoch == 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "MEP_DISPATCH_REPLAY: no dispatch of this handle has been received to its end");
  }
  if (routed_epoch != epoch) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "MEP_DISPATCH_REPLAY: the membership has changed since the handle's dispatch; "
                "dispatch with topk_idx again");
  }
  if (routed_tokens != tokens) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "MEP_DISPATCH_REPLAY: num_tokens is %u; the handle's dispatch had %u tokens",
                tokens, routed_tokens);
  }
  return MEP_SUCCESS;
}

mep_result_t check_dispatch_output(const EpShape& shape, const mep_ep_view_t& view,
                                   const DispatchInput* input, const DispatchOutput& output) {
  if (output.counts_only) return check_counts(shape, *input);
  const bool has_rows = input == nullptr || input->has_rows;
  MEP_TRY(has_rows ? check_row_memory(shape, output) : check_has_no_rows(output));
  if (output.token_range != nullptr && !shape.high_throughput()) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "token_range belongs to MEP_EP_HIGH_THROUGHPUT");
  }
  const bool wants_topk = output.recv_topk_idx != nullptr || output.recv_topk_weights != nullptr;
  if (wants_topk && !shape.high_throughput()) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "recv_topk_idx and recv_topk_weights belong to MEP_EP_HIGH_THROUGHPUT");
  }
  if (output.recv_topk_idx != nullptr && shape.expanded()) {
    return fail(
        MEP_ERR_INVALID_ARGUMENT,
        "recv_topk_idx is given; with MEP_EP_EXPANDED the group of a row says its expert, so "
        "give NULL");
  }
  if (output.recv_scales != nullptr && !shape.has_scales()) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "recv_scales is given, but the wire type has no scales");
  }
  if (output.statistics_type != 0 && output.statistics_type != MEP_INT64 &&
      output.statistics_type != MEP_INT32) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "statistics_type is %u; it must be MEP_INT32 or MEP_INT64", output.statistics_type);
  }
  const struct {
    const void* given;
    const void* own;
    const char* name;
  } outputs[] = {{output.recv_x, view.recv_x, "recv_x"},
                 {output.recv_scales, view.recv_scales, "recv_scales"},
                 {output.recv_count, view.recv_count, "recv_count"},
                 {output.src_info, view.src_info, "src_info"},
                 {output.layout_range, view.layout_range, "layout_range"},
                 {output.recv_topk_idx, view.recv_topk_idx, "recv_topk_idx"},
                 {output.recv_topk_weights, view.recv_topk_weights, "recv_topk_weights"}};
  for (const auto& [given, own, name] : outputs) {
    if (given == nullptr || given != own) continue;
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "%s is the library's own memory of it (mep_ep_buffer_view); give NULL, or memory "
                "of yours for a copy",
                name);
  }
  return MEP_SUCCESS;
}

mep_result_t check_combine_halves(const EpShape& shape, bool sends, bool receives) {
  if (shape.has_combine_memory() || (sends && receives)) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT,
              "%s: the EP object was made with MEP_EP_NO_COMBINE_MEMORY, so a combine sends and "
              "receives in "
              "one call, mep_combine",
              sends ? "mep_combine_send" : "mep_combine_receive");
}

mep_result_t check_combine_input(const EpShape& shape, const CombineInput& input) {
  if (input.topk_weights != nullptr && !shape.high_throughput()) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "topk_weights of a combine belong to MEP_EP_HIGH_THROUGHPUT");
  }
  if (input.y != nullptr) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT, "y is NULL; give %smemory of yours",
              shape.has_combine_memory() ? "combine_input of mep_ep_buffer_view, or " : "");
}

mep_result_t check_combine_output(const EpShape& shape, const mep_ep_view_t& view, uint32_t tokens,
                                  const CombineOutput& output) {
  if (output.recv_topk_weights != nullptr && !shape.high_throughput()) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "recv_topk_weights of a combine belong to MEP_EP_HIGH_THROUGHPUT");
  }
  if ((output.token_bias != nullptr || output.token_bias2 != nullptr) && !shape.high_throughput()) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "token_bias and token_bias2 belong to MEP_EP_HIGH_THROUGHPUT");
  }
  if (output.weights != nullptr && shape.high_throughput()) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "weights belong to MEP_EP_LOW_LATENCY; high throughput adds up what each rank "
                "returns for a token: weigh it there, by recv_topk_weights");
  }
  if (output.out == nullptr && tokens != 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "out is NULL, but there are %u tokens", tokens);
  }
  if (output.out_stride_bytes != 0 && output.out_stride_bytes < shape.combine_row_bytes()) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "out_stride_bytes is %llu; a row has %zu",
                static_cast<unsigned long long>(output.out_stride_bytes),
                shape.combine_row_bytes());
  }
  if (tokens == 0) return MEP_SUCCESS;
  const size_t row = shape.combine_row_bytes();
  const size_t stride = output.out_stride_bytes != 0 ? output.out_stride_bytes : row;
  const size_t bytes = (tokens - 1) * stride + row;
  const struct {
    const void* own;
    size_t row;
    const char* name;
  } sources[] = {{view.combine_input, row, "combine_input"},
                 {view.recv_x, shape.wire_row_bytes(), "recv_x"}};
  for (const auto& [own, own_row, name] : sources) {
    if (!overlap(output.out, bytes, own, shape.view_rows() * own_row)) continue;
    return fail(
        MEP_ERR_INVALID_ARGUMENT,
        "out lies in %s of mep_ep_buffer_view, which peers read and write; give memory of yours",
        name);
  }
  return MEP_SUCCESS;
}

}  // namespace mep

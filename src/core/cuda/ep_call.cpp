#include "core/cuda/ep_call.hpp"

#include <algorithm>
#include <iterator>

#include "base/status.hpp"
#include "core/operation/operation_record.hpp"
#include "transport/cuda/device_memory.hpp"

namespace mep {
namespace {

mep_result_t check_optional(int32_t device, const void* memory, const char* name) {
  return memory == nullptr ? mep_result_t{MEP_SUCCESS} : check_pointer(device, memory, name);
}

}  // namespace

mep_result_t EpCallState::busy() const {
  return fail(MEP_ERR_BUSY, "the buffer's last %s has not finished its receive phase",
              stage == EpStage::kDispatching ? "dispatch" : "combine");
}

void EpCallState::note_dispatch(EpSideHandle& handle, const mep_dispatch_args_t& args) {
  if (args.phase != MEP_PHASE_RECEIVE) handle.tokens = args.num_tokens;
  current = &handle;
  stage = args.phase == MEP_PHASE_SEND ? EpStage::kDispatching : EpStage::kReceived;
  has_status = args.op_status == nullptr;
}

void EpCallState::note_combine(const mep_combine_args_t& args) {
  stage = args.phase == MEP_PHASE_SEND ? EpStage::kCombining : EpStage::kIdle;
  if (args.phase != MEP_PHASE_SEND) current = nullptr;
  has_status = args.op_status == nullptr;
}

mep_result_t check_dispatch_call(int32_t device, const EpShape& shape, const EpCallState& state,
                                 const EpSideHandle& handle, const mep_dispatch_args_t& args) {
  if (args.recv_topk_idx != nullptr || args.recv_topk_weights != nullptr) {
    return fail(MEP_ERR_UNSUPPORTED,
                "recv_topk_idx and recv_topk_weights belong to high throughput, which is not "
                "built yet");
  }
  if (args.recv_scales != nullptr && !shape.has_scales()) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "recv_scales is given, but the wire type has no scales");
  }
  const struct {
    const void* memory;
    const char* name;
  } outputs[] = {{args.recv_x, "recv_x"},         {args.recv_scales, "recv_scales"},
                 {args.recv_count, "recv_count"}, {args.recv_count_host, "recv_count_host"},
                 {args.src_info, "src_info"},     {args.layout_range, "layout_range"},
                 {args.recv_total, "recv_total"}, {args.statistics, "statistics"},
                 {args.op_status, "op_status"}};
  for (const auto& output : outputs) {
    MEP_TRY(check_optional(device, output.memory, output.name));
  }
  if (args.phase == MEP_PHASE_RECEIVE) {
    if (state.stage == EpStage::kDispatching && state.current == &handle) return MEP_SUCCESS;
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "phase: there is no dispatch of this handle to receive; send one first");
  }
  MEP_TRY(check_dispatch_input(shape, args));
  if (args.num_tokens == 0) return MEP_SUCCESS;
  MEP_TRY(check_pointer(device, args.x, "x"));
  MEP_TRY(check_pointer(device, args.topk_idx, "topk_idx"));
  MEP_TRY(check_optional(device, args.topk_weights, "topk_weights"));
  return check_optional(device, args.x_scales, "x_scales");
}

mep_result_t check_combine_call(int32_t device, const EpShape& shape, const EpCallState& state,
                                const EpSideHandle& handle, const mep_combine_args_t& args) {
  if (args.phase == MEP_PHASE_RECEIVE &&
      (state.stage != EpStage::kCombining || state.current != &handle)) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "phase: there is no combine of this handle to receive; send one first");
  }
  if (args.phase != MEP_PHASE_RECEIVE && state.current != &handle) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "the buffer holds no dispatch of this handle: there was none, it was combined, or "
                "the buffer was used again");
  }
  if (args.phase != MEP_PHASE_RECEIVE && state.stage != EpStage::kReceived) {
    return fail(MEP_ERR_BUSY, "the handle's last %s has not finished its receive phase",
                state.stage == EpStage::kDispatching ? "dispatch" : "combine");
  }
  if (args.num_tokens != 0 && args.num_tokens != handle.tokens) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "num_tokens is %u; the handle's dispatch had %u tokens",
                args.num_tokens, handle.tokens);
  }
  if (args.phase != MEP_PHASE_SEND && args.out == nullptr && handle.tokens != 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "out is NULL, but there are %u tokens", handle.tokens);
  }
  if (args.out_stride_bytes != 0 && args.out_stride_bytes < shape.combine_row_bytes()) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "out_stride_bytes is %llu; a row has %zu",
                static_cast<unsigned long long>(args.out_stride_bytes), shape.combine_row_bytes());
  }
  MEP_TRY(check_optional(device, args.y, "y"));
  MEP_TRY(check_optional(device, args.weights, "weights"));
  MEP_TRY(check_optional(device, args.bias, "bias"));
  MEP_TRY(check_optional(device, args.out, "out"));
  return check_optional(device, args.op_status, "op_status");
}

mep_result_t fill_op_info(const mep_op_status_t& status, bool has_status, uint32_t ranks,
                          mep_op_info_t* info) {
  if (status.version == 0 || !has_status) {
    return fail(MEP_ERR_NOT_FOUND, status.version == 0
                                       ? "no dispatch or combine has finished on this buffer yet"
                                       : "the last operation on this buffer had an op_status: it "
                                         "is told there");
  }
  OperationRecord record{true, status.epoch, status.seq, status.result, true, {}, {}};
  record.contributors.assign(rank_words(ranks), 0);
  record.failed.assign(rank_words(ranks), 0);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const bool failed = rank / 64 < std::size(status.failed) &&
                        ((status.failed[rank / 64] >> (rank % 64)) & 1u) != 0;
    add_rank(failed ? &record.failed : &record.contributors, rank);
  }
  return record.fill(ranks, info);
}

}  // namespace mep

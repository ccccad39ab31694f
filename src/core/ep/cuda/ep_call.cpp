#include "core/ep/cuda/ep_call.hpp"

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

mep_result_t check_no_timeout(uint32_t timeout_ms) {
  if (timeout_ms == 0) return MEP_SUCCESS;
  return fail(MEP_ERR_UNSUPPORTED,
              "timeout_ms of a call is for host communicators; on a GPU set that of "
              "mep_ep_config_t, or mep_comm_set_timeout");
}

// Fields of both receiving structs that kernels do not carry.
template <class Receive>
mep_result_t check_host_fields(const Receive& receive) {
  MEP_TRY(check_no_timeout(receive.timeout_ms));
  if (receive.wait_ns == nullptr) return MEP_SUCCESS;
  return fail(MEP_ERR_UNSUPPORTED,
              "wait_ns is for host communicators; kernels do not measure it, give NULL");
}

// A GPU writes a range as one word.
mep_result_t check_ranges(const mep_range_t* ranges, const char* name) {
  if (reinterpret_cast<uintptr_t>(ranges) % sizeof(mep_range_t) == 0) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT, "%s does not lie on %zu bytes", name, sizeof(mep_range_t));
}

}  // namespace

mep_result_t EpCallState::busy() const {
  const char* const what = stage == EpStage::kDispatching ? "dispatch" : "combine";
  return fail(MEP_ERR_BUSY,
              "the buffer's last %s was not received: call mep_%s_receive with its handle first",
              what, what);
}

void EpCallState::note_dispatch(EpHandle& handle, const DispatchInput* send,
                                const DispatchOutput* receive) {
  if (send != nullptr) handle.tokens = send->num_tokens;
  current = &handle;
  const bool has_rows = receive != nullptr && !receive->counts_only;
  stage = has_rows ? EpStage::kReceived : EpStage::kDispatching;
  if (has_rows) has_status = receive->op_status == nullptr;
}

void EpCallState::note_combine(const CombineOutput* receive) {
  stage = receive != nullptr ? EpStage::kIdle : EpStage::kCombining;
  if (receive == nullptr) return;
  current = nullptr;
  has_status = receive->op_status == nullptr;
}

mep_result_t check_dispatch_call(int32_t device, const EpShape& shape, const EpCallState& state,
                                 const EpHandle& handle, const mep_ep_view_t& view,
                                 const DispatchInput* send, const DispatchOutput* receive) {
  if (receive != nullptr) {
    MEP_TRY(check_dispatch_output(shape, view, send, *receive));
    MEP_TRY(check_host_fields(*receive));
    if (receive->statistics_type == MEP_INT32) {
      return fail(MEP_ERR_UNSUPPORTED,
                  "statistics_type is MEP_INT32; on a GPU statistics are int64");
    }
    const struct {
      const void* memory;
      const char* name;
    } outputs[] = {{receive->recv_x, "recv_x"},
                   {receive->recv_scales, "recv_scales"},
                   {receive->recv_count, "recv_count"},
                   {receive->recv_count_host, "recv_count_host"},
                   {receive->src_info, "src_info"},
                   {receive->layout_range, "layout_range"},
                   {receive->recv_total, "recv_total"},
                   {receive->token_range, "token_range"},
                   {receive->statistics, "statistics"},
                   {receive->op_status, "op_status"},
                   {receive->recv_topk_idx, "recv_topk_idx"},
                   {receive->recv_topk_weights, "recv_topk_weights"}};
    for (const auto& output : outputs) {
      MEP_TRY(check_optional(device, output.memory, output.name));
    }
    MEP_TRY(check_ranges(receive->layout_range, "layout_range"));
    MEP_TRY(check_ranges(receive->token_range, "token_range"));
  }
  if (send == nullptr) {
    if (state.stage == EpStage::kDispatching && state.current == &handle) return MEP_SUCCESS;
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "there is no dispatch of this handle to receive; send one first");
  }
  MEP_TRY(check_no_timeout(send->timeout_ms));
  MEP_TRY(check_dispatch_input(shape, *send));
  if (send->num_tokens == 0 || !send->has_rows) return MEP_SUCCESS;
  MEP_TRY(check_pointer(device, send->x, "x"));
  MEP_TRY(check_optional(device, send->x_scales, "x_scales"));
  if (send->replays) return MEP_SUCCESS;
  MEP_TRY(check_pointer(device, send->topk_idx, "topk_idx"));
  return check_optional(device, send->topk_weights, "topk_weights");
}

mep_result_t check_combine_call(int32_t device, const EpShape& shape, const EpCallState& state,
                                const EpHandle& handle, const mep_ep_view_t& view,
                                const CombineInput* send, const CombineOutput* receive) {
  if (send == nullptr && (state.stage != EpStage::kCombining || state.current != &handle)) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "there is no combine of this handle to receive; send one first");
  }
  if (send != nullptr && state.current != &handle) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "the buffer holds no dispatch of this handle: there was none, it was combined, or "
                "the buffer was used again");
  }
  if (send != nullptr && state.stage != EpStage::kReceived) {
    return fail(MEP_ERR_BUSY, "the handle's last %s was not received",
                state.stage == EpStage::kDispatching ? "dispatch" : "combine");
  }
  MEP_TRY(check_combine_halves(shape, send != nullptr, receive != nullptr));
  if (send != nullptr) {
    MEP_TRY(check_no_timeout(send->timeout_ms));
    MEP_TRY(check_combine_input(shape, *send));
    MEP_TRY(check_pointer(device, send->y, "y"));
    MEP_TRY(check_optional(device, send->topk_weights, "topk_weights"));
  }
  if (receive == nullptr) return MEP_SUCCESS;
  if (receive->num_tokens != 0 && receive->num_tokens != handle.tokens) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "num_tokens is %u; the handle's dispatch had %u tokens",
                receive->num_tokens, handle.tokens);
  }
  MEP_TRY(check_combine_output(shape, view, handle.tokens, *receive));
  MEP_TRY(check_host_fields(*receive));
  MEP_TRY(check_optional(device, receive->weights, "weights"));
  MEP_TRY(check_optional(device, receive->bias, "bias"));
  MEP_TRY(check_optional(device, receive->token_bias, "token_bias"));
  MEP_TRY(check_optional(device, receive->token_bias2, "token_bias2"));
  MEP_TRY(check_optional(device, receive->out, "out"));
  MEP_TRY(check_optional(device, receive->recv_topk_weights, "recv_topk_weights"));
  return check_optional(device, receive->op_status, "op_status");
}

mep_result_t enqueue_layout(int32_t device, const device::DispatchLayout& layout, void* stream) {
  const DeviceScope scope(device);
  MEP_TRY(scope.check());
  MEP_TRY(check_stream_device(device, stream));
  if (layout.tokens != 0) {
    MEP_TRY(check_optional(device, layout.topk_idx, "topk_idx"));
    MEP_TRY(check_optional(device, layout.in_rank, "is_token_in_rank"));
  }
  MEP_TRY(check_optional(device, layout.per_rank, "tokens_per_rank"));
  MEP_TRY(check_optional(device, layout.per_expert, "tokens_per_expert"));
  return check_cuda(device::launch_dispatch_layout(layout, stream), "mep_dispatch_layout");
}

mep_result_t fill_op_info(const device::OpStatus& status, bool has_status, uint32_t ranks,
                          mep_op_info_t* info) {
  const mep_op_status_t& head = status.head;
  if (head.version == 0 || !has_status) {
    return fail(MEP_ERR_NOT_FOUND, head.version == 0
                                       ? "no dispatch or combine has finished on this buffer yet"
                                       : "the last operation on this buffer had an op_status: it "
                                         "is told there");
  }
  OperationRecord record;
  record.any = true;
  record.epoch = head.epoch;
  record.seq = head.seq;
  record.result = head.result;
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

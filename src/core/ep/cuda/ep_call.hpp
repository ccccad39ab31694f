// Calls of dispatch and combine on a GPU: in which order a buffer's calls may come, and
// what is checked before anything is enqueued. Owned by the user's thread.
#pragma once

#include <optional>

#include "core/ep/ep_arguments.hpp"
#include "core/ep/ep_buffers.hpp"
#include "kernels/cuda/device/op_status.hpp"
#include "kernels/cuda/ep/dispatch_layout.hpp"
#include "protocol/ep_call.hpp"

namespace mep {

enum class EpStage : uint8_t { kIdle, kDispatching, kReceived, kCombining };

// The state of one buffer, by the calls made; replays of graphs are not seen.
struct EpCallState {
  EpStage stage = EpStage::kIdle;
  const EpHandle* current = nullptr;  // whose dispatch the buffer holds
  bool has_status = false;            // the last that was received left its status with the library
  // An early call's input, whose rows are sent when they are received.
  std::optional<DispatchInput> late;

  // A dispatch or combine was sent and not received.
  bool is_sent() const { return stage == EpStage::kDispatching || stage == EpStage::kCombining; }
  [[nodiscard]] mep_result_t busy() const;
  void note_dispatch(EpHandle& handle, const DispatchInput* send, const DispatchOutput* receive);
  void note_combine(const CombineOutput* receive);
  void reset() {
    stage = EpStage::kIdle;
    current = nullptr;
    late.reset();
  }
};

// view: of the buffer.
[[nodiscard]] mep_result_t check_dispatch_call(int32_t device, const EpShape& shape,
                                               const EpCallState& state, const EpHandle& handle,
                                               const mep_ep_view_t& view, const DispatchInput* send,
                                               const DispatchOutput* receive);
[[nodiscard]] mep_result_t check_combine_call(int32_t device, const EpShape& shape,
                                              const EpCallState& state, const EpHandle& handle,
                                              const mep_ep_view_t& view, const CombineInput* send,
                                              const CombineOutput* receive);

// GpuBackend::count_layout(), on either reach.
[[nodiscard]] mep_result_t enqueue_layout(int32_t device, const device::DispatchLayout& layout,
                                          void* stream);

// mep_ep_last_op, from the status that the operation left.
[[nodiscard]] mep_result_t fill_op_info(const device::OpStatus& status, bool has_status,
                                        uint32_t ranks, mep_op_info_t* info);

}  // namespace mep

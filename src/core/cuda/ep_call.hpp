// What calls of dispatch and combine on a GPU share, mapped or staged: in which order a buffer's calls may
// come, and what is checked before anything is enqueued. The user's thread's.
#pragma once

#include "core/ep/ep_device.hpp"

namespace mep {

enum class EpStage : uint8_t { kIdle, kDispatching, kReceived, kCombining };

// Of one buffer, by the calls made; what graphs replay is not seen.
struct EpCallState {
  EpStage stage = EpStage::kIdle;
  const EpSideHandle* current = nullptr;  // whose dispatch the buffer holds
  bool has_status = false;                // the last operation left its status with the library

  // A send phase was called and its receive phase was not.
  bool is_sent() const { return stage == EpStage::kDispatching || stage == EpStage::kCombining; }
  [[nodiscard]] mep_result_t busy() const;
  void note_dispatch(EpSideHandle& handle, const mep_dispatch_args_t& args);
  void note_combine(const mep_combine_args_t& args);
  void reset() {
    stage = EpStage::kIdle;
    current = nullptr;
  }
};

[[nodiscard]] mep_result_t check_dispatch_call(int32_t device, const EpShape& shape,
                                               const EpCallState& state, const EpSideHandle& handle,
                                               const mep_dispatch_args_t& args);
[[nodiscard]] mep_result_t check_combine_call(int32_t device, const EpShape& shape,
                                              const EpCallState& state, const EpSideHandle& handle,
                                              const mep_combine_args_t& args);

// mep_ep_last_op, from the status that the operation left.
[[nodiscard]] mep_result_t fill_op_info(const mep_op_status_t& status, bool has_status,
                                        uint32_t ranks, mep_op_info_t* info);

}  // namespace mep

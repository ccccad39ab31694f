// Checks of the arguments of dispatch and combine before anything begins, the same on the host and on GPUs.
#pragma once

#include "core/ep/ep_config.hpp"
#include "mep.h"
#include "protocol/ep_call.hpp"

namespace mep {

[[nodiscard]] mep_result_t check_topk_idx_type(mep_dtype_t type);
[[nodiscard]] mep_result_t check_dispatch_input(const EpShape& shape, const DispatchInput& input);
// For MEP_DISPATCH_REPLAY of `tokens` in `epoch`; the handle's dispatch had `routed_tokens`, in `routed_epoch` (0: there
// was none).
[[nodiscard]] mep_result_t check_replay(uint64_t routed_epoch, uint32_t routed_tokens,
                                        uint64_t epoch, uint32_t tokens);
// view: of the buffer. input: of the same call, or null.
[[nodiscard]] mep_result_t check_dispatch_output(const EpShape& shape, const mep_ep_view_t& view,
                                                 const DispatchInput* input,
                                                 const DispatchOutput& output);
[[nodiscard]] mep_result_t check_combine_halves(const EpShape& shape, bool sends, bool receives);
[[nodiscard]] mep_result_t check_combine_input(const EpShape& shape, const CombineInput& input);
// view: of the buffer. tokens: of the handle's dispatch.
[[nodiscard]] mep_result_t check_combine_output(const EpShape& shape, const mep_ep_view_t& view,
                                                uint32_t tokens, const CombineOutput& output);

}  // namespace mep

// Allreduce and reduce of small messages, and of two ranks: contributions are exchanged whole, and every rank adds them up.
#include "kernels/cuda/coll/allreduce.cuh"

namespace mep::device {
namespace {

// Always in one step: what is exchanged whole fits into a slot.
template <typename Type>
__device__ void one_shot(CollState* state, const CollCall& call, CollFrame* frame) {
  const CollLayout& layout = state->layout;
  const uint64_t tag = coll_tag(*frame, frame->step);
  const uint64_t row = layout.exchange_row(frame->step & 1, blockIdx.x);
  const uint64_t slots = layout.slot(frame->step, 0);
  const uint64_t own_slot = slots + state->rank * layout.slot_bytes;
  const uint64_t part = part_of_cta(call.bytes);
  const uint64_t begin = part * blockIdx.x;
  const uint64_t end = begin + part < call.bytes ? begin + part : call.bytes;
  const auto* send = static_cast<const uint8_t*>(call.send);
  auto* receive = static_cast<uint8_t*>(call.receive);
  const uint64_t slot_bytes = layout.slot_bytes;
  test_delay(state, *frame, 0);
  move_groups_from_user(whole_team(), send, 0, call.bytes, begin, end, [&](const auto& group) {
    for (uint32_t member = 0; member < frame->members; ++member) {
      group.store_to(frame->window[frame->member[member]] + own_slot);
    }
  });
  test_delay(state, *frame, 1);
  signal_members(state, *frame, row, tag);
  if (!wait_members(state, frame, row, layout.scatter_row(blockIdx.x), tag)) return;
  if (!keeps_result(state, call)) return;
  test_delay(state, *frame, 2);
  const auto from = [&](uint32_t source) {
    return window_of(*frame, source) + slots + source * slot_bytes;
  };
  lay_out_reduction(whole_team(), frame, from, receive);
  reduce_range<Type>(whole_team(), *frame, call.op, begin, end, call.bytes);
}

template <typename Type>
__global__ void __launch_bounds__(kCollThreads, 1)
    one_shot_entry(CollState* state, const CollCall call) {
  run_coll(
      state, call, [&](CollFrame* frame) { one_shot<Type>(state, call, frame); },
      [](const CollFrame&) { return uint64_t{1}; });
}

}  // namespace

CollKernel one_shot_kernel(mep_dtype_t dtype) {
  switch (dtype) {
#define MEP_KERNEL_OF(name, ...) \
  case name:                     \
    return one_shot_entry<__VA_ARGS__>;
    MEP_REDUCE_TYPES(MEP_KERNEL_OF)
#undef MEP_KERNEL_OF
    default:
      return nullptr;
  }
}

}  // namespace mep::device

// Allreduce and reduce of large messages: every rank owns a slice of each CTA's piece of the message, adds up the
// contributions to it, and gives the result to all. Each byte crosses to its owner once and back once.
#include "kernels/cuda/coll/allreduce.cuh"

namespace mep::device {
namespace {

// How the message is cut: in each step a CTA handles members * slice bytes, one after the other.
struct Cut {
  uint64_t slice;
  uint64_t tile;  // of one CTA
  uint64_t step;  // of all CTAs
  uint64_t steps;
  __device__ Cut(const CollLayout& layout, uint64_t bytes, uint32_t members) {
    const uint64_t shares = uint64_t{gridDim.x} * members;
    const uint64_t even = ((bytes + shares - 1) / shares + 15) / 16 * 16;
    slice = even < layout.piece_bytes ? even : layout.piece_bytes;
    tile = slice * members;
    step = tile * gridDim.x;
    steps = step == 0 ? 1 : (bytes + step - 1) / step;
  }
};

// Bytes of the message that lie in [begin, begin + slice).
__device__ uint64_t part_length(uint64_t begin, uint64_t slice, uint64_t bytes) {
  if (begin >= bytes) return 0;
  return bytes - begin < slice ? bytes - begin : slice;
}

template <typename Type>
__device__ void two_shot(CollState* state, const CollCall& call, CollFrame* frame) {
  const CollLayout layout = state->layout;
  const Cut cut(layout, call.bytes, frame->members);
  const uint32_t cta = blockIdx.x;
  const auto* send = static_cast<const uint8_t*>(call.send);
  auto* receive = static_cast<uint8_t*>(call.receive);
  const uint32_t rank = state->rank;
  const bool keeps = keeps_result(state, call);
  for (uint64_t step = 0; step < cut.steps; ++step) {
    const uint64_t tag = coll_tag(*frame, frame->step + step);
    const uint64_t base = step * cut.step + cta * cut.tile;
    const uint64_t other = layout.exchange_row((frame->step + step) & 1, cta);
    test_delay(state, *frame, 0);
    const auto scatter = [&](uint32_t member) {
      const uint64_t begin = base + member * cut.slice;
      const uint64_t length = part_length(begin, cut.slice, call.bytes);
      uint8_t* to = frame->window[frame->member[member]] + layout.scatter_piece(rank, cta);
      move_from_user(whole_team(), send, begin, call.bytes, 0, length,
                     [&](uint64_t i, const uint4& pack) { store_window(to + i, pack); });
    };
    // This rank's own slice stays where it is.
    for (uint32_t k = 1; k < frame->members; ++k) scatter(frame->cursor_after(k));
    test_delay(state, *frame, 1);
    signal_members(state, *frame, layout.scatter_row(cta), tag);
    if (!wait_members(state, frame, layout.scatter_row(cta), other, tag)) return;
    test_delay(state, *frame, 2);
    const uint64_t result = layout.result_piece(rank, cta);
    const uint64_t own = base + frame->cursor * cut.slice;
    const uint64_t own_length = part_length(own, cut.slice, call.bytes);
    const auto from = [&](uint32_t source) {
      if (source == rank) return send + own;
      return frame->own + layout.scatter_piece(source, cta);
    };
    const auto to = [&](uint32_t number) {
      return frame->window[frame->member_after(number + 1)] + result;
    };
    lay_out_reduction(whole_team(), frame, from, keeps ? receive + own : nullptr,
                      frame->members - 1, to);
    reduce_range<Type>(whole_team(), *frame, call.op, 0, own_length, call.bytes - own);
    test_delay(state, *frame, 3);
    signal_members(state, *frame, layout.result_row(cta), tag);
    if (!wait_members(state, frame, layout.result_row(cta), other, tag)) return;
    for (uint32_t k = 1; keeps && k < frame->members; ++k) {
      const uint32_t member = frame->cursor_after(k);
      const uint32_t owner = frame->member[member];
      const uint64_t begin = base + member * cut.slice;
      const uint64_t length = part_length(begin, cut.slice, call.bytes);
      const uint8_t* from = window_of(*frame, owner) + layout.result_piece(owner, cta);
      move_to_user(whole_team(), from, receive, begin, call.bytes, 0, length);
    }
    data_sync();
  }
}

template <typename Type>
__global__ void __launch_bounds__(kCollThreads, 1)
    two_shot_entry(CollState* state, const CollCall call) {
  run_coll(
      state, call, [&](CollFrame* frame) { two_shot<Type>(state, call, frame); },
      [&](const CollFrame& frame) { return Cut(state->layout, call.bytes, frame.members).steps; });
}

}  // namespace

CollKernel two_shot_kernel(mep_dtype_t dtype) {
  switch (dtype) {
#define MEP_KERNEL_OF(name, ...) \
  case name:                     \
    return two_shot_entry<__VA_ARGS__>;
    MEP_REDUCE_TYPES(MEP_KERNEL_OF)
#undef MEP_KERNEL_OF
    default:
      return nullptr;
  }
}

}  // namespace mep::device

// Long reduces of three ranks or more, in slices: the workers add up, in rank order.
#include "kernels/cuda/coll/allreduce.cuh"
#include "kernels/cuda/coll/slices.cuh"

namespace mep::device {
namespace {

template <typename Type>
__device__ void reduce_slices(CollState* state, const CollCall& call, CollFrame* frame) {
  const CollSlices slices(state, call, *frame);
  const bool is_root = call.root == state->rank;
  const auto* send = static_cast<const uint8_t*>(call.send);
  auto* receive = static_cast<uint8_t*>(call.receive);
  const uint32_t rank = state->rank;
  const uint64_t slot_bytes = state->layout.slot_bytes;

  const auto give = [&](const Team& team, const SlicedChunk& chunk) {
    const uint64_t slot = state->layout.slot(chunk.step, state->rank);
    for (uint32_t k = 1; k < frame->members; ++k) {
      const uint32_t cursor = frame->cursor_after(k);
      if (!slices.is_worker(cursor)) continue;
      const SlicePart part = slices.part(chunk, slices.worker_of(cursor));
      uint8_t* to = state->windows[frame->member[cursor]] + slot;
      move_from_user(team, send, part.at, call.bytes, part.begin, part.end,
                     [&](uint64_t i, const uint4& pack) { store_window(to + i, pack); });
    }
  };
  const auto pass_on = [&](const Team& team, const SlicedChunk& chunk) {
    if (!slices.is_worker(frame->cursor)) return;
    const SlicePart part = slices.part(chunk, slices.worker_of(frame->cursor));
    uint8_t* to = state->windows[call.root] + state->layout.slot(chunk.step + 1, state->rank);
    const uint64_t slot = state->layout.slot(chunk.step, 0);
    const auto from = [&](uint32_t source) {
      if (source == rank) return send + part.at;
      return frame->own + slot + source * slot_bytes;
    };
    lay_out_reduction(team, frame, from, nullptr, 1, [&](uint32_t) { return to; });
    reduce_range<Type>(team, *frame, call.op, part.begin, part.end, call.bytes - part.at);
  };
  const auto take = [&](const Team& team, const SlicedChunk& chunk) {
    for (uint32_t k = 0; is_root && k < slices.workers(); ++k) {
      const SlicePart part = slices.part(chunk, k);
      const uint32_t worker = frame->member[slices.cursor_of(k)];
      const uint8_t* from = frame->own + state->layout.slot(chunk.step + 1, worker);
      move_to_user(team, from, receive, part.at, call.bytes, part.begin, part.end);
    }
  };
  exchange_slices(state, slices, frame, is_root ? kHalfSenders : kMostSenders, give, pass_on, take);
}

template <typename Type>
__global__ void __launch_bounds__(kCollThreads, 1)
    long_reduce_entry(CollState* state, const CollCall call) {
  run_coll(
      state, call, [&](CollFrame* frame) { reduce_slices<Type>(state, call, frame); },
      [&](const CollFrame& frame) { return CollSlices(state, call, frame).steps(); });
}

}  // namespace

CollKernel long_reduce_kernel(mep_dtype_t dtype) {
  switch (dtype) {
#define MEP_KERNEL_OF(name, ...) \
  case name:                     \
    return long_reduce_entry<__VA_ARGS__>;
    MEP_REDUCE_TYPES(MEP_KERNEL_OF)
#undef MEP_KERNEL_OF
    default:
      return nullptr;
  }
}

}  // namespace mep::device

// Long broadcasts of three ranks or more, in slices.
#include "kernels/cuda/coll/allreduce.cuh"
#include "kernels/cuda/coll/slices.cuh"

namespace mep::device {
namespace {

__device__ void broadcast_slices(CollState* state, const CollCall& call, CollFrame* frame) {
  const CollSlices slices(state, call, *frame);
  const bool is_root = call.root == state->rank;
  const auto* send = static_cast<const uint8_t*>(call.send);
  auto* receive = static_cast<uint8_t*>(call.receive);
  const auto slot_here = [&](uint64_t step, uint32_t source) {
    return frame->own + state->layout.slot(step, source);
  };

  const auto give = [&](const Team& team, const SlicedChunk& chunk) {
    if (!is_root || frame->members == 1) return;
    // CTAs begin with different workers, or the links to one would have to carry all.
    for (uint32_t turn = 0; turn < slices.workers(); ++turn) {
      const uint32_t k = (blockIdx.x + turn) % slices.workers();
      const SlicePart part = slices.part(chunk, k);
      uint8_t* to = state->windows[frame->member[slices.cursor_of(k)]] +
                    state->layout.slot(chunk.step, state->rank);
      move_from_user(team, send, part.at, call.bytes, part.begin, part.end,
                     [&](uint64_t i, const uint4& pack) { store_window(to + i, pack); });
    }
  };
  const auto pass_on = [&](const Team& team, const SlicedChunk& chunk) {
    if (is_root) return;
    const uint32_t self = slices.worker_of(frame->cursor);
    const SlicePart part = slices.part(chunk, self);
    const uint64_t slot = state->layout.slot(chunk.step + 1, state->rank);
    const bool aligned = is_aligned(receive);
    const auto store = [&](const auto& group) {
      for (uint32_t k = 1; k < slices.workers(); ++k) {
        const uint32_t worker =
            self + k < slices.workers() ? self + k : self + k - slices.workers();
        group.store_to(frame->window[frame->member[slices.cursor_of(worker)]] + slot);
      }
      group.store([&](uint64_t i, const uint4& pack) {
        store_user(receive, part.at + i, call.bytes, aligned, pack);
      });
    };
    const uint8_t* from = slot_here(chunk.step, call.root);
    move_groups(
        team, part.begin, part.end, [&](uint64_t i) { return load_window(from + i); }, store);
  };
  const auto take = [&](const Team& team, const SlicedChunk& chunk) {
    for (uint32_t k = 0; k < slices.workers(); ++k) {
      const SlicePart part = slices.part(chunk, k);
      if (is_root) {
        move_own(team, send, receive, part.at, call.bytes, part.begin, part.end);
        continue;
      }
      const uint32_t worker = frame->member[slices.cursor_of(k)];
      if (worker == state->rank) continue;
      move_to_user(team, slot_here(chunk.step + 1, worker), receive, part.at, call.bytes,
                   part.begin, part.end);
    }
  };
  const uint32_t senders = is_root && send == receive ? kMostSenders : kHalfSenders;
  exchange_slices(state, slices, frame, senders, give, pass_on, take);
}

__global__ void __launch_bounds__(kCollThreads, 1)
    long_broadcast_entry(CollState* state, const CollCall call) {
  run_coll(
      state, call, [&](CollFrame* frame) { broadcast_slices(state, call, frame); },
      [&](const CollFrame& frame) { return CollSlices(state, call, frame).steps(); });
}

}  // namespace

CollKernel long_broadcast_kernel() {
  return long_broadcast_entry;
}

}  // namespace mep::device

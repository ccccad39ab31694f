// Barrier, broadcast and allgather: every rank that has something puts it into its slot in all windows,
// signals, and copies what the others have put into its own.
#include "kernels/cuda/coll_allreduce.cuh"
#include "kernels/cuda/coll_chunks.cuh"

namespace mep::device {
namespace {

// What the others have given, of an allgather.
__device__ void gather(const CollState* state, const CollCall& call, const CollFrame& frame,
                       const CollChunk& chunk) {
  auto* receive = static_cast<uint8_t*>(call.receive);
  const auto from = [&](uint32_t source) {
    return window_of(frame, source) + state->layout.slot(chunk.step, source);
  };
  if (chunk.begin >= chunk.end) return;
  const uint64_t packs = (chunk.end - chunk.begin + 15) / 16;
  if (packs * (frame.members - 1) > kDataThreads) {
    for (uint32_t k = 1; k < frame.members; ++k) {
      const uint32_t source = frame.member_after(k);
      move_to_user(from(source), receive + source * call.bytes, chunk.at, call.bytes, chunk.begin,
                   chunk.end);
    }
    return;
  }
  // Little of many: all of it at once, not one source after the other.
  const uint32_t k = 1 + threadIdx.x / static_cast<uint32_t>(packs);
  if (k >= frame.members) return;
  const uint64_t i = chunk.begin + threadIdx.x % static_cast<uint32_t>(packs) * 16;
  const uint32_t source = frame.member_after(k);
  uint8_t* to = receive + source * call.bytes;
  store_user(to, chunk.at + i, call.bytes, is_aligned(to), load_window(from(source) + i));
}

__device__ void exchange(CollState* state, const CollCall& call, CollFrame* frame) {
  const auto* send = static_cast<const uint8_t*>(call.send);
  auto* receive = static_cast<uint8_t*>(call.receive);
  const bool gives = call.kind == Collective::k_allgather ||
                     (call.kind == Collective::k_broadcast && call.root == state->rank);
  // What this rank gives itself it copies from one buffer to the other.
  const auto own = [&](const CollChunk& chunk) {
    if (!gives) return;
    const uint32_t place = call.kind == Collective::k_allgather ? state->rank : 0;
    move_own(send, receive + place * call.bytes, chunk.at, call.bytes, chunk.begin, chunk.end);
  };
  exchange_chunks<PushTo::kOthers>(state, call, frame, gives, own, [&](const CollChunk& chunk) {
    if (call.kind == Collective::k_allgather) gather(state, call, *frame, chunk);
    if (call.kind != Collective::k_broadcast || gives) return;
    const uint8_t* from = window_of(*frame, call.root) + state->layout.slot(chunk.step, call.root);
    move_to_user(from, receive, chunk.at, call.bytes, chunk.begin, chunk.end);
  });
}

__global__ void __launch_bounds__(kCollThreads)
    exchange_entry(CollState* state, const CollCall call) {
  run_coll(
      state, call, [&](CollFrame* frame) { exchange(state, call, frame); },
      [&](const CollFrame&) { return chunk_count(state->layout, call.bytes); });
}

}  // namespace

CollKernel exchange_kernel() {
  return exchange_entry;
}

}  // namespace mep::device

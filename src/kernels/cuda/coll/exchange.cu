// Barrier, broadcast and allgather: every rank that has something puts it into its slot in all windows,
// signals, and copies what the others have put into its own.
#include "kernels/cuda/coll/allreduce.cuh"
#include "kernels/cuda/coll/chunks.cuh"

namespace mep::device {
namespace {

__device__ void exchange(CollState* state, const CollCall& call, CollFrame* frame) {
  const auto* send = static_cast<const uint8_t*>(call.send);
  auto* receive = static_cast<uint8_t*>(call.receive);
  const bool gives = call.kind == Collective::k_allgather ||
                     (call.kind == Collective::k_broadcast && call.root == state->rank);
  // This rank copies what it gives itself from one buffer to the other.
  const auto own = [&](const Team& team, const CollChunk& chunk) {
    if (!gives) return;
    const uint32_t place = call.kind == Collective::k_allgather ? state->rank : 0;
    move_own(team, send, receive + place * call.bytes, chunk.at, call.bytes, chunk.begin,
             chunk.end);
  };
  const auto push = [&](const Team& team, const CollChunk& chunk) {
    if (gives) push_to_others(team, state, *frame, call, chunk);
  };
  const auto use = [&](const Team& team, const CollChunk& chunk) {
    if (call.kind == Collective::k_allgather) take_blocks(team, state, *frame, call, chunk);
    if (call.kind != Collective::k_broadcast || gives) return;
    const uint8_t* from = window_of(*frame, call.root) + state->layout.slot(chunk.step, call.root);
    move_to_user(team, from, receive, chunk.at, call.bytes, chunk.begin, chunk.end);
  };
  const bool is_read = call.kind == Collective::k_broadcast;
  if (is_read && !meet_with_offers(state, call, frame, gives ? call.bytes : 0)) return;
  if (frame->pulls) {
    const CollChunk whole = whole_block(call.bytes);
    if (!gives) pull_block(whole_team(), *frame, call, whole, call.root, 0, receive);
    own(whole_team(), whole);
    confirm_blocks(state, frame, frame->step);
    return;
  }
  const bool copies = call.kind == Collective::k_allgather || send != receive;
  const uint32_t senders = !gives ? kFewSenders : (copies ? kHalfSenders : kMostSenders);
  (void)exchange_chunks(state, call, frame, senders, push, own, use);
}

__global__ void __launch_bounds__(kCollThreads, 1)
    exchange_entry(CollState* state, const CollCall call) {
  run_coll(
      state, call, [&](CollFrame* frame) { exchange(state, call, frame); },
      [&](const CollFrame& frame) {
        return frame.pulls ? 1 : chunk_count(state->layout, call.bytes);
      });
}

}  // namespace

CollKernel exchange_kernel() {
  return exchange_entry;
}

}  // namespace mep::device

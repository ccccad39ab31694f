// Gather, scatter and alltoall: a rank puts each block into its slot in the window of the rank that gets it, signals,
// and copies what the others have put into its own.
#include "kernels/cuda/coll/allreduce.cuh"
#include "kernels/cuda/coll/chunks.cuh"

namespace mep::device {
namespace {

__device__ void blocks(CollState* state, const CollCall& call, CollFrame* frame) {
  const bool is_root = call.root == state->rank;
  // A rank that gives has a block for each, one that gets has a block of each; else one.
  const bool gives_each = call.kind != Collective::k_gather;
  const bool gets_of_each = call.kind != Collective::k_scatter;
  const bool gives = is_root || gets_of_each;
  const bool gets = is_root || gives_each;
  const auto* send = static_cast<const uint8_t*>(call.send);
  auto* receive = static_cast<uint8_t*>(call.receive);
  const auto push = [&](const Team& team, const CollChunk& chunk) {
    if (!gives) return;
    if (gives_each) {
      push_blocks(team, state, *frame, call, chunk, 1);
    } else if (!is_root) {
      push_block(team, state, call, chunk, send, call.root);
    }
  };
  const auto own = [&](const Team& team, const CollChunk& chunk) {
    if (!gives || !gets) return;
    const uint64_t block = state->rank * call.bytes;
    move_own(team, send + (gives_each ? block : 0), receive + (gets_of_each ? block : 0), chunk.at,
             call.bytes, chunk.begin, chunk.end);
  };
  const auto use = [&](const Team& team, const CollChunk& chunk) {
    if (!gets) return;
    if (gets_of_each) {
      take_blocks(team, state, *frame, call, chunk);
    } else if (!is_root) {
      move_to_user(team, frame->own + state->layout.slot(chunk.step, call.root), receive, chunk.at,
                   call.bytes, chunk.begin, chunk.end);
    }
  };
  const uint64_t given = call.bytes * state->layout.ranks;
  const bool is_alltoall = call.kind == Collective::k_alltoall;
  if (is_alltoall && !meet_with_offers(state, call, frame, given)) return;
  if (frame->pulls) {
    const CollChunk whole = whole_block(call.bytes);
    pull_blocks(whole_team(), *frame, call, whole, state->rank * call.bytes);
    own(whole_team(), whole);
    confirm_blocks(state, frame, frame->step);
    return;
  }
  const uint32_t senders = !gives ? kFewSenders : (gets ? kHalfSenders : kMostSenders);
  if (exchange_chunks(state, call, frame, senders, push, own, use) &&
      state->layout.confirms_blocks()) {
    confirm_blocks(state, frame, frame->step + chunk_count(state->layout, call.bytes));
  }
}

__global__ void __launch_bounds__(kCollThreads, 1)
    blocks_entry(CollState* state, const CollCall call) {
  run_coll(
      state, call, [&](CollFrame* frame) { blocks(state, call, frame); },
      [&](const CollFrame& frame) { return block_steps(state, frame, call.bytes); });
}

}  // namespace

CollKernel blocks_kernel() {
  return blocks_entry;
}

}  // namespace mep::device

// Reduce-scatter, and long reduces of two ranks: a rank puts each block into its slot in the window of the rank that gets
// it, signals, and reduces what lies in its own window with what it gives itself.
#include "kernels/cuda/coll/allreduce.cuh"
#include "kernels/cuda/coll/chunks.cuh"

namespace mep::device {
namespace {

template <typename Type>
__device__ void reduce_blocks(CollState* state, const CollCall& call, CollFrame* frame) {
  const bool scatters = call.kind == Collective::k_reduce_scatter;
  const bool gets = scatters || call.root == state->rank;
  const auto* send = static_cast<const uint8_t*>(call.send);
  auto* receive = static_cast<uint8_t*>(call.receive);
  const uint64_t block = scatters ? state->rank * call.bytes : 0;
  const uint8_t* own = send + block;
  const uint32_t rank = state->rank;
  const uint64_t slot_bytes = state->layout.slot_bytes;
  const auto push = [&](const Team& team, const CollChunk& chunk) {
    if (scatters) push_blocks(team, state, *frame, call, chunk, 1);
    if (!gets) push_block(team, state, call, chunk, send, call.root);
  };
  const auto use = [&](const Team& team, const CollChunk& chunk) {
    if (!gets) return;
    const uint64_t slot = state->layout.slot(chunk.step, 0);
    const auto from = [&](uint32_t source) {
      if (source == rank) return own + chunk.at;
      if (frame->pulls) return frame->source[source] + block + chunk.at;
      return frame->own + slot + source * slot_bytes;
    };
    lay_out_reduction(team, frame, from, receive + chunk.at);
    reduce_range<Type>(team, *frame, call.op, chunk.begin, chunk.end, call.bytes - chunk.at);
  };
  const uint64_t given = call.bytes * state->layout.ranks;
  if (scatters && !meet_with_offers(state, call, frame, given)) return;
  if (frame->pulls) {
    use(whole_team(), whole_block(call.bytes));
    confirm_blocks(state, frame, frame->step);
    return;
  }
  const uint32_t senders = !gets ? kMostSenders : (scatters ? kThirdSenders : kFewSenders);
  if (exchange_chunks(
          state, call, frame, senders, push, [](const Team&, const CollChunk&) {}, use) &&
      scatters && state->layout.confirms_blocks()) {
    confirm_blocks(state, frame, frame->step + chunk_count(state->layout, call.bytes));
  }
}

template <typename Type>
__global__ void __launch_bounds__(kCollThreads, 1)
    reduce_scatter_entry(CollState* state, const CollCall call) {
  run_coll(
      state, call, [&](CollFrame* frame) { reduce_blocks<Type>(state, call, frame); },
      [&](const CollFrame& frame) {
        return call.kind == Collective::k_reduce_scatter ? block_steps(state, frame, call.bytes)
                                                         : chunk_count(state->layout, call.bytes);
      });
}

}  // namespace

CollKernel reduce_scatter_kernel(mep_dtype_t dtype) {
  switch (dtype) {
#define MEP_KERNEL_OF(name, ...) \
  case name:                     \
    return reduce_scatter_entry<__VA_ARGS__>;
    MEP_REDUCE_TYPES(MEP_KERNEL_OF)
#undef MEP_KERNEL_OF
    default:
      return nullptr;
  }
}

}  // namespace mep::device

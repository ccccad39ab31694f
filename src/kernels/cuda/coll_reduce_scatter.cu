// Reduce-scatter: a rank puts each block into its slot in the window of the rank that gets it, its own too, signals,
// and reduces what lies in its own window.
#include "kernels/cuda/coll_allreduce.cuh"
#include "kernels/cuda/coll_chunks.cuh"

namespace mep::device {
namespace {

template <typename Type>
__device__ void reduce_scatter(CollState* state, const CollCall& call, CollFrame* frame) {
  auto* receive = static_cast<uint8_t*>(call.receive);
  const bool receive_aligned = is_aligned(receive);
  const auto push = [&](const CollChunk& chunk) { push_blocks(state, *frame, call, chunk, 0); };
  const auto use = [&](const CollChunk& chunk) {
    for (uint64_t i = chunk.begin + threadIdx.x * 16; i < chunk.end; i += kPackStride) {
      const uint4 total = reduce_pack<Type>(*frame, call.op, [&](uint32_t source) {
        return frame->own + state->layout.slot(chunk.step, source) + i;
      });
      store_user(receive, chunk.at + i, call.bytes, receive_aligned, total);
    }
  };
  if (exchange_chunks(
          state, call, frame, push, [](const CollChunk&) {}, use)) {
    confirm_blocks(state, frame, frame->step + chunk_count(state->layout, call.bytes));
  }
}

template <typename Type>
__global__ void __launch_bounds__(kCollThreads)
    reduce_scatter_entry(CollState* state, const CollCall call) {
  run_coll(
      state, call, [&](CollFrame* frame) { reduce_scatter<Type>(state, call, frame); },
      [&](const CollFrame&) { return block_steps(state->layout, call.bytes); });
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

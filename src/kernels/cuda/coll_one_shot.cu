// Allreduce of small messages, and of two ranks: contributions are exchanged whole, and every rank adds them up.
#include "kernels/cuda/coll_allreduce.cuh"
#include "kernels/cuda/coll_chunks.cuh"

namespace mep::device {
namespace {

template <typename Type>
__device__ void one_shot(CollState* state, const CollCall& call, CollFrame* frame) {
  auto* receive = static_cast<uint8_t*>(call.receive);
  const bool receive_aligned = is_aligned(receive);
  const auto nothing = [](const CollChunk&) {};
  exchange_chunks<PushTo::kAll>(state, call, frame, true, nothing, [&](const CollChunk& chunk) {
    for (uint64_t i = chunk.begin + threadIdx.x * 16; i < chunk.end; i += kPackStride) {
      const uint4 total = reduce_pack<Type>(*frame, call.op, [&](uint32_t source) {
        return window_of(*frame, source) + state->layout.slot(chunk.step, source) + i;
      });
      store_user(receive, chunk.at + i, call.bytes, receive_aligned, total);
    }
  });
}

template <typename Type>
__global__ void __launch_bounds__(kCollThreads)
    one_shot_entry(CollState* state, const CollCall call) {
  run_coll(
      state, call, [&](CollFrame* frame) { one_shot<Type>(state, call, frame); },
      [&](const CollFrame&) { return chunk_count(state->layout, call.bytes); });
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

// Short reductions, in packets: of allreduce and reduce contributions are exchanged whole, of reduce-scatter block by
// block, and every rank adds up what it gets. Between two ranks a reduce goes to the root alone.
#include "kernels/cuda/coll/allreduce.cuh"
#include "kernels/cuda/coll/packets.cuh"

namespace mep::device {
namespace {

// Sources in rank order; `mine` is what this rank gives.
template <typename Type>
__device__ bool reduce_packets(const PacketStep& step, const CollFrame& frame, mep_op_t op,
                               uint64_t at, const uint4& mine, uint4* result) {
  Pack<Type> total;
#pragma unroll 1
  for (uint32_t first = 0; first < frame.members; first += 2) {
    const bool has_second = first + 1 < frame.members;
    const PacketPair looks[2] = {step.look(frame.member[first], at),
                                 step.look(frame.member[has_second ? first + 1 : first], at)};
#pragma unroll 1
    for (uint32_t i = 0; i < (has_second ? 2u : 1u); ++i) {
      uint4 next = mine;
      const bool is_own = first + i == frame.cursor;
      if (!is_own && !step.take(i == 0 ? looks[0] : looks[1], frame.member[first + i], at, &next)) {
        return false;
      }
      if (first + i == 0) {
        total = Pack<Type>::load(next);
      } else {
        total.add(op, next);
      }
    }
  }
  *result = total.store(op, frame.members);
  return true;
}

template <typename Type>
__device__ void short_reduce(CollState* state, const CollCall& call, CollFrame* frame) {
  const PacketStep step(state, frame);
  const auto* send = static_cast<const uint8_t*>(call.send);
  auto* receive = static_cast<uint8_t*>(call.receive);
  const bool send_aligned = is_aligned(send);
  const bool scatters = call.kind == Collective::k_reduce_scatter;
  const bool one_way = is_one_way(call, state->layout);
  const bool is_root = call.root == state->rank;
  const uint8_t* own = send + (scatters ? state->rank * call.bytes : 0);
  const bool own_aligned = is_aligned(own);
  const bool receive_aligned = is_aligned(receive);
  const uint64_t first = first_pack();
  const uint64_t stride = gridDim.x * kPackStride;
  test_delay(state, *frame, 0);
  for (uint32_t k = 1; scatters && k < frame->members; ++k) {
    const uint32_t target = frame->member_after(k);
    step.store_all(target, call, send + target * call.bytes);
  }
  const uint64_t given = scatters || (one_way && is_root) ? 0 : call.bytes;
  for (uint64_t i = first; i < given; i += stride) {
    const uint4 pack = load_user(send, i, call.bytes, send_aligned);
    for (uint32_t k = 1; k < frame->members; ++k) step.store(frame->member_after(k), i, pack);
  }
  test_delay(state, *frame, 1);
  step.announce();
  bool good = true;
  const uint64_t gotten = one_way && !is_root ? 0 : call.bytes;
  for (uint64_t i = first; good && i < gotten; i += stride) {
    const uint4 mine = load_user(own, i, call.bytes, own_aligned);
    uint4 total;
    good = reduce_packets<Type>(step, *frame, call.op, i, mine, &total);
    if (good && keeps_result(state, call))
      store_user(receive, i, call.bytes, receive_aligned, total);
  }
  // A CTA beyond the message's end has no packets to wait for.
  const bool has_packs = uint64_t{blockIdx.x} * kDataThreads * 16 < gotten;
  const bool came = step.end() && (has_packs || step.wait_for_all());
  if (came && scatters && state->layout.confirms_blocks()) step.confirm();
}

template <typename Type>
__global__ void __launch_bounds__(kCollThreads, 1)
    short_reduce_entry(CollState* state, const CollCall call) {
  run_coll<store_word>(
      state, call, [&](CollFrame* frame) { short_reduce<Type>(state, call, frame); },
      [&](const CollFrame&) {
        const bool scatters = call.kind == Collective::k_reduce_scatter;
        return scatters && state->layout.confirms_blocks() ? 2ull : 1ull;
      });
}

}  // namespace

CollKernel short_reduce_kernel(mep_dtype_t dtype) {
  switch (dtype) {
#define MEP_KERNEL_OF(name, ...) \
  case name:                     \
    return short_reduce_entry<__VA_ARGS__>;
    MEP_REDUCE_TYPES(MEP_KERNEL_OF)
#undef MEP_KERNEL_OF
    default:
      return nullptr;
  }
}

}  // namespace mep::device

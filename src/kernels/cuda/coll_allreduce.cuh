// Allreduce and reduce of one type, in their three forms; and the one list of types.
#pragma once

#include "kernels/cuda/coll_arith.cuh"
#include "kernels/cuda/coll_copy.cuh"
#include "kernels/cuda/coll_run.cuh"

// X(mep type, arithmetic)
#define MEP_REDUCE_TYPES(X)      \
  X(MEP_INT8, Whole<int8_t>)     \
  X(MEP_UINT8, Whole<uint8_t>)   \
  X(MEP_INT16, Whole<int16_t>)   \
  X(MEP_UINT16, Whole<uint16_t>) \
  X(MEP_INT32, Whole<int32_t>)   \
  X(MEP_UINT32, Whole<uint32_t>) \
  X(MEP_INT64, Whole<int64_t>)   \
  X(MEP_UINT64, Whole<uint64_t>) \
  X(MEP_FLOAT16, Float16)        \
  X(MEP_BFLOAT16, Bfloat16)      \
  X(MEP_FLOAT32, Float32)        \
  X(MEP_FLOAT64, Float64)        \
  X(MEP_BOOL, Truth)             \
  X(MEP_FLOAT8_E4M3, Float8E4M3) \
  X(MEP_FLOAT8_E5M2, Float8E5M2)

namespace mep::device {

using CollKernel = void (*)(CollState*, CollCall);
CollKernel exchange_kernel();
CollKernel short_exchange_kernel();
CollKernel short_blocks_kernel();
// Null: no such type.
CollKernel short_reduce_kernel(mep_dtype_t dtype);
CollKernel one_shot_kernel(mep_dtype_t dtype);
CollKernel two_shot_kernel(mep_dtype_t dtype);
CollKernel reduce_scatter_kernel(mep_dtype_t dtype);
CollKernel blocks_kernel();

// A reduce is an allreduce whose result only the root keeps: any member can give what another one lacks.
__device__ inline bool keeps_result(const CollState* state, const CollCall& call) {
  return call.kind != Collective::k_reduce || call.root == state->rank;
}

// The sum (or whatever op is) of 16 bytes of every member, in rank order. place(source) is where the
// bytes of a source lie. Four loads are under way at a time; the arithmetic is there once, or the code
// of all types and operators would be large.
template <typename Type, typename Place>
__device__ inline uint4 reduce_pack(const CollFrame& frame, mep_op_t op, Place&& place) {
  Pack<Type> total;
#pragma unroll 1
  for (uint32_t first = 0; first < frame.members; first += 4) {
    const uint32_t count = frame.members - first < 4 ? frame.members - first : 4;
    uint4 bytes[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      if (i < count) bytes[i] = load_window(place(frame.member[first + i]));
    }
#pragma unroll 1
    for (uint32_t i = 0; i < count; ++i) {
      const uint4 next = i < 2 ? (i == 0 ? bytes[0] : bytes[1]) : (i == 2 ? bytes[2] : bytes[3]);
      if (first + i == 0) {
        total = Pack<Type>::load(next);
      } else {
        total.add(op, next);
      }
    }
  }
  return total.store(op, frame.members);
}

}  // namespace mep::device

// Allreduce and reduce of one type, in their three forms.
#pragma once

#include "kernels/cuda/coll/arith.cuh"
#include "kernels/cuda/coll/copy.cuh"
#include "kernels/cuda/coll/run.cuh"
#include "protocol/types.hpp"

// X(mep type, arithmetic)
#define MEP_REDUCE_TYPE(X, number, constant, kind, element, arithmetic, ...) \
  X(MEP_##constant, arithmetic)
#define MEP_REDUCE_TYPES(X) MEP_TYPES(MEP_REDUCE_TYPE, X)

namespace mep::device {

using CollKernel = void (*)(CollState*, CollCall);
CollKernel exchange_kernel();
CollKernel long_broadcast_kernel();
CollKernel short_exchange_kernel();
CollKernel short_blocks_kernel();
// Null: no such type.
CollKernel short_reduce_kernel(mep_dtype_t dtype);
CollKernel one_shot_kernel(mep_dtype_t dtype);
CollKernel two_shot_kernel(mep_dtype_t dtype);
CollKernel reduce_scatter_kernel(mep_dtype_t dtype);
CollKernel long_reduce_kernel(mep_dtype_t dtype);
CollKernel blocks_kernel();
using CountedKernel = void (*)(CollState*, CollCall, CollBlocks);
CountedKernel counted_kernel();
CountedKernel counted_reduce_kernel(mep_dtype_t dtype);

// A reduce is an allreduce whose result only the root keeps: any member can give what another one lacks.
__device__ inline bool keeps_result(const CollState* state, const CollCall& call) {
  return call.kind != Collective::k_reduce || call.root == state->rank;
}

// The sums (or whatever op is) of `packs` times 16 bytes of every member, in rank order. load(source, pack) gives what a
// source has, take(pack, sum) gets a sum. Four loads are under way at a time, of one pack after the other; the
// arithmetic is there once, or the code of all types and operators would be large.
template <typename Type, typename Load, typename Take>
__device__ inline void reduce_packs(const CollFrame& frame, mep_op_t op, uint32_t packs,
                                    Load&& load, Take&& take) {
  Pack<Type> total;
  uint32_t loaded_pack = 0, loaded_member = 0, pack = 0, member = 0;
#pragma unroll 1
  while (pack < packs) {
    uint4 bytes[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      if (loaded_pack == packs) continue;
      bytes[i] = load(frame.member[loaded_member], loaded_pack);
      if (++loaded_member != frame.members) continue;
      loaded_member = 0;
      ++loaded_pack;
    }
#pragma unroll 1
    for (uint32_t i = 0; i < 4 && pack < packs; ++i) {
      const uint4 next = i < 2 ? (i == 0 ? bytes[0] : bytes[1]) : (i == 2 ? bytes[2] : bytes[3]);
      if (member == 0) {
        total = Pack<Type>::load(next);
      } else {
        total.add(op, next);
      }
      if (++member != frame.members) continue;
      take(pack, total.store(op, frame.members));
      member = 0;
      ++pack;
    }
  }
}

// The team reduces the packs that begin in [begin, end): load(source, at), take(at, sum).
template <typename Type, typename Load, typename Take>
__device__ inline void reduce_range(const Team& team, const CollFrame& frame, mep_op_t op,
                                    uint64_t begin, uint64_t end, Load&& load, Take&& take) {
  const uint64_t first = begin + team.first(), stride = team.stride();
  if (first >= end) return;
  reduce_packs<Type>(
      frame, op, static_cast<uint32_t>((end - first + stride - 1) / stride),
      [&](uint32_t source, uint32_t pack) { return load(source, first + pack * stride); },
      [&](uint32_t pack, const uint4& sum) { take(first + pack * stride, sum); });
}

}  // namespace mep::device

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

// Between two ranks the root of a reduce is the only one that needs what the other gives, dead or alive.
__host__ __device__ inline bool is_one_way(const CollCall& call, const CollLayout& layout) {
  return call.kind == Collective::k_reduce && layout.ranks == 2;
}

// Else a reduce is an allreduce whose result only the root keeps: any member can give what another one lacks.
__device__ inline bool keeps_result(const CollState* state, const CollCall& call) {
  return call.kind != Collective::k_reduce || call.root == state->rank;
}

// The team, before it reduces: from(source) is where a source's contribution lies, in a window or a buffer; results go to the
// caller's buffer unless it is null, and to `puts` windows, to(number).
template <typename From, typename To>
__device__ inline void lay_out_reduction(const Team& team, CollFrame* frame, From&& from,
                                         uint8_t* user, uint32_t puts, To&& to) {
  team.sync();  // all have used what was laid out before
  for (uint32_t i = team.index; i < frame->members; i += team.threads) {
    frame->give[i] = from(frame->member[i]);
    if (i < puts) frame->put[i] = to(i);
  }
  if (team.index == 0) {
    frame->puts = puts;
    frame->put_user = user;
  }
  team.sync();
}
template <typename From>
__device__ inline void lay_out_reduction(const Team& team, CollFrame* frame, From&& from,
                                         uint8_t* user) {
  lay_out_reduction(team, frame, from, user, 0, [](uint32_t) -> uint8_t* { return nullptr; });
}

// Reduces whole packs of all kMembers members from byte `at` on, as long as kPacks of one thread end before `end`: gives where
// it stopped. All loads of a round are under way at a time. `op`: one of Pack::add_common().
template <typename Type, uint32_t kMembers, uint32_t kPacks>
__device__ __noinline__ uint64_t reduce_packs(const CollFrame* frame, mep_op_t op, uint32_t stride,
                                              float scale, uint64_t at, uint64_t end) {
  using Total = Pack<Type>;
  const uint8_t* from[kMembers];
#pragma unroll
  for (uint32_t i = 0; i < kMembers; ++i) from[i] = frame->give[i];
  const uint32_t puts = frame->puts;
  uint8_t* const user = frame->put_user;
#pragma unroll 1
  for (; at + (kPacks - 1) * stride < end; at += kPacks * stride) {
    uint4 packs[kMembers][kPacks];
#pragma unroll
    for (uint32_t i = 0; i < kMembers; ++i) {
#pragma unroll
      for (uint32_t k = 0; k < kPacks; ++k) packs[i][k] = load_window(from[i] + at + k * stride);
    }
#pragma unroll
    for (uint32_t k = 0; k < kPacks; ++k) {
      Total total = Total::load(packs[0][k]);
#pragma unroll
      for (uint32_t i = 1; i < kMembers; ++i) {
        total.add_common(op, Total::load(packs[i][k]));
      }
      packs[0][k] = total.store_scaled(scale);
    }
    const auto put = [&](uint8_t* to) {
#pragma unroll
      for (uint32_t k = 0; k < kPacks; ++k) store_window(to + at + k * stride, packs[0][k]);
    };
#pragma unroll 1
    for (uint32_t i = 0; i < puts; ++i) put(frame->put[i]);
    if (user != nullptr) put(user);
  }
  return at;
}

// The pack at byte `at` by any operator, of which `count` bytes are there. Four loads are under way at a time. The arithmetic
// is there once, or the code of all types and operators would be large.
template <typename Type>
__device__ __noinline__ void reduce_pack(const CollFrame* frame, mep_op_t op, uint64_t at,
                                         uint32_t count) {
  const uint32_t members = frame->members;
  Pack<Type> total;
#pragma unroll 1
  for (uint32_t first = 0; first < members; first += 4) {
    uint4 bytes[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      if (first + i >= members) continue;
      const uint8_t* const from = frame->give[first + i] + at;
      bytes[i] = count == 16 && is_aligned(from) ? load_window(from) : load_bytes(from, count);
    }
#pragma unroll 1
    for (uint32_t i = 0; i < 4 && first + i < members; ++i) {
      const uint4 next = i < 2 ? (i == 0 ? bytes[0] : bytes[1]) : (i == 2 ? bytes[2] : bytes[3]);
      if (first + i == 0) {
        total = Pack<Type>::load(next);
      } else {
        total.add(op, next);
      }
    }
  }
  const uint4 result = total.store(op, members);
  for (uint32_t i = 0; i < frame->puts; ++i) store_window(frame->put[i] + at, result);
  uint8_t* const user = frame->put_user;
  if (user == nullptr) return;
  if (count == 16 && is_aligned(user)) {
    store_window(user + at, result);
  } else {
    store_bytes(user + at, count, result);
  }
}

// The team reduces the packs that begin in [begin, end) of contributions of `bytes`, in rank order. The common operators on 2, 3, 4
// or 8 members have many loads under way, so that few CTAs fill a link. An average is a product where that is exact.
template <typename Type>
__device__ inline void reduce_range(const Team& team, const CollFrame& frame, mep_op_t op,
                                    uint64_t begin, uint64_t end, uint64_t bytes) {
  const auto stride = static_cast<uint32_t>(team.stride());
  uint64_t i = begin + team.first();
  const uint32_t members = frame.members;
  const bool averages = op == MEP_AVG && (members & (members - 1)) == 0;
  const bool is_common = averages || op == MEP_SUM || op == MEP_MIN || op == MEP_MAX;
  bool rounds = is_common && is_aligned(frame.put_user);
  for (uint32_t k = 0; rounds && k < members; ++k) rounds = is_aligned(frame.give[k]);
  const uint64_t whole = bytes / 16 * 16 < end ? bytes / 16 * 16 : end;
  const float scale = averages ? 1.0f / static_cast<float>(members) : 1.0f;
  const auto reduce = [&](auto packs) { i = packs(&frame, op, stride, scale, i, whole); };
  if (rounds && members == 2) reduce(reduce_packs<Type, 2, 4>);
  if (rounds && members == 3) reduce(reduce_packs<Type, 3, 2>);
  if (rounds && members == 4) reduce(reduce_packs<Type, 4, 2>);
  if (rounds && members == 8) reduce(reduce_packs<Type, 8, 1>);
#pragma unroll 1
  for (; i < end; i += stride) {
    reduce_pack<Type>(&frame, op, i, bytes - i < 16 ? static_cast<uint32_t>(bytes - i) : 16);
  }
}

}  // namespace mep::device

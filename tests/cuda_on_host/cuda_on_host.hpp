// Included before each .cu file that is compiled for the host: CUDA C++ as plain C++.
//
// A variable that is __shared__ is one of the thread that runs the CTA. It keeps what the CTA before left there, as it
// does on a GPU.
#pragma once

#define MEP_CUDA_ON_HOST
#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ static thread_local
#define __grid_constant__
#define __launch_bounds__(...)
#define __noinline__

#include <cuda_runtime.h>
#include <math.h>

#include "cuda_on_host/lanes.hpp"

// Inline functions of queues differ between hosts and lanes; one program has both.
#define SystemMemory SystemMemoryOfLanes

#define threadIdx (::cuda_on_host::Cta::current().lane().thread)
#define blockIdx (::cuda_on_host::Cta::current().index())
#define blockDim (::cuda_on_host::Cta::current().launch().threads)
#define gridDim (::cuda_on_host::Cta::current().launch().ctas)

// --- Barriers -----------------------------------------------------------------------------------------

inline const cuda_on_host::Barrier& cuda_on_host_vote(bool vote) {
  auto& cta = cuda_on_host::Cta::current();
  cta.wait(0, cta.live_lanes(), vote);
  return cta.barrier(0);
}
inline void __syncthreads() {
  (void)cuda_on_host_vote(true);
}
inline int __syncthreads_and(int vote) {
  return cuda_on_host_vote(vote != 0).was_all ? 1 : 0;
}
inline int __syncthreads_or(int vote) {
  return cuda_on_host_vote(vote != 0).was_any ? 1 : 0;
}
inline void __syncwarp(unsigned mask = 0xffffffffU) {
  cuda_on_host::Cta::current().meet_warp(mask);
}

// --- Exchange in a warp -------------------------------------------------------------------------------

template <typename Type>
inline Type cuda_on_host_shuffle(unsigned mask, Type value, unsigned source) {
  auto& cta = cuda_on_host::Cta::current();
  cta.exchange(mask, value);
  const auto taken = cta.given_by<Type>(source);
  cta.meet_warp(mask);
  return taken;
}
inline unsigned cuda_on_host_lane() {
  return cuda_on_host::Cta::current().lane().number % cuda_on_host::kWarpLanes;
}
template <typename Type>
inline Type __shfl_sync(unsigned mask, Type value, int source) {
  return cuda_on_host_shuffle(mask, value, static_cast<unsigned>(source));
}
template <typename Type>
inline Type __shfl_xor_sync(unsigned mask, Type value, int bits) {
  return cuda_on_host_shuffle(mask, value, cuda_on_host_lane() ^ static_cast<unsigned>(bits));
}
template <typename Type>
inline Type __shfl_up_sync(unsigned mask, Type value, unsigned by) {
  const unsigned lane = cuda_on_host_lane();
  return cuda_on_host_shuffle(mask, value, lane < by ? lane : lane - by);
}
template <typename Type>
inline Type __shfl_down_sync(unsigned mask, Type value, unsigned by) {
  const unsigned lane = cuda_on_host_lane();
  return cuda_on_host_shuffle(mask, value, lane + by < cuda_on_host::kWarpLanes ? lane + by : lane);
}
inline unsigned __ballot_sync(unsigned mask, int vote) {
  auto& cta = cuda_on_host::Cta::current();
  cta.exchange(mask, uint64_t{vote != 0});
  unsigned bits = 0;
  for (unsigned lane = 0; lane < cuda_on_host::kWarpLanes; ++lane) {
    if ((mask >> lane & 1) != 0 && cta.given_by<uint64_t>(lane) != 0) bits |= 1U << lane;
  }
  cta.meet_warp(mask);
  return bits;
}
inline int __any_sync(unsigned mask, int vote) {
  return __ballot_sync(mask, vote) != 0 ? 1 : 0;
}
inline int __all_sync(unsigned mask, int vote) {
  return __ballot_sync(mask, vote) == mask ? 1 : 0;
}

// --- Memory -------------------------------------------------------------------------------------------

inline void __threadfence_block() {}
inline void __threadfence() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_system() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
template <typename Type>
inline Type __ldcg(const Type* from) {
  return *from;
}
template <typename Type>
inline Type __ldcv(const Type* from) {
  if constexpr (sizeof(Type) <= sizeof(uint64_t)) {
    return __atomic_load_n(from, __ATOMIC_RELAXED);
  } else {
    return *from;
  }
}
template <typename Type>
inline void __stcg(Type* to, Type value) {
  *to = value;
}
template <typename Type>
inline Type atomicAdd(Type* word, Type value) {
  return __atomic_fetch_add(word, value, __ATOMIC_RELAXED);
}
template <typename Type>
inline Type atomicExch(Type* word, Type value) {
  return __atomic_exchange_n(word, value, __ATOMIC_RELAXED);
}
template <typename Type>
inline Type atomicMax(Type* word, Type value) {
  Type seen = __atomic_load_n(word, __ATOMIC_RELAXED);
  while (seen < value && !__atomic_compare_exchange_n(word, &seen, value, false, __ATOMIC_RELAXED,
                                                      __ATOMIC_RELAXED)) {
  }
  return seen;
}
template <typename Type>
inline Type atomicOr(Type* word, Type value) {
  return __atomic_fetch_or(word, value, __ATOMIC_RELAXED);
}
template <typename Type>
inline Type atomicCAS(Type* word, Type expected, Type value) {
  (void)__atomic_compare_exchange_n(word, &expected, value, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED);
  return expected;
}

// --- Numbers ------------------------------------------------------------------------------------------

inline int __popc(unsigned bits) {
  return __builtin_popcount(bits);
}
inline int __popcll(long long bits) {
  return __builtin_popcountll(static_cast<unsigned long long>(bits));
}
inline int __ffs(int bits) {
  return __builtin_ffs(bits);
}
inline unsigned __vcmpeq4(unsigned a, unsigned b) {
  unsigned equal = 0;
  for (int at = 0; at < 32; at += 8) {
    if (((a ^ b) >> at & 0xff) == 0) equal |= 0xffU << at;
  }
  return equal;
}
inline float __uint_as_float(unsigned bits) {
  return __builtin_bit_cast(float, bits);
}
inline unsigned __float_as_uint(float value) {
  return __builtin_bit_cast(unsigned, value);
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline double __longlong_as_double(long long bits) {
  return __builtin_bit_cast(double, bits);
}
inline long long __double_as_longlong(double value) {
  return __builtin_bit_cast(long long, value);
}
inline double __dmul_rn(double a, double b) {
  return a * b;
}
inline double __dadd_rn(double a, double b) {
  return a + b;
}
inline double __ddiv_rn(double a, double b) {
  return a / b;
}
template <typename Left, typename Right>
constexpr auto min(Left a, Right b) -> decltype(a + b) {
  return a < b ? a : b;
}
template <typename Left, typename Right>
constexpr auto max(Left a, Right b) -> decltype(a + b) {
  return a < b ? b : a;
}

inline void __nanosleep(unsigned /*ns*/) {
  cuda_on_host::Cta::current().give_way();
}

#include "cuda_on_host/instructions.hpp"

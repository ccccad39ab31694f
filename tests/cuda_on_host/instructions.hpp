// The functions of kernels/cuda/device/instructions.cuh for lanes on the host.
#pragma once

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cuda_on_host/launch.hpp"

namespace mep::device {

inline uint64_t load_system(const uint64_t* word) {
  return __atomic_load_n(word, __ATOMIC_RELAXED);
}
inline uint64_t load_system_acquire(const uint64_t* word) {
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
inline void store_system(uint64_t* word, uint64_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELAXED);
}
inline void store_system_release(uint64_t* word, uint64_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}
inline uint64_t load_gpu(const uint64_t* word) {
  return __atomic_load_n(word, __ATOMIC_RELAXED);
}
inline uint64_t load_gpu_acquire(const uint64_t* word) {
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
inline uint32_t load_gpu_acquire(const uint32_t* word) {
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
inline void store_gpu(uint64_t* word, uint64_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELAXED);
}
inline uint32_t add_gpu_acquire(uint32_t* count, uint32_t more) {
  return __atomic_fetch_add(count, more, __ATOMIC_ACQUIRE);
}
inline uint32_t add_gpu_acq_rel(uint32_t* count, uint32_t more) {
  return __atomic_fetch_add(count, more, __ATOMIC_ACQ_REL);
}
inline void fence_system() {
  __threadfence_system();
}
inline void fence_system_sc() {
  __threadfence_system();
}

// One instruction, which is atomic on processors with AVX (Intel SDM volume 3, 9.1.1; AMD APM volume 2, 7.3.2).
using Pair = long long __attribute__((vector_size(16)));
inline void store_system_pair(void* to, uint64_t low, uint64_t high) {
  const Pair whole = {static_cast<long long>(low), static_cast<long long>(high)};
  asm volatile("movaps %1, %0" : "=m"(*static_cast<Pair*>(to)) : "x"(whole) : "memory");
}
inline void load_system_pair(const void* from, uint64_t* low, uint64_t* high) {
  Pair whole;
  asm volatile("movaps %1, %0" : "=x"(whole) : "m"(*static_cast<const Pair*>(from)) : "memory");
  *low = static_cast<uint64_t>(whole[0]);
  *high = static_cast<uint64_t>(whole[1]);
}
inline uint4 load_once(const void* from) {
  return *static_cast<const uint4*>(from);
}
inline uint32_t load_cached(const void* from) {
  return *static_cast<const uint32_t*>(from);
}
inline void prefetch(const void* /*from*/) {}

inline float min_or_nan(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? a : b;
  return a < b || (a == b && std::signbit(a)) ? a : b;
}
inline float max_or_nan(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? a : b;
  return a > b || (a == b && !std::signbit(a)) ? a : b;
}

inline void sync_barrier(uint32_t barrier, uint32_t threads) {
  cuda_on_host::Cta::current().wait(barrier, threads, true);
}
inline void arrive_barrier(uint32_t barrier, uint32_t threads) {
  cuda_on_host::Cta::current().arrive(barrier, threads);
}
inline uint32_t read_cta() {
  return blockIdx.x;
}
inline void let_others_run() {
  cuda_on_host::Cta::current().give_way();
}
inline uint64_t nanoseconds() {
  return static_cast<uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
}
template <typename Type>
inline Type* launched_shared() {
  return static_cast<Type*>(cuda_on_host::Cta::current().shared());
}

template <typename... Params, typename... Args>
inline void launch_kernel(void (*kernel)(Params...), dim3 ctas, dim3 threads, size_t shared_bytes,
                          cudaStream_t stream, const Args&... args) {
  cuda_on_host::enqueue(stream,
                        {[kernel, args...] { kernel(args...); }, ctas, threads, shared_bytes});
}

}  // namespace mep::device

// The PTX instructions that kernels use, each as a function: what a kernel needs beyond CUDA C++ stands here. A build
// of the kernels for the host (tests/cuda_on_host) brings functions of the same names before it includes this.
//
// Scopes: `system` for words of the host and of other GPUs, `gpu` for words of this GPU's CTAs.
#pragma once

#ifndef MEP_CUDA_ON_HOST

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace mep::device {

// --- Words --------------------------------------------------------------------------------------------

__device__ inline uint64_t load_system(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
__device__ inline uint64_t load_system_acquire(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
__device__ inline void store_system(uint64_t* word, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
__device__ inline void store_system_release(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
__device__ inline uint64_t load_gpu(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
__device__ inline uint64_t load_gpu_acquire(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
__device__ inline uint32_t load_gpu_acquire(const uint32_t* word) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
__device__ inline void store_gpu(uint64_t* word, uint64_t value) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
// These give the count before.
__device__ inline uint32_t add_gpu_acquire(uint32_t* count, uint32_t more) {
  uint32_t before;
  asm volatile("atom.acquire.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(count), "r"(more)
               : "memory");
  return before;
}
__device__ inline uint32_t add_gpu_acq_rel(uint32_t* count, uint32_t more) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(count), "r"(more)
               : "memory");
  return before;
}
__device__ inline void fence_system() {
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}
__device__ inline void fence_system_sc() {
  asm volatile("fence.sc.sys;" ::: "memory");
}

// --- 16 bytes, on an address that 16 divides ----------------------------------------------------------

// Stored and loaded as one, relaxed (PTX ISA 8.3: .b128 of ld and st).
__device__ inline void store_system_pair(void* to, uint64_t low, uint64_t high) {
  asm volatile(
      "{ .reg .b128 whole; mov.b128 whole, {%1, %2}; st.relaxed.sys.global.b128 [%0], whole; }" ::
          "l"(to),
      "l"(low), "l"(high)
      : "memory");
}
__device__ inline void load_system_pair(const void* from, uint64_t* low, uint64_t* high) {
  asm volatile(
      "{ .reg .b128 whole; ld.relaxed.sys.global.b128 whole, [%2]; mov.b128 {%0, %1}, whole; }"
      : "=l"(*low), "=l"(*high)
      : "l"(from)
      : "memory");
}
// Data that this kernel reads once: it leaves no line in the L1.
__device__ inline uint4 load_once(const void* from) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

// --- Caches -------------------------------------------------------------------------------------------

// Leaves the line in the L1.
__device__ inline uint32_t load_cached(const void* from) {
  uint32_t word;
  asm volatile("ld.global.ca.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
  return word;
}
__device__ inline void prefetch(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// --- Arithmetic ---------------------------------------------------------------------------------------

// NaN where one of the two is; -0 is less than +0.
__device__ inline float min_or_nan(float a, float b) {
  float least;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
  return least;
}
__device__ inline float max_or_nan(float a, float b) {
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
  return most;
}

// --- The CTA ------------------------------------------------------------------------------------------

// Barriers by number, of so many threads, whole warps. Barrier 0 is that of __syncthreads().
__device__ inline void sync_barrier(uint32_t barrier, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void arrive_barrier(uint32_t barrier, uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// Read anew where it is wanted: cheaper than to keep it while a kernel waits.
__device__ inline uint32_t read_cta() {
  uint32_t cta = 0;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(cta));
  return cta;
}
// Between two looks at a word that has not come. Warps of a GPU take turns by themselves.
__device__ inline void let_others_run() {}
__device__ inline uint64_t nanoseconds() {
  uint64_t value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
  return value;
}
// The shared memory whose size the launch gave.
template <typename Type>
__device__ inline Type* launched_shared() {
  extern __shared__ uint4 launched_shared_memory[];
  return reinterpret_cast<Type*>(launched_shared_memory);
}

// --- Launches, by the host ----------------------------------------------------------------------------

template <typename... Params, typename... Args>
inline void launch_kernel(void (*kernel)(Params...), dim3 ctas, dim3 threads, size_t shared_bytes,
                          cudaStream_t stream, const Args&... args) {
  kernel<<<ctas, threads, shared_bytes, stream>>>(args...);
}

}  // namespace mep::device

#endif

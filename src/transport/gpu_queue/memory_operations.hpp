// Memory operations of a queue: each by its name, for hosts by the compiler's atomics and for kernels in PTX.
//
//   - Those of posters are between threads of one GPU (scope gpu), those of the NIC and of peers at system scope. By the
//     PTX memory model a chain of both orders as one scope would: a request that a poster has released and that another
//     poster, having acquired it, announces to the NIC, is there for the NIC.
//   - A queue is used by kernels of one GPU or by threads of the host, not by both at once.
//   - A NIC stands outside of all memory models. Where it observes, it is taken for a thread at system scope.
#pragma once

#include <cstdint>

#ifndef __CUDACC__
#include <sched.h>

#include <chrono>
#endif

// Code for the lanes of warps: of a GPU, or of the host that plays one.
#if defined(__CUDA_ARCH__) || defined(MEP_CUDA_ON_HOST)
#define MEP_LANES
#endif

#include "protocol/host_device.hpp"
#include "transport/gpu_queue/work_request.hpp"

namespace mep::gpu_queue {

struct SystemMemory {
  // Waits look at the clock and at the abort word once in so many polls; the abort word may lie across a bus.
  static constexpr uint32_t kPollsPerLook = 64;
  static constexpr uint64_t kAbortLookNs = 20'000;
  static constexpr uint32_t kEagerPolls = 1024;  // then a waiter makes room for others

  // --- Between posters ---

  // Orders nothing else.
  MEP_HOST_DEVICE static uint64_t load(const uint64_t* word) {
#ifdef __CUDA_ARCH__
    uint64_t value;
    asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
#else
    return __atomic_load_n(word, __ATOMIC_RELAXED);
#endif
  }
  MEP_HOST_DEVICE static uint64_t load_acquire(const uint64_t* word) {
#ifdef __CUDA_ARCH__
    uint64_t value;
    asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
#else
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
#endif
  }
  // Publishes a request to the ringer that acquires the word.
  MEP_HOST_DEVICE static void store_release(uint64_t* word, uint64_t value) {
#ifdef __CUDA_ARCH__
    asm volatile("st.release.gpu.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
#else
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
#endif
  }
  // Takes a number of its own from a count; orders nothing. False: *expected is what the count is.
  MEP_HOST_DEVICE static bool take(uint64_t* count, uint64_t* expected, uint64_t next) {
#ifdef __CUDA_ARCH__
    uint64_t before;
    asm volatile("atom.relaxed.gpu.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(before)
                 : "l"(count), "l"(*expected), "l"(next)
                 : "memory");
    const bool taken = before == *expected;
    *expected = before;
    return taken;
#else
    return __atomic_compare_exchange_n(count, expected, next, false, __ATOMIC_RELAXED,
                                       __ATOMIC_RELAXED);
#endif
  }
  // Publishes what this thread did to the one whose exchange gets `value`, and sees what those did whose it gets.
  MEP_HOST_DEVICE static uint32_t exchange(uint32_t* word, uint32_t value) {
#ifdef __CUDA_ARCH__
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.exch.b32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(word), "r"(value)
                 : "memory");
    return before;
#else
    return __atomic_exchange_n(word, value, __ATOMIC_ACQ_REL);
#endif
  }
  // The larger one stays. Publishes what this thread has seen to those that load the word with acquire.
  MEP_HOST_DEVICE static void raise(uint64_t* word, uint64_t value) {
#ifdef __CUDA_ARCH__
    asm volatile("red.release.gpu.max.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
#else
    uint64_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (seen < value && !__atomic_compare_exchange_n(word, &seen, value, true, __ATOMIC_RELEASE,
                                                        __ATOMIC_RELAXED)) {
    }
#endif
  }
  // The first one stays. The word says everything itself and orders nothing; the host may load it.
  MEP_HOST_DEVICE static void store_first(uint64_t* word, uint64_t value) {
#ifdef __CUDA_ARCH__
    asm volatile("atom.relaxed.sys.cas.b64 _, [%0], %1, %2;" ::"l"(word), "l"(uint64_t{0}),
                 "l"(value)
                 : "memory");
#else
    uint64_t none = 0;
    __atomic_compare_exchange_n(word, &none, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
#endif
  }
  // Nobody reads the slot before its ready word says so.
  MEP_HOST_DEVICE static void fill(Request* slot, const Request& request) {
#ifdef __CUDA_ARCH__
    for (uint32_t i = 0; i < kRequestWords; i += 4) {
      *reinterpret_cast<uint4*>(&slot->words[i]) = {request.words[i], request.words[i + 1],
                                                    request.words[i + 2], request.words[i + 3]};
    }
#else
    *slot = request;
#endif
  }

  // --- With the NIC ---

  // Publishes to the NIC the requests before the one that the record names.
  MEP_HOST_DEVICE static void store_record(Big32* record, Big32 value) {
#ifdef __CUDA_ARCH__
    asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(&record->raw), "r"(value.raw) : "memory");
#else
    __atomic_store_n(&record->raw, value.raw, __ATOMIC_RELEASE);
#endif
  }
  // Publishes the record and the requests to the NIC, and wakes it.
  MEP_HOST_DEVICE static void ring(uint64_t* doorbell, uint64_t value) {
#ifdef __CUDA_ARCH__
    asm volatile("fence.acq_rel.sys;" ::: "memory");
    asm volatile("st.mmio.relaxed.sys.u64 [%0], %1;" ::"l"(doorbell), "l"(value) : "memory");
#else
    __atomic_store_n(doorbell, value, __ATOMIC_RELEASE);
#endif
  }
  // By a thread of the host: the doorbell that was rung since the last call; 0: none. Sees the record and the requests before it.
  static uint64_t take_doorbell(uint64_t* word) {
    // Relaxed: the exchange looks again.
    if (__atomic_load_n(word, __ATOMIC_RELAXED) == 0) return 0;
    return __atomic_exchange_n(word, 0, __ATOMIC_ACQUIRE);
  }
  // Sees what the NIC did before it wrote the word: the rest of the completion, and that it reads requests and their
  // local memory no more.
  MEP_HOST_DEVICE static Big32 load_completion(const Big32* word) {
    Big32 value;
#ifdef __CUDA_ARCH__
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value.raw) : "l"(&word->raw) : "memory");
#else
    value.raw = __atomic_load_n(&word->raw, __ATOMIC_ACQUIRE);
#endif
    return value;
  }

  // --- With peers and the host ---

  // Publishes to the peer that acquires the word what this thread, and those that it met, have stored in its memory.
  MEP_HOST_DEVICE static void store_signal(uint64_t* word, uint64_t value) {
#ifdef __CUDA_ARCH__
    asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
#else
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
#endif
  }
  // The host has raised the word, which speaks of nothing but itself.
  MEP_HOST_DEVICE static uint64_t load_abort(const uint64_t* word) {
#ifdef __CUDA_ARCH__
    uint64_t value;
    asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
#else
    return __atomic_load_n(word, __ATOMIC_RELAXED);
#endif
  }

  // --- Threads and time ---

  MEP_HOST_DEVICE static uint64_t nanoseconds() {
#ifdef __CUDA_ARCH__
    uint64_t value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
    return value;
#elif defined(__CUDACC__)
    return 0;  // host code of a .cu file posts nothing
#else
    return static_cast<uint64_t>(
        std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
#endif
  }
  MEP_HOST_DEVICE static void pause(uint32_t polls) {
    if (polls <= kEagerPolls) return;
#ifdef MEP_LANES
    __nanosleep(100);
#elif !defined(__CUDACC__)
    sched_yield();
#endif
  }
  // The warp that calls together, all lanes of it; a thread of the host is alone.
  MEP_HOST_DEVICE static uint32_t lane() {
#ifdef MEP_LANES
    return threadIdx.x % 32;
#else
    return 0;
#endif
  }
  MEP_HOST_DEVICE static constexpr uint32_t lanes() {
#ifdef MEP_LANES
    return 32;
#else
    return 1;
#endif
  }
  // Each lane sees what the others did before.
  MEP_HOST_DEVICE static void meet() {
#ifdef MEP_LANES
    __syncwarp();
#endif
  }
  // A bit for each lane.
  MEP_HOST_DEVICE static uint32_t ballot(bool value) {
#ifdef MEP_LANES
    return __ballot_sync(0xffffffffu, value);
#else
    return value ? 1 : 0;
#endif
  }
  // The value of lane 0, for all.
  MEP_HOST_DEVICE static uint32_t from_first(uint32_t value) {
#ifdef MEP_LANES
    return __shfl_sync(0xffffffffu, value, 0);
#else
    return value;
#endif
  }
};

}  // namespace mep::gpu_queue

#undef MEP_LANES

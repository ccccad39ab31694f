// Memory of posters that are threads of the host and ring the doorbell of an adapter: its register is no memory of the cores.
#pragma once

#include <cstdint>

#include "transport/gpu_queue/memory_operations.hpp"

namespace mep::perf {

struct RegisterMemory : gpu_queue::SystemMemory {
  static void store_record(gpu_queue::Big32* record, gpu_queue::Big32 value) {
    before_device();
    gpu_queue::SystemMemory::store_record(record, value);
  }
  static void ring(uint64_t* doorbell, uint64_t value) {
    before_device();
    gpu_queue::SystemMemory::ring(doorbell, value);
  }

 private:
  // A device that sees a later store sees the earlier ones. On x86 it does by itself, if the compiler keeps the order.
  static void before_device() {
#if defined(__x86_64__)
    __asm__ volatile("" ::: "memory");
#elif defined(__aarch64__)
    __asm__ volatile("dmb oshst" ::: "memory");
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
  }
};

}  // namespace mep::perf

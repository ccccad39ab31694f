// Devices, memory and errors of the CUDA runtime that the host plays. CUDA_ON_HOST_GPUS: how many GPUs it shows [2];
// CUDA_ON_HOST_REACH=0: they do not reach each other's memory.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cuda_on_host {

constexpr int kMultiprocessors = 4;
constexpr int kCtasOfMultiprocessor = 2;
constexpr uint32_t kMostCtaThreads = 1024;
constexpr size_t kSharedBytes = 227 << 10;

int device_count();
int current_device();
bool is_device(int device);
// Without a context: of a thread that the driver has given one back.
void set_current_device(int device);
// cudaSetDevice starts one, and cuDevicePrimaryCtxRetain.
void start_context(int device);
bool has_context(int device);

// Remembers the thread's error and gives it back.
cudaError_t failed(cudaError_t error);

// Which memory an address is of; cudaMemoryTypeUnregistered: none that CUDA knows.
struct Memory {
  cudaMemoryType type = cudaMemoryTypeUnregistered;
  int device = 0;
};
void note_memory(const void* address, size_t bytes, Memory memory);
bool forget_memory(const void* address);
Memory find_memory(const void* address);

// Registers of other devices (cudaHostRegisterIoMemory), which kernels have at another address.
enum class IoMemory { kWorks, kRefused, kLost };  // lost: what kernels store there arrives nowhere
struct IoPages {
  std::atomic<IoMemory> how{IoMemory::kWorks};
  std::atomic<int> mapped{0};
};
IoPages& io_pages();

// A function of the driver by its name, null: there is none.
void* find_driver_function(const char* name);

}  // namespace cuda_on_host

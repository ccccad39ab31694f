#include "cuda_on_host/runtime.hpp"

#include <cuda.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "cuda_on_host/streams.hpp"

namespace cuda_on_host {
namespace {

constexpr size_t kAlignment = 512;  // of device memory
constexpr size_t kPage = 4096;

thread_local int thread_device = 0;
std::atomic<uint64_t> started{0};  // a bit a device with a context
thread_local cudaError_t thread_error = cudaSuccess;

struct Range {
  size_t bytes;
  Memory memory;
};

// Never destroyed: memory of static objects is freed after main().
struct Ranges {
  std::mutex mutex;
  std::map<uintptr_t, Range> all;

  static Ranges& get() {
    static auto* const ranges = new Ranges;
    return *ranges;
  }
};

int number_from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

// Plain heap memory, so that AddressSanitizer sees what kernels do beside it.
void* allocate(size_t bytes, Memory memory, size_t alignment = kAlignment) {
  const size_t whole = (bytes + alignment - 1) / alignment * alignment;
  // The end of the last line is not the caller's, yet aligned_alloc() wants whole lines: what lies there is not found.
  void* address = std::aligned_alloc(alignment, whole == 0 ? alignment : whole);
  if (address != nullptr) note_memory(address, whole, memory);
  return address;
}

}  // namespace

IoPages& io_pages() {
  static IoPages pages;
  return pages;
}

int device_count() {
  static const int count = number_from_environment("CUDA_ON_HOST_GPUS", 2);
  return count;
}
int current_device() {
  return thread_device;
}
void set_current_device(int device) {
  thread_device = device;
}
void start_context(int device) {
  started.fetch_or(uint64_t{1} << device);
}
bool has_context(int device) {
  return (started.load() >> device & 1) != 0;
}
bool is_device(int device) {
  return device >= 0 && device < device_count();
}

cudaError_t failed(cudaError_t error) {
  if (error != cudaSuccess) thread_error = error;
  return error;
}

void note_memory(const void* address, size_t bytes, Memory memory) {
  Ranges& ranges = Ranges::get();
  const std::lock_guard lock(ranges.mutex);
  ranges.all[reinterpret_cast<uintptr_t>(address)] = {bytes, memory};
}

bool forget_memory(const void* address) {
  Ranges& ranges = Ranges::get();
  const std::lock_guard lock(ranges.mutex);
  return ranges.all.erase(reinterpret_cast<uintptr_t>(address)) != 0;
}

Memory find_memory(const void* address) {
  Ranges& ranges = Ranges::get();
  const std::lock_guard lock(ranges.mutex);
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  auto after = ranges.all.upper_bound(wanted);
  if (after == ranges.all.begin()) return {};
  const auto& [begin, range] = *--after;
  return wanted - begin < range.bytes ? range.memory : Memory{};
}

namespace {

struct IoPage {
  void* of_kernels;
  size_t bytes;
};
struct MappedIo {
  std::mutex mutex;
  std::map<void*, IoPage> all;  // by the address of the host
};
MappedIo& mapped_io() {
  static auto* const mapped = new MappedIo;
  return *mapped;
}

cudaError_t map_io_page(void* address, size_t bytes) {
  const IoMemory how = io_pages().how;
  if (how == IoMemory::kRefused) return failed(cudaErrorNotPermitted);
  MappedIo& io = mapped_io();
  const std::lock_guard lock(io.mutex);
  if (io.all.contains(address)) return failed(cudaErrorHostMemoryAlreadyRegistered);
  // The same page again; what is lost goes to one of its own.
  void* const of_kernels = how == IoMemory::kWorks ? mremap(address, 0, bytes, MREMAP_MAYMOVE)
                                                   : mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (of_kernels == MAP_FAILED) return failed(cudaErrorInvalidValue);
  io.all[address] = {of_kernels, bytes};
  ++io_pages().mapped;
  return cudaSuccess;
}

bool unmap_io_page(void* address) {
  MappedIo& io = mapped_io();
  const std::lock_guard lock(io.mutex);
  const auto found = io.all.find(address);
  if (found == io.all.end()) return false;
  (void)munmap(found->second.of_kernels, found->second.bytes);
  io.all.erase(found);
  --io_pages().mapped;
  return true;
}

void* find_io_page(void* address) {
  MappedIo& io = mapped_io();
  const std::lock_guard lock(io.mutex);
  const auto found = io.all.find(address);
  return found == io.all.end() ? nullptr : found->second.of_kernels;
}

}  // namespace
}  // namespace cuda_on_host

using namespace cuda_on_host;

extern "C" {

// --- Errors -------------------------------------------------------------------------------------------

cudaError_t cudaGetLastError() {
  return std::exchange(thread_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  return thread_error;
}
const char* cudaGetErrorString(cudaError_t error) {
  thread_local char text[48];
  std::snprintf(text, sizeof text, "CUDA error %d on the host", static_cast<int>(error));
  return text;
}
const char* cudaGetErrorName(cudaError_t error) {
  return cudaGetErrorString(error);
}

// --- Devices ------------------------------------------------------------------------------------------

cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return *count == 0 ? failed(cudaErrorNoDevice) : cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = thread_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (!is_device(device)) return failed(cudaErrorInvalidDevice);
  thread_device = device;
  start_context(device);
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* about, int device) {
  if (!is_device(device)) return failed(cudaErrorInvalidDevice);
  *about = {};
  std::snprintf(about->name, sizeof about->name, "the host as a GPU");
  std::memset(&about->uuid, 'h', sizeof about->uuid);
  about->uuid.bytes[0] = static_cast<char>(device);
  about->major = 9;
  about->multiProcessorCount = kMultiprocessors;
  about->totalGlobalMem = size_t{4} << 30;
  about->warpSize = 32;
  about->maxThreadsPerBlock = kMostCtaThreads;
  about->sharedMemPerBlockOptin = kSharedBytes;
  about->pciDeviceID = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!is_device(device)) return failed(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = kMultiprocessors;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(kSharedBytes);
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      return cudaSuccess;
    case cudaDevAttrClockRate:
      *value = 1'000'000;
      return cudaSuccess;
    default:
      *value = 0;
      return cudaSuccess;
  }
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  if (!is_device(device)) return failed(cudaErrorInvalidDevice);
  std::snprintf(text, static_cast<size_t>(bytes), "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!is_device(device) || !is_device(peer)) return failed(cudaErrorInvalidDevice);
  *can = device != peer && number_from_environment("CUDA_ON_HOST_REACH", 1) != 0 ? 1 : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int /*flags*/) {
  return is_device(peer) ? cudaSuccess : failed(cudaErrorInvalidDevice);
}
cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  return is_device(peer) ? cudaSuccess : failed(cudaErrorInvalidDevice);
}

// --- Kernels ------------------------------------------------------------------------------------------

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* about, const void* /*kernel*/) {
  *about = {};
  about->maxThreadsPerBlock = kMostCtaThreads;
  about->maxDynamicSharedSizeBytes = static_cast<int>(kSharedBytes);
  about->numRegs = 32;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* /*kernel*/, cudaFuncAttribute /*what*/,
                                 int /*value*/) {
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* ctas, const void* /*kernel*/, int /*threads*/, size_t /*shared*/, unsigned int /*flags*/) {
  *ctas = kCtasOfMultiprocessor;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* ctas, const void* kernel,
                                                          int threads, size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(ctas, kernel, threads, shared, 0);
}

// --- Memory -------------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** address, size_t bytes) {
  *address = allocate(bytes, {cudaMemoryTypeDevice, thread_device});
  return *address == nullptr ? failed(cudaErrorMemoryAllocation) : cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = size_t{64} << 30;
  return cudaSuccess;
}
cudaError_t cudaFree(void* address) {
  if (address == nullptr) return cudaSuccess;
  if (!forget_memory(address)) return failed(cudaErrorInvalidValue);
  (void)cudaDeviceSynchronize();
  std::free(address);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned int /*flags*/) {
  // On a page, as of a GPU: adapters share whole ones.
  *address = allocate(bytes, {cudaMemoryTypeHost, thread_device}, kPage);
  return *address == nullptr ? failed(cudaErrorMemoryAllocation) : cudaSuccess;
}
cudaError_t cudaMallocHost(void** address, size_t bytes) {
  return cudaHostAlloc(address, bytes, 0);
}
cudaError_t cudaFreeHost(void* address) {
  return cudaFree(address);
}
cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned int flags) {
  if ((flags & cudaHostRegisterIoMemory) != 0) return map_io_page(address, bytes);
  if (find_memory(address).type != cudaMemoryTypeUnregistered) {
    return failed(cudaErrorHostMemoryAlreadyRegistered);
  }
  note_memory(address, bytes, {cudaMemoryTypeHost, thread_device});
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* address) {
  if (unmap_io_page(address)) return cudaSuccess;
  return forget_memory(address) ? cudaSuccess : failed(cudaErrorHostMemoryNotRegistered);
}
cudaError_t cudaHostGetDevicePointer(void** of_kernels, void* address, unsigned int /*flags*/) {
  void* const of_io = find_io_page(address);
  *of_kernels = of_io == nullptr ? address : of_io;
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* about, const void* address) {
  const Memory memory = find_memory(address);
  *about = {};
  about->type = memory.type;
  about->device = memory.device;
  about->devicePointer = const_cast<void*>(address);
  about->hostPointer = memory.type == cudaMemoryTypeDevice ? nullptr : const_cast<void*>(address);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/,
                            cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (find_memory(from).type != cudaMemoryTypeUnregistered) {
    stream_of(stream).enqueue([=] { std::memcpy(to, from, bytes); });
    return cudaSuccess;
  }
  // Pageable memory is read before the call returns, the other side is written later.
  const auto* const begin = static_cast<const std::byte*>(from);
  stream_of(stream).enqueue([to, copy = std::vector<std::byte>(begin, begin + bytes)] {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    std::memcpy(to, copy.data(), copy.size());
  });
  return cudaSuccess;
}
// From pageable memory it returns when that has been read, as CUDA does with at most 64 KiB.
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  (void)cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  const bool is_staged = bytes <= 65536 && find_memory(from).type == cudaMemoryTypeUnregistered;
  return is_staged ? cudaSuccess : cudaStreamSynchronize(nullptr);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int /*to_device*/, const void* from, int /*from_device*/,
                                size_t bytes, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  if (bytes != 0) stream_of(stream).enqueue([=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  (void)cudaMemsetAsync(to, value, bytes, nullptr);
  return cudaStreamSynchronize(nullptr);
}

// --- The driver ---------------------------------------------------------------------------------------

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function,
                                             unsigned int /*version*/, unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* found) {
  *function = find_driver_function(name);
  *found = *function == nullptr ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return cudaSuccess;
}

}  // extern "C"

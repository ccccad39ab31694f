// Device memory that other processes map: a file in memory, mapped at addresses that were kept for it.
#include <cuda.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "cuda_on_host/runtime.hpp"
#include "cuda_on_host/streams.hpp"

namespace cuda_on_host {
namespace {

constexpr size_t kGranularity = 2 << 20;

struct Allocation {
  int fd;
  int device;
};

Allocation* allocation_of(CUmemGenericAllocationHandle handle) {
  return reinterpret_cast<Allocation*>(handle);
}
void* address_of(CUdeviceptr pointer) {
  return reinterpret_cast<void*>(pointer);
}
CUcontext context_of(int device) {
  return reinterpret_cast<CUcontext>(static_cast<intptr_t>(device) + 1);
}
int device_of(CUcontext context) {
  return static_cast<int>(reinterpret_cast<intptr_t>(context) - 1);
}

thread_local std::vector<int> pushed;  // devices before

// The descriptors of what is mapped, by address.
struct Mapped {
  std::mutex mutex;
  std::map<CUdeviceptr, int> descriptors;
};
Mapped& mapped() {
  static Mapped all;
  return all;
}

CUresult create(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* kind,
                unsigned long long /*flags*/) {
  const int fd = memfd_create("device memory", MFD_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    (void)close(fd);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(new Allocation{fd, kind->location.id});
  return CUDA_SUCCESS;
}
CUresult release(CUmemGenericAllocationHandle handle) {
  (void)close(allocation_of(handle)->fd);
  delete allocation_of(handle);
  return CUDA_SUCCESS;
}
CUresult export_handle(void* out, CUmemGenericAllocationHandle handle,
                       CUmemAllocationHandleType /*type*/, unsigned long long /*flags*/) {
  const int fd = dup(allocation_of(handle)->fd);
  if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memcpy(out, &fd, sizeof fd);
  return CUDA_SUCCESS;
}
CUresult import_handle(CUmemGenericAllocationHandle* handle, void* os_handle,
                       CUmemAllocationHandleType /*type*/) {
  const int fd = dup(static_cast<int>(reinterpret_cast<intptr_t>(os_handle)));
  if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(new Allocation{fd, current_device()});
  return CUDA_SUCCESS;
}

CUresult reserve(CUdeviceptr* pointer, size_t bytes, size_t /*alignment*/, CUdeviceptr /*wish*/,
                 unsigned long long /*flags*/) {
  void* address =
      mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *pointer = reinterpret_cast<CUdeviceptr>(address);
  return CUDA_SUCCESS;
}
CUresult free_address(CUdeviceptr pointer, size_t bytes) {
  return munmap(address_of(pointer), bytes) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult map(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long /*flags*/) {
  const Allocation& from = *allocation_of(handle);
  struct stat about {};
  if (fstat(from.fd, &about) != 0 || static_cast<size_t>(about.st_size) < offset + bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (mmap(address_of(pointer), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, from.fd,
           static_cast<off_t>(offset)) == MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  note_memory(address_of(pointer), bytes, {cudaMemoryTypeDevice, from.device});
  const std::lock_guard lock(mapped().mutex);
  mapped().descriptors[pointer] = from.fd;
  return CUDA_SUCCESS;
}
CUresult unmap(CUdeviceptr pointer, size_t bytes) {
  (void)forget_memory(address_of(pointer));
  {
    const std::lock_guard lock(mapped().mutex);
    mapped().descriptors.erase(pointer);
  }
  const void* kept = mmap(address_of(pointer), bytes, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return kept == MAP_FAILED ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
// A whole mapping: what it is made of.
CUresult range_handle(void* out, CUdeviceptr pointer, size_t /*bytes*/,
                      CUmemRangeHandleType /*type*/, unsigned long long /*flags*/) {
  const std::lock_guard lock(mapped().mutex);
  const auto found = mapped().descriptors.find(pointer);
  const int fd = found == mapped().descriptors.end() ? -1 : dup(found->second);
  if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(out, &fd, sizeof fd);
  return CUDA_SUCCESS;
}
CUresult set_access(CUdeviceptr /*pointer*/, size_t /*bytes*/, const CUmemAccessDesc* access,
                    size_t /*count*/) {
  return is_device(access->location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult granularity(size_t* bytes, const CUmemAllocationProp* /*kind*/,
                     CUmemAllocationGranularity_flags /*which*/) {
  *bytes = kGranularity;
  return CUDA_SUCCESS;
}

CUresult attribute(int* value, CUdevice_attribute which, CUdevice device) {
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *value = which == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED ||
                   which == CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED ||
                   which == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING
               ? 1
               : 0;
  return CUDA_SUCCESS;
}
CUresult error_string(CUresult /*result*/, const char** text) {
  *text = "an error of the driver that the host plays";
  return CUDA_SUCCESS;
}
CUresult current_context(CUcontext* context) {
  *context = has_context(current_device()) ? context_of(current_device()) : nullptr;
  return CUDA_SUCCESS;
}
CUresult stream_context(CUstream stream, CUcontext* context) {
  *context = context_of(stream_of(stream).device());
  return CUDA_SUCCESS;
}
CUresult push_context(CUcontext context) {
  pushed.push_back(current_device());
  set_current_device(device_of(context));
  return CUDA_SUCCESS;
}
CUresult pop_context(CUcontext* context) {
  if (pushed.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = context_of(current_device());
  set_current_device(pushed.back());
  pushed.pop_back();
  return CUDA_SUCCESS;
}
CUresult context_device(CUdevice* device) {
  *device = current_device();
  return CUDA_SUCCESS;
}
CUresult retain_context(CUcontext* context, CUdevice device) {
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  start_context(device);
  *context = context_of(device);
  return CUDA_SUCCESS;
}
CUresult context_state(CUdevice device, unsigned int* flags, int* active) {
  *flags = 0;
  *active = has_context(device) ? 1 : 0;
  return CUDA_SUCCESS;
}

template <typename Function>
void* as_address(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

void* find_driver_function(const char* name) {
  const struct {
    const char* name;
    void* function;
  } functions[] = {
      {"cuMemCreate", as_address(create)},
      {"cuMemRelease", as_address(release)},
      {"cuMemMap", as_address(map)},
      {"cuMemUnmap", as_address(unmap)},
      {"cuMemSetAccess", as_address(set_access)},
      {"cuMemAddressReserve", as_address(reserve)},
      {"cuMemAddressFree", as_address(free_address)},
      {"cuMemExportToShareableHandle", as_address(export_handle)},
      {"cuMemImportFromShareableHandle", as_address(import_handle)},
      {"cuMemGetHandleForAddressRange", as_address(range_handle)},
      {"cuMemGetAllocationGranularity", as_address(granularity)},
      {"cuDeviceGetAttribute", as_address(attribute)},
      {"cuGetErrorString", as_address(error_string)},
      {"cuStreamGetCtx", as_address(stream_context)},
      {"cuCtxGetCurrent", as_address(current_context)},
      {"cuCtxPushCurrent", as_address(push_context)},
      {"cuCtxPopCurrent", as_address(pop_context)},
      {"cuCtxGetDevice", as_address(context_device)},
      {"cuDevicePrimaryCtxRetain", as_address(retain_context)},
      {"cuDevicePrimaryCtxGetState", as_address(context_state)},
  };
  for (const auto& each : functions) {
    if (std::strcmp(each.name, name) == 0) return each.function;
  }
  return nullptr;
}

}  // namespace cuda_on_host

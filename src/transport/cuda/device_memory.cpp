#include "transport/cuda/device_memory.hpp"

#include <cuda.h>
#include <cuda_runtime.h>

#include <array>
#include <atomic>

#include "base/status.hpp"

namespace mep {
namespace {

[[nodiscard]] mep_result_t runtime_failed(cudaError_t error, const char* what) {
  (void)cudaGetLastError();
  switch (error) {
    case cudaErrorMemoryAllocation:
      return fail(MEP_ERR_NO_MEMORY, "%s: %s", what, cudaGetErrorString(error));
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInitializationError:
    case cudaErrorStubLibrary:
      return fail(MEP_ERR_UNSUPPORTED, "%s: no usable GPU or driver here (%s)", what,
                  cudaGetErrorString(error));
    default:
      return fail(MEP_ERR_DEVICE, "%s: %s", what, cudaGetErrorString(error));
  }
}

[[nodiscard]] mep_result_t check(cudaError_t error, const char* what) {
  return error == cudaSuccess ? mep_result_t{MEP_SUCCESS} : runtime_failed(error, what);
}

// Functions of the driver, found at run time: the library loads where there is no driver.
struct Driver {
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free = nullptr;
  decltype(&cuMemExportToShareableHandle) export_handle = nullptr;
  decltype(&cuMemImportFromShareableHandle) import_handle = nullptr;
  decltype(&cuMemGetHandleForAddressRange) range_handle = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuDeviceGetAttribute) attribute = nullptr;
  decltype(&cuGetErrorString) error_string = nullptr;
  decltype(&cuStreamGetCtx) stream_context = nullptr;
  decltype(&cuCtxGetCurrent) current_context = nullptr;
  decltype(&cuCtxPushCurrent) push_context = nullptr;
  decltype(&cuCtxPopCurrent) pop_context = nullptr;
  decltype(&cuCtxGetDevice) context_device = nullptr;
  decltype(&cuDevicePrimaryCtxRetain) retain_context = nullptr;
  bool complete = true;

  template <typename Function>
  void find(const char* name, Function* function) {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found{};
    const bool is_there = cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault,
                                                           &found) == cudaSuccess &&
                          found == cudaDriverEntryPointSuccess;
    complete = complete && is_there;
    *function = reinterpret_cast<Function>(address);
  }
  Driver() {
    find("cuMemCreate", &create);
    find("cuMemRelease", &release);
    find("cuMemMap", &map);
    find("cuMemUnmap", &unmap);
    find("cuMemSetAccess", &set_access);
    find("cuMemAddressReserve", &reserve);
    find("cuMemAddressFree", &free);
    find("cuMemExportToShareableHandle", &export_handle);
    find("cuMemImportFromShareableHandle", &import_handle);
    find("cuMemGetHandleForAddressRange", &range_handle);
    find("cuMemGetAllocationGranularity", &granularity);
    find("cuDeviceGetAttribute", &attribute);
    find("cuGetErrorString", &error_string);
    find("cuStreamGetCtx", &stream_context);
    find("cuCtxGetCurrent", &current_context);
    find("cuCtxPushCurrent", &push_context);
    find("cuCtxPopCurrent", &pop_context);
    find("cuCtxGetDevice", &context_device);
    find("cuDevicePrimaryCtxRetain", &retain_context);
  }
};

// Looked up when a device is first used, never before: that would start the driver in every process.
const Driver& driver() {
  static const Driver functions;
  return functions;
}

[[nodiscard]] mep_result_t check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return MEP_SUCCESS;
  const char* text = "unknown error";
  (void)driver().error_string(result, &text);
  const mep_result_t code =
      result == CUDA_ERROR_OUT_OF_MEMORY ? MEP_ERR_NO_MEMORY : mep_result_t{MEP_ERR_DEVICE};
  return fail(code, "%s: %s", what, text);
}

bool has_attribute(int32_t device, CUdevice_attribute attribute) {
  int value = 0;
  return driver().complete && driver().attribute(&value, attribute, device) == CUDA_SUCCESS &&
         value != 0;
}

// The context of the GPU that the CUDA runtime uses, started where it is not yet; held until the process ends, as the
// runtime does.
CUresult context_of(int32_t device, CUcontext* context) {
  constexpr int32_t kMostDevices = 64;
  static std::array<std::atomic<CUcontext>, kMostDevices> held{};
  if (device < 0 || device >= kMostDevices) return CUDA_ERROR_INVALID_DEVICE;
  *context = held[device].load(std::memory_order_relaxed);
  if (*context != nullptr) return CUDA_SUCCESS;
  const CUresult result = driver().retain_context(context, device);
  // Relaxed: the driver has published what the handle stands for.
  if (result == CUDA_SUCCESS) held[device].store(*context, std::memory_order_relaxed);
  return result;
}

CUmemAllocationProp allocation_kind(int32_t device) {
  CUmemAllocationProp kind{};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  kind.location.id = device;
  if (has_attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) {
    kind.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  }
  // It cannot be added later.
  if (has_attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)) {
    kind.allocFlags.gpuDirectRDMACapable = 1;
  }
  return kind;
}

}  // namespace

mep_result_t count_devices(int32_t* count) {
  *count = 0;
  MEP_TRY(check(cudaGetDeviceCount(count), "looking for GPUs"));
  if (*count > 0) return MEP_SUCCESS;
  return fail(MEP_ERR_UNSUPPORTED, "this machine has no GPU that CUDA can use");
}

mep_result_t describe_device(int32_t device, DeviceFacts* facts) {
  int32_t count = 0;
  MEP_TRY(count_devices(&count));
  if (device < 0 || device >= count) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "device is %d, this machine has GPUs 0 to %d", device,
                count - 1);
  }
  cudaDeviceProp about{};
  MEP_TRY(check(cudaGetDeviceProperties(&about, device), "cudaGetDeviceProperties"));
  facts->name = about.name;
  char pci[32] = "";
  MEP_TRY(check(cudaDeviceGetPCIBusId(pci, sizeof pci, device), "cudaDeviceGetPCIBusId"));
  facts->pci = pci;
  facts->multiprocessors = static_cast<uint32_t>(about.multiProcessorCount);
  facts->memory_bytes = about.totalGlobalMem;
  facts->compute_capability = about.major * 10 + about.minor;
  static_assert(sizeof about.uuid == sizeof facts->uuid);
  __builtin_memcpy(facts->uuid.data(), &about.uuid, sizeof about.uuid);
  facts->exports_memory =
      has_attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
  return MEP_SUCCESS;
}

bool orders_writes_of_nics(int32_t device) {
  return has_attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
}

bool device_reaches(int32_t device, int32_t peer) {
  if (device == peer) return true;
  int can = 0;
  return cudaDeviceCanAccessPeer(&can, device, peer) == cudaSuccess && can != 0;
}

bool may_reach(int32_t device, const std::array<uint64_t, 2>& uuid) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return true;
  for (int each = 0; each < count; ++each) {
    cudaDeviceProp about{};
    if (cudaGetDeviceProperties(&about, each) != cudaSuccess) continue;
    if (__builtin_memcmp(&about.uuid, uuid.data(), sizeof about.uuid) == 0) {
      return device_reaches(device, each);
    }
  }
  return true;
}

// By its context, not by cudaSetDevice: to set a thread's device back to GPU 0, where it is unless the program says
// otherwise, would start a context there.
DeviceScope::DeviceScope(int32_t device) {
  if (!driver().complete) return;
  CUcontext current = nullptr;
  CUcontext wanted = nullptr;
  const CUresult found = context_of(device, &wanted);
  error_ = static_cast<int32_t>(found);
  if (found != CUDA_SUCCESS) return;
  (void)driver().current_context(&current);
  if (current == wanted) return;
  CUresult pushed = driver().push_context(wanted);
  if (pushed == CUDA_ERROR_CONTEXT_IS_DESTROYED) {  // by cudaDeviceReset
    (void)driver().retain_context(&wanted, device);
    pushed = driver().push_context(wanted);
  }
  error_ = static_cast<int32_t>(pushed);
  is_pushed_ = pushed == CUDA_SUCCESS;
}
DeviceScope::~DeviceScope() {
  CUcontext popped = nullptr;
  if (is_pushed_) (void)driver().pop_context(&popped);
}
mep_result_t DeviceScope::check() const {
  if (!driver().complete) {
    return fail(MEP_ERR_UNSUPPORTED, "the GPU driver is too old: CUDA 12 or later is needed");
  }
  return mep::check(static_cast<CUresult>(error_), "starting the GPU");
}

mep_result_t DeviceMemory::create(int32_t device, size_t bytes,
                                  std::shared_ptr<DeviceMemory>* out) {
  const DeviceScope scope(device);
  MEP_TRY(scope.check());
  const CUmemAllocationProp kind = allocation_kind(device);
  size_t grain = 0;
  MEP_TRY(mep::check(driver().granularity(&grain, &kind, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                     "cuMemGetAllocationGranularity"));
  std::shared_ptr<DeviceMemory> memory(new DeviceMemory);
  memory->device_ = device;
  memory->bytes_ = (bytes + grain - 1) / grain * grain;
  CUmemGenericAllocationHandle handle = 0;
  MEP_TRY(mep::check(driver().create(&handle, memory->bytes_, &kind, 0), "device memory"));
  memory->handle_ = handle;
  MEP_TRY(memory->map());
  MEP_TRY(mep::check(cudaMemset(memory->data(), 0, memory->bytes_), "zeroing device memory"));
  MEP_TRY(mep::check(cudaStreamSynchronize(nullptr), "zeroing device memory"));
  *out = std::move(memory);
  return MEP_SUCCESS;
}

mep_result_t DeviceMemory::import(int32_t device, size_t bytes, const UniqueFd& fd,
                                  std::shared_ptr<DeviceMemory>* out) {
  const DeviceScope scope(device);
  MEP_TRY(scope.check());
  std::shared_ptr<DeviceMemory> memory(new DeviceMemory);
  memory->device_ = device;
  memory->bytes_ = bytes;
  CUmemGenericAllocationHandle handle = 0;
  MEP_TRY(mep::check(
      driver().import_handle(&handle, std::bit_cast<void*>(static_cast<intptr_t>(fd.get())),
                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "taking a peer's device memory"));
  memory->handle_ = handle;
  MEP_TRY(memory->map());
  *out = std::move(memory);
  return MEP_SUCCESS;
}

mep_result_t DeviceMemory::map() {
  CUdeviceptr address = 0;
  MEP_TRY(mep::check(driver().reserve(&address, bytes_, 0, 0, 0), "cuMemAddressReserve"));
  address_ = address;
  MEP_TRY(mep::check(driver().map(address, bytes_, 0, handle_, 0), "cuMemMap"));
  mapped_ = true;
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device_;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return mep::check(driver().set_access(address_, bytes_, &access, 1), "cuMemSetAccess");
}

DeviceMemory::~DeviceMemory() {
  const DeviceScope scope(device_);
  if (mapped_) (void)driver().unmap(address_, bytes_);
  if (address_ != 0) (void)driver().free(address_, bytes_);
  if (handle_ != 0) (void)driver().release(handle_);
}

mep_result_t DeviceMemory::export_fd(UniqueFd* fd) const {
  int number = -1;
  MEP_TRY(mep::check(
      driver().export_handle(&number, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      "exporting device memory"));
  *fd = UniqueFd(number);
  return MEP_SUCCESS;
}

mep_result_t DeviceMemory::export_dmabuf(UniqueFd* fd) const {
  if (!has_attribute(device_, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)) {
    return fail(MEP_ERR_UNSUPPORTED, "the driver of GPU %d has no dmabuf", device_);
  }
  const DeviceScope scope(device_);
  MEP_TRY(scope.check());
  int number = -1;
  MEP_TRY(mep::check(
      driver().range_handle(&number, address_, bytes_, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
      "a dmabuf of device memory"));
  *fd = UniqueFd(number);
  return MEP_SUCCESS;
}

mep_result_t PinnedMemory::create(size_t bytes, std::shared_ptr<PinnedMemory>* out) {
  std::shared_ptr<PinnedMemory> memory(new PinnedMemory);
  MEP_TRY(check(cudaHostAlloc(&memory->data_, bytes, cudaHostAllocMapped | cudaHostAllocPortable),
                "pinned host memory"));
  __builtin_memset(memory->data_, 0, bytes);
  *out = std::move(memory);
  return MEP_SUCCESS;
}

PinnedMemory::~PinnedMemory() {
  if (data_ != nullptr) (void)cudaFreeHost(data_);
}

mep_result_t PinnedRange::pin(void* data, size_t bytes) {
  MEP_TRY(check(cudaHostRegister(data, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable),
                "pinning host memory"));
  data_ = data;
  void* of_kernels = nullptr;
  MEP_TRY(check(cudaHostGetDevicePointer(&of_kernels, data, 0), "cudaHostGetDevicePointer"));
  if (of_kernels == data) return MEP_SUCCESS;
  return fail(MEP_ERR_UNSUPPORTED, "kernels reach pinned host memory at another address");
}

void PinnedRange::unpin() {
  if (data_ != nullptr) (void)cudaHostUnregister(data_);
  data_ = nullptr;
}

mep_result_t check_pointer(int32_t device, const void* memory, const char* name) {
  cudaPointerAttributes about{};
  MEP_TRY(check(cudaPointerGetAttributes(&about, memory), "cudaPointerGetAttributes"));
  // A kernel that cannot reach it would end all work of the process on the GPU.
  if (about.type == cudaMemoryTypeDevice && about.device != device) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "%s lies on GPU %d, the communicator's GPU is %d: give memory of that one", name,
                about.device, device);
  }
  if (about.type != cudaMemoryTypeUnregistered ||
      has_attribute(device, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS)) {
    return MEP_SUCCESS;
  }
  return fail(
      MEP_ERR_INVALID_ARGUMENT,
      "%s is ordinary host memory, which GPU %d cannot read: give device, managed or pinned "
      "memory",
      name, device);
}

mep_result_t check_stream_device(int32_t device, const void* stream) {
  static const bool has_one_gpu = [] {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count == 1;
  }();
  if (has_one_gpu || stream == nullptr) return MEP_SUCCESS;
  CUcontext current = nullptr;
  CUcontext of_stream = nullptr;
  auto* handle = static_cast<CUstream>(const_cast<void*>(stream));
  MEP_TRY(mep::check(driver().current_context(&current), "cuCtxGetCurrent"));
  MEP_TRY(mep::check(driver().stream_context(handle, &of_stream), "cuStreamGetCtx"));
  if (of_stream == current) return MEP_SUCCESS;
  // A part of the GPU (a green context) is not the thread's context either.
  CUdevice found = -1;
  MEP_TRY(mep::check(driver().push_context(of_stream), "cuCtxPushCurrent"));
  const CUresult asked = driver().context_device(&found);
  (void)driver().pop_context(&of_stream);
  MEP_TRY(mep::check(asked, "cuCtxGetDevice"));
  if (found == device) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT,
              "the stream is one of GPU %d, the communicator's GPU is %d: make it there", found,
              device);
}

mep_result_t copy_to_device(void* to, const void* from, size_t bytes) {
  MEP_TRY(check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "copying to the GPU"));
  // From pageable memory cudaMemcpy returns before it has written: kernels of other streams would read old
  // bytes, and the write would fault where the memory is unmapped meanwhile.
  return check(cudaStreamSynchronize(nullptr), "copying to the GPU");
}

mep_result_t copy_in_order(void* to, const void* from, size_t bytes, void* stream) {
  return check(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)),
      "a copy between host and GPU");
}

mep_result_t is_capturing(void* stream, bool* capturing) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  MEP_TRY(check(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status),
                "cudaStreamIsCapturing"));
  *capturing = status != cudaStreamCaptureStatusNone;
  return MEP_SUCCESS;
}

mep_result_t check_cuda(int32_t error, const char* what) {
  if (error == cudaErrorMisalignedAddress) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "%s: on a GPU rows, their strides, y, bias and out lie on 16 bytes, scales on "
                "their own size",
                what);
  }
  return check(static_cast<cudaError_t>(error), what);
}

mep_result_t DeviceStream::open() {
  cudaStream_t stream = nullptr;
  MEP_TRY(check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream"));
  stream_ = stream;
  return MEP_SUCCESS;
}

DeviceStream::~DeviceStream() {
  if (stream_ != nullptr) (void)cudaStreamDestroy(static_cast<cudaStream_t>(stream_));
}

mep_result_t DeviceStream::synchronize() const {
  return synchronize_stream(stream_);
}

DeviceEvent::~DeviceEvent() {
  if (event_ != nullptr) (void)cudaEventDestroy(static_cast<cudaEvent_t>(event_));
}

mep_result_t DeviceEvent::record(void* stream) {
  if (event_ == nullptr) {
    cudaEvent_t event = nullptr;
    MEP_TRY(check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event"));
    event_ = event;
  }
  return check(cudaEventRecord(static_cast<cudaEvent_t>(event_), static_cast<cudaStream_t>(stream)),
               "an event");
}

mep_result_t DeviceEvent::hold(void* stream) const {
  if (event_ == nullptr) return MEP_SUCCESS;
  return check(
      cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(event_), 0),
      "waiting for an event");
}

bool DeviceEvent::has_passed() const {
  return event_ == nullptr || cudaEventQuery(static_cast<cudaEvent_t>(event_)) != cudaErrorNotReady;
}

mep_result_t synchronize_stream(void* stream) {
  return check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "waiting for the GPU");
}

}  // namespace mep

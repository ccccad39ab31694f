#include "transport/cuda/mapped_page.hpp"

#include <cuda_runtime.h>

#include <bit>

#include "base/status.hpp"
#include "transport/cuda/device_memory.hpp"

namespace mep {

MappedPage::~MappedPage() {
  if (page_ != nullptr) (void)cudaHostUnregister(page_);
}

mep_result_t MappedPage::map(int32_t device, const void* address) {
  const DeviceScope scope(device);
  MEP_TRY(scope.check());
  auto* const page = std::bit_cast<std::byte*>(std::bit_cast<uint64_t>(address) / kBytes * kBytes);
  const auto registered = cudaHostRegister(
      page, kBytes, cudaHostRegisterIoMemory | cudaHostRegisterMapped | cudaHostRegisterPortable);
  MEP_TRY(check_cuda(registered, "mapping registers of another device"));
  page_ = page;
  void* of_kernels = nullptr;
  MEP_TRY(check_cuda(cudaHostGetDevicePointer(&of_kernels, page, 0), "cudaHostGetDevicePointer"));
  of_kernels_ = static_cast<std::byte*>(of_kernels);
  return MEP_SUCCESS;
}

std::byte* MappedPage::of_kernels(const void* address) const {
  return of_kernels_ + (static_cast<const std::byte*>(address) - page_);
}

}  // namespace mep

// A page of another device's registers that kernels store to.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mep.h"

namespace mep {

// By the threads that may call CUDA. The page may be mapped once in a process.
class MappedPage {
 public:
  static constexpr size_t kBytes = 4096;

  MappedPage() = default;
  ~MappedPage();
  MappedPage(const MappedPage&) = delete;
  MappedPage& operator=(const MappedPage&) = delete;
  // The page that has the address. Error: the driver's; most want an option of their module (PeerMappingOverride).
  [[nodiscard]] mep_result_t map(int32_t device, const void* address);
  // An address of the page, for kernels of that GPU.
  std::byte* of_kernels(const void* address) const;

 private:
  std::byte* page_ = nullptr;
  std::byte* of_kernels_ = nullptr;
};

}  // namespace mep

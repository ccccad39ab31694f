#include "transport/host_memory.hpp"

#include <utility>

#include "base/status.hpp"

namespace mep {

mep_result_t HostMemory::allocate(size_t bytes, void** memory) {
  auto allocation = std::make_shared<Mapping>();
  UniqueFd fd;
  MEP_TRY(create_memfd("mep-memory", bytes, &fd));
  MEP_TRY(Mapping::of(fd.get(), bytes, true, allocation.get()));
  std::byte* data = allocation->data();
  const std::lock_guard lock(mutex_);
  allocations_.emplace(reinterpret_cast<uintptr_t>(data), std::move(allocation));
  *memory = data;
  return MEP_SUCCESS;
}

mep_result_t HostMemory::free(void* memory, std::shared_ptr<const void>* kept) {
  std::shared_ptr<Mapping> freed;  // unmapped after the lock is released
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(reinterpret_cast<uintptr_t>(memory));
  if (found == allocations_.end()) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "%p is not the start of memory from mep_mem_alloc",
                memory);
  }
  freed = std::move(found->second);
  allocations_.erase(found);
  if (kept != nullptr) *kept = std::move(freed);
  return MEP_SUCCESS;
}

}  // namespace mep

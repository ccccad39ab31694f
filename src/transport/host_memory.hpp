// The memory that mep_mem_alloc gives on hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "mep.h"
#include "transport/memfd.hpp"

namespace mep {

// The memory that one rank has allocated. Any thread.
class HostMemory {
 public:
  // Zeroed and page-aligned.
  [[nodiscard]] mep_result_t allocate(size_t bytes, void** memory);
  // *kept (may be null) holds the mapping from then on.
  [[nodiscard]] mep_result_t free(void* memory, std::shared_ptr<const void>* kept);

 private:
  std::mutex mutex_;
  // By address of the first byte.
  std::map<uintptr_t, std::shared_ptr<Mapping>> allocations_;
};

}  // namespace mep

// Memory of mep_mem_alloc on GPUs, of all ranks of this process; a rank is named by its incarnation. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "mep.h"
#include "transport/cuda/gpu_window.hpp"

namespace mep {

class GpuAllocations {
 public:
  static GpuAllocations& instance();
  // Zeroed.
  [[nodiscard]] mep_result_t allocate(uint64_t rank, int32_t device, size_t bytes, void** memory);
  // The rank's memory that has all these bytes, or null.
  std::shared_ptr<GpuWindow> holding(uint64_t rank, const void* memory, size_t bytes);
  // The rank's memory that starts at `memory`, or null; it is the rank's no more.
  std::shared_ptr<GpuWindow> take(uint64_t rank, void* memory);

 private:
  std::mutex mutex_;
  std::map<std::pair<uint64_t, void*>, std::shared_ptr<GpuWindow>> windows_;
};

}  // namespace mep

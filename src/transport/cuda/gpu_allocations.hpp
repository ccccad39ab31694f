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
  // Null: `memory` is not the start of what the rank has allocated.
  std::shared_ptr<GpuWindow> find(uint64_t rank, void* memory);
  // The same, which is the rank's no more.
  std::shared_ptr<GpuWindow> take(uint64_t rank, void* memory);

 private:
  std::mutex mutex_;
  std::map<std::pair<uint64_t, void*>, std::shared_ptr<GpuWindow>> windows_;
};

}  // namespace mep

// Doorbells that kernels store to the adapter's page themselves. By the threads that may call CUDA.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "transport/cuda/device_memory.hpp"
#include "transport/cuda/mapped_page.hpp"
#include "transport/gpu_queue/doorbells.hpp"

namespace mep {

class GpuDoorbells final : public gpu_queue::PosterDoorbells {
 public:
  explicit GpuDoorbells(int32_t device) : device_(device) {}

  [[nodiscard]] mep_result_t add(uint64_t* word, uint64_t* doorbell,
                                 uint64_t** of_posters) override;
  void remove(const uint64_t* word) override;
  [[nodiscard]] mep_result_t ring(uint64_t* of_posters, uint64_t value) override;

 private:
  const int32_t device_;
  std::mutex mutex_;                                     // of what follows
  std::map<uint64_t, std::weak_ptr<MappedPage>> pages_;  // by number; queues share them
  std::map<const uint64_t*, std::shared_ptr<MappedPage>> users_;
};

}  // namespace mep

#include "transport/verbs/bounce_pool.hpp"

#include <sys/mman.h>

#include "base/status.hpp"

namespace mep::verbs {

mep_result_t BouncePool::open() {
  // Shared, so that a fork leaves the pages with this process.
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return fail(MEP_ERR_NO_MEMORY, "no memory to copy puts through: %m");
  memory_ = static_cast<std::byte*>(memory);
  MEP_TRY(registrar_->add(memory_, kBytes, false, &registration_));
  registered_ = true;
  free_.reserve(kChunks);
  for (uint32_t chunk = kChunks; chunk > 0; --chunk) free_.push_back(chunk - 1);
  return MEP_SUCCESS;
}

BouncePool::~BouncePool() {
  if (registered_) registrar_->remove(&registration_);
  if (memory_ != nullptr) munmap(memory_, kBytes);
}

bool BouncePool::take(uint32_t* chunk) {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return false;
  *chunk = free_.back();
  free_.pop_back();
  return true;
}

bool BouncePool::is_empty() {
  const std::lock_guard lock(mutex_);
  return free_.empty();
}

void BouncePool::give(uint32_t chunk) {
  const std::lock_guard lock(mutex_);
  free_.push_back(chunk);
}

}  // namespace mep::verbs

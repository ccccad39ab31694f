#include "transport/cuda/gpu_allocations.hpp"

#include "base/fork_hold.hpp"
#include "base/status.hpp"

namespace mep {

GpuAllocations& GpuAllocations::instance() {
  const ForkHold hold;
  static auto* allocations = new GpuAllocations();  // never destroyed: owners may end later
  return *allocations;
}

mep_result_t GpuAllocations::allocate(uint64_t rank, int32_t device, size_t bytes, void** memory) {
  std::shared_ptr<GpuWindow> window;
  MEP_TRY(GpuWindow::create(WindowPlace::kDevice, device, bytes, &window));
  void* const data = window->data();
  const ForkHold hold;
  const std::lock_guard lock(mutex_);
  windows_[{rank, data}] = std::move(window);
  *memory = data;
  return MEP_SUCCESS;
}

std::shared_ptr<GpuWindow> GpuAllocations::holding(uint64_t rank, const void* memory,
                                                   size_t bytes) {
  const ForkHold hold;
  const std::lock_guard lock(mutex_);
  auto after = windows_.upper_bound({rank, const_cast<void*>(memory)});
  if (after == windows_.begin()) return nullptr;
  const auto& [place, window] = *--after;
  const size_t from =
      reinterpret_cast<uintptr_t>(memory) - reinterpret_cast<uintptr_t>(place.second);
  const bool holds =
      place.first == rank && from < window->bytes() && bytes <= window->bytes() - from;
  return holds ? window : nullptr;
}

std::shared_ptr<GpuWindow> GpuAllocations::take(uint64_t rank, void* memory) {
  const ForkHold hold;
  const std::lock_guard lock(mutex_);
  auto node = windows_.extract({rank, memory});
  return node.empty() ? nullptr : std::move(node.mapped());
}

}  // namespace mep

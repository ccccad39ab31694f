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

std::shared_ptr<GpuWindow> GpuAllocations::find(uint64_t rank, void* memory) {
  const ForkHold hold;
  const std::lock_guard lock(mutex_);
  const auto found = windows_.find({rank, memory});
  return found == windows_.end() ? nullptr : found->second;
}

std::shared_ptr<GpuWindow> GpuAllocations::take(uint64_t rank, void* memory) {
  const ForkHold hold;
  const std::lock_guard lock(mutex_);
  auto node = windows_.extract({rank, memory});
  return node.empty() ? nullptr : std::move(node.mapped());
}

}  // namespace mep

// The memory of one buffer of an EP object of which some peers are reached through send queues, and the queues: see
// kernels/cuda/ep/queue_layout.hpp. By the user's thread, but for what says another.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/queued/queue_pairs.hpp"
#include "kernels/cuda/ep/kernels.hpp"
#include "transport/cuda/device_memory.hpp"

namespace mep {

class QueuedBuffer {
 public:
  // `mapped`: see QueuePairs.
  QueuedBuffer(const CommIdentity& comm, std::unique_ptr<gpu_queue::NicPairs> nic,
               std::vector<bool> mapped, const device::EpGeometry& geometry, int32_t device,
               uint32_t ranks_on_host)
      : device_(device),
        ranks_on_host_(ranks_on_host),
        max_tokens_(geometry.sizes.max_tokens),
        window_bytes_(geometry.window_bytes),
        layout_(device::make_ep_queue_layout(geometry)),
        ranks_(geometry.sizes.ranks),
        pairs_(comm, std::move(nic), std::move(mapped)) {}

  [[nodiscard]] mep_result_t offer(uint64_t id);
  [[nodiscard]] mep_result_t connect(const CommView& view, const Deadline& deadline, void* stream);
  // recv_x and the rest that the library keeps, as in a mapped window.
  std::byte* window() const { return window_->data(); }
  device::EpQueues kernels(std::byte* mapped_inbox) const;
  uint64_t inbox_bytes() const { return layout_.inbox_bytes; }
  // Kernels get the pages that a view change may have given the inbox, and queues to ranks that have come. Waits for the
  // stream then.
  [[nodiscard]] mep_result_t renew(const CommView& view, const Deadline& deadline, void* stream);
  bool reaches(const CommView& view, uint32_t rank) const { return pairs_.reaches(view, rank); }
  // Kernels have ended: see QueuePairs::finish().
  void finish() const { pairs_.finish(); }
  bool find_error(uint32_t rank, gpu_queue::QueueError* error) {
    return pairs_.find_error(rank, error);
  }
  // Control thread: queues of ranks that the view lacks end.
  void keep(const CommView& view) { pairs_.keep(view); }
  // Control thread: all queues end.
  void end() { pairs_.end(); }

 private:
  // On the GPU, or pinned where the NIC does not reach that.
  struct Memory {
    std::shared_ptr<DeviceMemory> gpu;
    std::shared_ptr<PinnedMemory> host;
    std::byte* data = nullptr;
  };

  // use(range) gives it to the pairs.
  template <typename Use>
  mep_result_t make_memory(bool tries_gpu, size_t bytes, const Use& use, Memory* out) const;
  template <typename Use>
  mep_result_t take_gpu_memory(size_t bytes, const Use& use, Memory* out) const;
  mep_result_t pin();

  const int32_t device_;
  const uint32_t ranks_on_host_;
  const uint32_t max_tokens_;
  const uint64_t window_bytes_;
  const device::EpQueueLayout layout_;
  const uint32_t ranks_;
  std::shared_ptr<DeviceMemory> window_;
  std::shared_ptr<DeviceMemory> scratch_;
  Memory outbox_;
  Memory inbox_;  // none: the window is the inbox
  std::shared_ptr<PinnedMemory> rings_;
  QueuePairs pairs_;
  PinnedRange pinned_window_;
  uint32_t pinned_generation_ = 0;  // of the window
};

}  // namespace mep

#include "core/ep/cuda/queued_buffer.hpp"

#include <vector>

#include "base/failpoint.hpp"
#include "base/log.hpp"
#include "base/status.hpp"
#include "base/unique_fd.hpp"
#include "core/ep/cuda/ep_geometry.hpp"

namespace mep {

mep_result_t QueuedBuffer::offer(uint64_t id) {
  // One request has all rows of a rank for one expert.
  if (max_tokens_ > gpu_queue::kMaxWrite / layout_.record_bytes) {
    return fail(MEP_ERR_UNSUPPORTED,
                "max_tokens_per_rank %u: GPUs that post to queues have at most %u of this "
                "hidden size",
                max_tokens_, static_cast<uint32_t>(gpu_queue::kMaxWrite / layout_.record_bytes));
  }
  MEP_TRY(DeviceMemory::create(device_, window_bytes_, &window_));
  MEP_TRY(DeviceMemory::create(device_, layout_.scratch_bytes, &scratch_));
  const bool has_adapter = pairs_.has_adapter();
  MEP_TRY(make_memory(
      has_adapter, layout_.outbox_bytes,
      [this](const gpu_queue::MemoryRange& range) { return pairs_.use_source(range); }, &outbox_));
  // Else the inbox is a window, which peers reach by the transports of the host.
  if (has_adapter) {
    MEP_TRY(make_memory(
        orders_writes_of_nics(device_), layout_.inbox_bytes,
        [this](const gpu_queue::MemoryRange& range) { return pairs_.use_inbox(range); }, &inbox_));
  }
  MEP_TRY(PinnedMemory::create(pairs_.ring_bytes(ranks_, device::kQueueEntries), &rings_));
  MEP_TRY(pairs_.offer(id, layout_.inbox_bytes,
                       {static_cast<std::byte*>(rings_->data()), device::kQueueEntries,
                        reinterpret_cast<uint64_t*>(scratch_->data() + layout_.ready)}));
  return inbox_.data == nullptr ? pin() : MEP_SUCCESS;
}

template <typename Use>
mep_result_t QueuedBuffer::make_memory(bool tries_gpu, size_t bytes, const Use& use,
                                       Memory* out) const {
  if (tries_gpu) {
    if (take_gpu_memory(bytes, use, out) == MEP_SUCCESS) return MEP_SUCCESS;
    log(LogLevel::kWarn, "%zu bytes of dispatch and combine are on the host, not on GPU %d: %s",
        bytes, device_, last_error_text());
    *out = {};
  }
  MEP_TRY(check_pinned_bytes(bytes, ranks_on_host_));
  MEP_TRY(PinnedMemory::create(bytes, &out->host));
  out->data = static_cast<std::byte*>(out->host->data());
  return use({out->data, bytes});
}

template <typename Use>
mep_result_t QueuedBuffer::take_gpu_memory(size_t bytes, const Use& use, Memory* out) const {
  MEP_TRY(DeviceMemory::create(device_, bytes, &out->gpu));
  UniqueFd dmabuf;
  // Without one the adapter's driver may still know the address.
  const bool has_dmabuf = out->gpu->export_dmabuf(&dmabuf) == MEP_SUCCESS;
  out->data = out->gpu->data();
  return use({out->data, bytes, has_dmabuf ? dmabuf.get() : -1});
}

mep_result_t QueuedBuffer::pin() {
  const Window& window = pairs_.window();
  pinned_generation_ = window.generation();
  return pinned_window_.pin(window.data(), window.bytes());
}

mep_result_t QueuedBuffer::connect(const CommView& view, const Deadline& deadline, void* stream) {
  MEP_TRY(pairs_.connect(view, deadline));
  const std::span<const gpu_queue::Queue> queues = pairs_.queues();
  return copy_in_order(scratch_->data() + layout_.queues, queues.data(), queues.size_bytes(),
                       stream);
}

device::EpQueues QueuedBuffer::kernels(std::byte* mapped_inbox) const {
  return {scratch_->data(), pairs_.inbox(), mapped_inbox, outbox_.data};
}

// The kernels that use the old pages and queues have left, or will soon: their epoch is over.
mep_result_t QueuedBuffer::renew(const CommView& view, const Deadline& deadline, void* stream) {
  const bool has_new_pages =
      inbox_.data == nullptr && pairs_.window().generation() != pinned_generation_;
  const bool has_all = pairs_.reaches(view);
  if (!has_new_pages && has_all && !pairs_.has_ended(view)) return MEP_SUCCESS;
  MEP_TRY(synchronize_stream(stream));
  if (has_new_pages) {
    pinned_window_.unpin();
    MEP_TRY(pin());
  }
  if (!has_all) MEP_FAILPOINT("joiner map");
  std::vector<uint32_t> added;
  MEP_TRY(pairs_.reach(view, deadline, &added));
  const std::vector<uint64_t> zeros(added.empty() ? 0 : device::kQueueEntries);
  for (const uint32_t rank : added) {
    const gpu_queue::Queue& queue = pairs_.queues()[rank];
    MEP_TRY(copy_in_order(queue.ready, zeros.data(), zeros.size() * sizeof(uint64_t), stream));
    MEP_TRY(copy_in_order(scratch_->data() + layout_.queues + rank * sizeof queue, &queue,
                          sizeof queue, stream));
  }
  return added.empty() ? MEP_SUCCESS : synchronize_stream(stream);
}

}  // namespace mep

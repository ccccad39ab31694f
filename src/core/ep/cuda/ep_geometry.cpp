#include "core/ep/cuda/ep_geometry.hpp"
#include "core/topo/usable.hpp"

#include <algorithm>

#include "base/status.hpp"
#include "kernels/cuda/ep/queue_layout.hpp"
#include "transport/gpu_queue/mlx5_queue.hpp"
#include "transport/gpu_queue/soft_pairs.hpp"

namespace mep {

device::EpGeometry ep_geometry(const EpShape& shape, const EpDeviceOptions& options,
                               GpuReach reach) {
  device::EpSizes sizes{};
  sizes.rank = shape.rank;
  sizes.ranks = shape.ranks;
  sizes.max_tokens = shape.max_tokens;
  sizes.hidden = shape.hidden;
  sizes.top_k = shape.top_k;
  sizes.experts = shape.experts;
  sizes.local_experts = shape.local_experts;
  sizes.input_type = shape.input_type;
  sizes.wire_type = shape.wire_type;
  sizes.combine_type = shape.combine_type;
  sizes.scale_type = shape.scale_type;
  sizes.row_bytes = shape.row_bytes;
  sizes.side_bytes = shape.side_bytes;
  sizes.slotted = shape.slotted() ? 1 : 0;
  sizes.column_major = options.column_major ? 1 : 0;
  sizes.high_throughput = shape.high_throughput() ? 1 : 0;
  sizes.by_token = reach != GpuReach::kDeviceWindows && !shape.high_throughput() ? 1 : 0;
  sizes.queued = reach == GpuReach::kQueues ? 1 : 0;
  sizes.expert_alignment = shape.expert_alignment;
  sizes.expanded_rows = shape.expanded() ? shape.expanded_rows() : 0;
  sizes.takes_terms = shape.has_combine_memory() ? 0 : 1;
  sizes.keeps_rows = shape.has_row_memory() ? 1 : 0;
  return device::make_ep_geometry(sizes);
}

mep_result_t check_ep_shape(const EpShape& shape) {
  if (shape.places() > device::kMaxPlaces) {
    return fail(MEP_ERR_UNSUPPORTED,
                "%u ranks with experts_per_rank %u have %u places; on a GPU at most %u work",
                shape.ranks, shape.local_experts, shape.places(), device::kMaxPlaces);
  }
  // The kernels count in 32 bits, and a count in a signal word has 24.
  if (shape.max_tokens > 0xffffff || shape.rows() > UINT32_MAX / 2) {
    return fail(MEP_ERR_UNSUPPORTED, "max_tokens_per_rank %u is too large for a GPU",
                shape.max_tokens);
  }
  return MEP_SUCCESS;
}

mep_result_t estimate_gpu_buffers(const GpuBackend& gpu, const EpShape& shape,
                                  const EpDeviceOptions& options, mep_ep_size_t* out) {
  MEP_TRY(check_ep_shape(shape));
  const GpuReach reach = gpu.reach();
  const device::EpGeometry geometry = ep_geometry(shape, options, reach);
  out->flags = 0;
  out->window_bytes = geometry.window_bytes;
  out->private_bytes = geometry.local_bytes + geometry.handle_bytes + geometry.expanded.bytes;
  if (reach == GpuReach::kHostWindows) out->window_bytes = geometry.pushed_bytes;
  // The library's outputs lie on the GPU, wherever peers write.
  if (reach != GpuReach::kDeviceWindows) out->private_bytes += geometry.window_bytes;
  if (reach == GpuReach::kQueues) {
    const device::EpQueueLayout layout = device::make_ep_queue_layout(geometry);
    out->window_bytes = layout.inbox_bytes * (gpu.mapped_ranks().empty() ? 1 : 2);
    // Whether adapters execute the queues is not known yet: those of the NIC that takes more.
    const uint64_t ring_bytes =
        std::max<uint64_t>(gpu_queue::SoftPairs::ring_bytes(device::kQueueEntries),
                           gpu_queue::mlx5::QueueLayout(device::kQueueEntries).bytes);
    out->private_bytes += layout.outbox_bytes + layout.scratch_bytes + shape.ranks * ring_bytes;
  }
  out->window_bytes *= shape.buffers;
  out->private_bytes *= shape.buffers;
  out->resident_bytes = out->window_bytes;  // pinned, or of the device: there from the start
  return MEP_SUCCESS;
}

mep_result_t check_pinned_bytes(uint64_t bytes, uint32_t ranks_on_host) {
  const uint64_t there = usable_memory();
  if (there == 0 || bytes <= there / ranks_on_host) return MEP_SUCCESS;
  return fail(MEP_ERR_NO_MEMORY,
              "the memory that GPUs write for their peers takes %llu pinned bytes for each of %u "
              "ranks of this host, and it has %llu (machine or control group): lower "
              "max_tokens_per_rank, hidden, experts_per_rank or num_buffers",
              static_cast<unsigned long long>(bytes), ranks_on_host,
              static_cast<unsigned long long>(there));
}

}  // namespace mep

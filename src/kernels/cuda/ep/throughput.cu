// The instances and launches of high throughput's dispatch.
#include "kernels/cuda/ep/expanded.hpp"
#include "kernels/cuda/ep/instances.hpp"
#include "kernels/cuda/ep/throughput_rows.cuh"

namespace mep::device {
namespace {

using DispatchKernel = void (*)(DispatchArgs);

DispatchKernel select_rows_kernel(const EpSizes& sizes) {
  return with_codec(sizes, [](auto codec) -> DispatchKernel {
    return throughput_rows_kernel<typename decltype(codec)::type>;
  });
}

static __global__ void __launch_bounds__(kEpThreads, 2)
    throughput_layout_kernel(const __grid_constant__ DispatchArgs a) {
  auto* const shared = launched_shared<uint32_t>();  // LayoutShared
  __shared__ uint32_t shared_last;
  DeviceChannel& channel = a.state()->channel;
  const LayoutShared layout(a.g);
  a.read_peers();
  const Waiter waiter(a.memory.control, &channel, static_cast<uint32_t>(EpPhase::kCounts));
  if (threadIdx.x == 0) {
    peer_table().use = channel.use + 1;
    peer_table().credited = a.state()->credited != 0;
  }
  bool ready = !has_failed(&channel, waiter.epoch);
  for (uint32_t place = threadIdx.x; place < a.g.places; place += kEpThreads) shared[place] = 0;
  ready = __syncthreads_and(ready) != 0;
  test_delay(a, 1);
  const uint64_t use = peer_table().use;
  if (blockIdx.x == 0) {
    if (ready) give_back_unused(a, waiter.epoch, use - 1);
    if (threadIdx.x == 0) {
      begin_dispatch(a, waiter.epoch, use);
      a.head()->epoch = waiter.epoch;
    }
  }
  if (ready) mark_throughput_chunks(a, layout, shared);
  if (!is_last_of(&channel.ticket[0], gridDim.x, &shared_last)) return;
  take_expert_counts(a);
  if (!ready || has_failed(&channel, waiter.epoch)) return;
  sum_chunks(a);
  // The word of column 0, which this thread stores, is ordered behind what this rank has read of a use that it did
  // not combine.
  if (threadIdx.x == 0 && !peer_table().credited) publish();
  __syncthreads();
  test_delay(a, 2);
  tell_counts(a, waiter.epoch, use);
  test_delay(a, 3);
  if (!await_first_rows(a, waiter, use)) return;
  if (a.arranges != 0) arrange_throughput(a, waiter, use);
}

static __global__ void __launch_bounds__(kEpThreads, 2)
    receive_throughput_kernel(const __grid_constant__ DispatchArgs a) {
  receive_alone(a, arrange_throughput<DispatchArgs>);
}

}  // namespace

int launch_throughput(const DispatchArgs& a, uint32_t most_ctas, cudaStream_t stream) {
  if (a.sends == 0) {
    launch_kernel(receive_throughput_kernel, 1, kEpThreads, 0, stream, a);
    return cudaPeekAtLastError();
  }
  if (a.replays == 0 && a.is_arranged == 0) {
    const size_t shared_bytes = layout_shared_bytes(a.g);
    const cudaError_t allowed =
        allow_shared_memory(reinterpret_cast<const void*>(throughput_layout_kernel), shared_bytes);
    if (allowed != cudaSuccess) return allowed;
    const uint32_t ctas = useful_layout_ctas(a, most_ctas);
    launch_kernel(throughput_layout_kernel, ctas, kEpThreads, shared_bytes, stream, a);
    const cudaError_t launched = cudaPeekAtLastError();
    if (launched != cudaSuccess) return launched;
    if (a.arranges != 0 && a.receives == 0) return launched;
  }
  const uint32_t ctas = useful_ctas(a.g, a.tokens, most_ctas);
  launch_kernel(select_rows_kernel(a.g.sizes), ctas, kEpThreads, 0, stream, a);
  return cudaPeekAtLastError();
}

int load_throughput_kernels(const EpGeometry& g, int* ctas_per_sm) {
  const size_t shared_bytes = layout_shared_bytes(g);
  const struct {
    DispatchKernel kernel;
    size_t shared_bytes;
  } kernels[] = {{throughput_layout_kernel, shared_bytes},
                 {select_rows_kernel(g.sizes), 0},
                 {receive_throughput_kernel, 0}};
  for (const auto& [kernel, bytes] : kernels) {
    const void* address = reinterpret_cast<const void*>(kernel);
    cudaError_t error = allow_shared_memory(address, bytes);
    if (error == cudaSuccess) error = resident_ctas_per_sm(address, bytes, ctas_per_sm);
    if (error != cudaSuccess) return error;
  }
  return g.expanded.rows != 0 ? load_expansion_kernels(g, ctas_per_sm) : int{cudaSuccess};
}

}  // namespace mep::device

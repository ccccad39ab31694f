// The dispatch kernels' instances and launches.
#include <algorithm>
#include <iterator>

#include "kernels/cuda/ep/expanded.hpp"
#include "kernels/cuda/ep/instances.hpp"
#include "kernels/cuda/ep/rows.cuh"
#include "kernels/cuda/ep/token_rows.cuh"

namespace mep::device {
namespace {

using DispatchKernel = void (*)(DispatchArgs);

template <class Codec>
DispatchKernel dispatch_kernel_for(uint32_t top_k) {
  switch (top_k) {
#define MEP_EP_TOP_K(k) \
  case k:               \
    return dispatch_kernel<Codec, k>;
#include "kernels/cuda/ep/instances.def"
#undef MEP_EP_TOP_K
    default:
      return dispatch_kernel<Codec, 0>;
  }
}

DispatchKernel select_dispatch_kernel(const EpSizes& sizes) {
  return with_codec(sizes, [&sizes](auto codec) -> DispatchKernel {
    using Codec = typename decltype(codec)::type;
    if constexpr (Codec::kIsCommon) return dispatch_kernel_for<Codec>(sizes.top_k);
    return dispatch_kernel<Codec, 0>;
  });
}

static __global__ void __launch_bounds__(kEpThreads, 2)
    receive_kernel(const __grid_constant__ DispatchArgs a) {
  receive_alone(a, arrange);
}

// Rows of experts lie far apart in a window on the host: more writers take longer, since the IOMMU looks up more pages
// than it holds.
constexpr uint32_t kMostScatteringCtas = 2;

DispatchArgs make_args(const EpLaunch& launch, const DispatchInput* send,
                       const DispatchOutput* receive, bool sends_late) {
  const EpGeometry& g = launch.geometry;
  DispatchArgs a{};
  a.g = g;
  a.has_rows = 1;
  a.memory = launch.memory;
  a.handle = launch.handle;
  a.test_delay = launch.test_delay;
  if (send != nullptr) {
    a.sends = 1;
    static_cast<DispatchInputs&>(a) = dispatch_inputs(g, *send);
    a.topk_idx = send->topk_idx;
    a.idx_is_int32 = send->topk_idx_type == MEP_INT32 ? 1 : 0;
    a.tokens = send->num_tokens;
    a.topk_weights = send->topk_weights;
    a.replays = send->replays ? 1 : 0;
    a.has_rows = send->has_rows ? 1 : 0;
    a.is_arranged = sends_late ? 1 : 0;
  }
  if (receive != nullptr) {
    a.arranges = 1;
    a.receives = receive->counts_only ? 0 : 1;
    static_cast<DispatchOutputs&>(a) = dispatch_outputs(g, *receive);
    a.recv_rows = receive->recv_capacity != 0 ? receive->recv_capacity / g.wire_row : UINT64_MAX;
  }
  const bool maps_peers = launch.queues.scratch == nullptr;
  const bool has_direct_rows = g.sizes.high_throughput != 0 && g.expanded.rows == 0 && maps_peers;
  a.keeps_own = has_direct_rows && a.sends != 0 && a.recv_x != nullptr ? 0 : 1;
  return a;
}

cudaError_t launch_kernel(DispatchKernel kernel, const DispatchArgs& a, uint32_t ctas,
                          size_t shared_bytes, cudaStream_t stream) {
  launch_kernel(kernel, ctas, kEpThreads, shared_bytes, stream, a);
  return cudaPeekAtLastError();
}

}  // namespace

int ep_dispatch(const EpLaunch& launch, const DispatchInput* send, const DispatchOutput* receive,
                void* stream_, bool sends_late) {
  const DispatchArgs a = make_args(launch, send, receive, sends_late);
  if (!are_aligned(a.g, a, a)) return cudaErrorMisalignedAddress;
  auto* stream = static_cast<cudaStream_t>(stream_);
  int error = cudaSuccess;
  if (launch.queues.scratch != nullptr) {
    error = launch_queued_dispatch(a, launch.queues, launch.ctas, stream);
  } else if (a.g.sizes.high_throughput != 0) {
    error = launch_throughput(a, launch.ctas, stream);
  } else if (a.sends != 0) {
    const size_t shared_bytes = shared_words(a.g, a.tokens) * sizeof(uint32_t);
    const DispatchKernel kernel = select_dispatch_kernel(a.g.sizes);
    error = allow_shared_memory(reinterpret_cast<const void*>(kernel), shared_bytes);
    if (error != cudaSuccess) return error;
    uint32_t ctas = useful_ctas(a.g, a.tokens, launch.ctas);
    if (a.memory.own != a.memory.window) ctas = std::min(ctas, kMostScatteringCtas);
    DispatchArgs sends = a;
    if (a.g.sizes.by_token != 0) sends.g.scale_group_step = a.g.scale_bytes;
    error = launch_kernel(kernel, sends, ctas, shared_bytes, stream);
  } else {
    error = launch_kernel(receive_kernel, a, 1, 0, stream);
  }
  if (error != cudaSuccess || a.receives == 0) return error;
  if (a.g.expanded.rows != 0) {
    ExpandedOutputs out = expanded_outputs(a.g, launch.memory.expanded, *receive);
    if (a.has_rows == 0) out.x = out.scales = nullptr;
    return launch_expansion(a, out, launch.ctas, stream);
  }
  if (a.g.sizes.by_token != 0) {
    if (launch.queues.scratch != nullptr) return error;  // rows were unpacked to where they go
    return launch_kernel(copy_tokens_kernel<DispatchArgs>, a, launch.ctas, 0, stream);
  }
  const void* copies[] = {a.recv_x, a.recv_scales, a.src_info, a.recv_topk_idx,
                          a.recv_topk_weights};
  const bool copies_any = std::any_of(std::begin(copies), std::end(copies),
                                      [](const void* copy) { return copy != nullptr; });
  if (!copies_any && a.memory.own == a.memory.window) return error;
  error = allow_shared_memory(reinterpret_cast<const void*>(copy_out_kernel), range_bytes(a.g));
  if (error != cudaSuccess) return error;
  return launch_kernel(copy_out_kernel, a, launch.ctas, range_bytes(a.g), stream);
}

int load_dispatch_kernels(const EpGeometry& g, int* ctas_per_sm) {
  const cudaError_t copies =
      allow_shared_memory(reinterpret_cast<const void*>(copy_out_kernel), range_bytes(g));
  if (copies != cudaSuccess) return copies;
  if (g.sizes.high_throughput != 0) {
    const int loaded = load_throughput_kernels(g, ctas_per_sm);
    if (loaded != cudaSuccess) return loaded;
    return resident_ctas_per_sm(reinterpret_cast<const void*>(copy_out_kernel), range_bytes(g),
                                ctas_per_sm);
  }
  const uint32_t words = 2 * g.places > kAloneWords ? 2 * g.places : kAloneWords;
  const size_t shared_bytes = words * sizeof(uint32_t);
  const cudaError_t allowed = allow_shared_memory(
      reinterpret_cast<const void*>(select_dispatch_kernel(g.sizes)), shared_bytes);
  if (allowed != cudaSuccess) return allowed;
  const struct {
    DispatchKernel kernel;
    size_t shared_bytes;
  } kernels[] = {{select_dispatch_kernel(g.sizes), shared_bytes},
                 {receive_kernel, 0},
                 {copy_out_kernel, range_bytes(g)},
                 {copy_tokens_kernel<DispatchArgs>, 0}};
  for (const auto& [kernel, bytes] : kernels) {
    const cudaError_t error =
        resident_ctas_per_sm(reinterpret_cast<const void*>(kernel), bytes, ctas_per_sm);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace mep::device

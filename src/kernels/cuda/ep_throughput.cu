// The instances and launches of high throughput's dispatch.
#include "kernels/cuda/ep_expanded.hpp"
#include "kernels/cuda/ep_instances.hpp"
#include "kernels/cuda/ep_throughput_rows.cuh"

namespace mep::device {
namespace {

using DispatchKernel = void (*)(DispatchArgs);

template <class Input>
DispatchKernel quantizing_kernel(uint32_t scale_type) {
  if (scale_type == MEP_SCALE_UE8M0)
    return throughput_rows_kernel<QuantizeCodec<Input, Ue8m0Scale>>;
  return throughput_rows_kernel<QuantizeCodec<Input, FloatScale>>;
}

DispatchKernel select_rows_kernel(const EpSizes& sizes) {
  const bool quantizes = sizes.wire_type == MEP_FLOAT8_E4M3 && sizes.input_type != MEP_FLOAT8_E4M3;
  if (!quantizes) return throughput_rows_kernel<CopyCodec>;
  if (sizes.input_type == MEP_FLOAT16) return quantizing_kernel<Float16>(sizes.scale_type);
  if (sizes.input_type == MEP_FLOAT32) return quantizing_kernel<Float32>(sizes.scale_type);
  return quantizing_kernel<Bfloat16>(sizes.scale_type);
}

static __global__ void __launch_bounds__(kEpThreads, 2)
    receive_throughput_kernel(const __grid_constant__ DispatchArgs a) {
  receive_alone(a, arrange_throughput);
}

}  // namespace

int launch_throughput(const DispatchArgs& a, uint32_t most_ctas, cudaStream_t stream) {
  if (a.sends == 0) {
    launch_kernel(receive_throughput_kernel, 1, kEpThreads, 0, stream, a);
    return cudaPeekAtLastError();
  }
  if (a.replays == 0) {
    const size_t shared_bytes = LayoutShared(a.g).words(a.g) * sizeof(uint32_t);
    const cudaError_t allowed =
        allow_shared_memory(reinterpret_cast<const void*>(throughput_layout_kernel), shared_bytes);
    if (allowed != cudaSuccess) return allowed;
    const uint32_t useful = chunks_of(a.tokens) / LayoutShared(a.g).warps + 1;
    const uint32_t ctas = useful < most_ctas ? useful : most_ctas;
    launch_kernel(throughput_layout_kernel, ctas, kEpThreads, shared_bytes, stream, a);
    const cudaError_t launched = cudaPeekAtLastError();
    if (launched != cudaSuccess) return launched;
  }
  const uint32_t ctas = useful_ctas(a.g, a.tokens, most_ctas);
  launch_kernel(select_rows_kernel(a.g.sizes), ctas, kEpThreads, 0, stream, a);
  return cudaPeekAtLastError();
}

int load_throughput_kernels(const EpGeometry& g, int* ctas_per_sm) {
  const size_t shared_bytes = LayoutShared(g).words(g) * sizeof(uint32_t);
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

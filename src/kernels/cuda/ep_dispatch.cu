// The dispatch kernels' instances and launches.
#include "kernels/cuda/ep_instances.hpp"
#include "kernels/cuda/ep_rows.cuh"

namespace mep::device {
namespace {

using DispatchKernel = void (*)(DispatchArgs);

template <class Codec>
DispatchKernel dispatch_kernel_for(uint32_t top_k) {
  switch (top_k) {
#define MEP_EP_TOP_K(k) \
  case k:               \
    return dispatch_kernel<Codec, k>;
#include "kernels/cuda/ep_instances.def"
#undef MEP_EP_TOP_K
    default:
      return dispatch_kernel<Codec, 0>;
  }
}

// Seldom used types have the general kernel alone.
template <class Input>
DispatchKernel general_kernel(uint32_t scale_type) {
  if (scale_type == MEP_SCALE_UE8M0) return dispatch_kernel<QuantizeCodec<Input, Ue8m0Scale>, 0>;
  return dispatch_kernel<QuantizeCodec<Input, FloatScale>, 0>;
}

DispatchKernel select_dispatch_kernel(const EpSizes& sizes) {
  const bool quantizes = sizes.wire_type == MEP_FLOAT8_E4M3 && sizes.input_type != MEP_FLOAT8_E4M3;
  if (!quantizes) return dispatch_kernel_for<CopyCodec>(sizes.top_k);
  if (sizes.input_type == MEP_FLOAT16) return general_kernel<Float16>(sizes.scale_type);
  if (sizes.input_type == MEP_FLOAT32) return general_kernel<Float32>(sizes.scale_type);
  if (sizes.scale_type == MEP_SCALE_UE8M0) {
    return dispatch_kernel_for<QuantizeCodec<Bfloat16, Ue8m0Scale>>(sizes.top_k);
  }
  return dispatch_kernel_for<QuantizeCodec<Bfloat16, FloatScale>>(sizes.top_k);
}

static __global__ void __launch_bounds__(kEpThreads, 2)
    receive_kernel(const __grid_constant__ DispatchArgs a) {
  a.read_peers();
  test_delay(a, 6);
  DeviceChannel& channel = a.state()->channel;
  const Waiter waiter(a.memory.control, &channel, static_cast<uint32_t>(EpPhase::kRows));
  if (threadIdx.x == 0 && channel.epoch != waiter.epoch) {
    fail(&channel, waiter.epoch, Cause::kOldEpoch, kNobody, waiter.phase);
  }
  __syncthreads();
  bool here = !has_failed(&channel, waiter.epoch);
  here = __syncthreads_and(here) != 0 && arrange(a, waiter, channel.use);
  receive_rows(a, waiter, channel.use, here);
}

bool is_aligned(const void* pointer, uint64_t unit) {
  return reinterpret_cast<uintptr_t>(pointer) % unit == 0;
}

DispatchArgs make_args(const EpLaunch& launch, const mep_dispatch_args_t& args) {
  const EpGeometry& g = launch.geometry;
  DispatchArgs a{};
  a.g = g;
  a.memory = launch.memory;
  a.handle = launch.handle;
  a.test_delay = launch.test_delay;
  a.sends = args.phase != MEP_PHASE_RECEIVE ? 1 : 0;
  a.receives = args.phase != MEP_PHASE_SEND ? 1 : 0;
  a.x = static_cast<const std::byte*>(args.x);
  a.x_scales = static_cast<const std::byte*>(args.x_scales);
  a.x_stride = args.x_stride_bytes != 0 ? args.x_stride_bytes : g.input_row;
  a.x_scales_stride = args.x_scales_stride_bytes != 0 ? args.x_scales_stride_bytes
                                                      : uint64_t{g.groups} * g.scale_bytes;
  a.topk_idx = args.topk_idx;
  a.idx_is_int32 = args.topk_idx_type == MEP_INT32 ? 1 : 0;
  a.tokens = args.num_tokens;
  a.topk_weights = args.topk_weights;
  std::byte* own_x = launch.memory.window + g.recv_x;
  std::byte* own_scales = launch.memory.window + g.scales;
  auto* own_info = reinterpret_cast<int32_t*>(launch.memory.window + g.src_info);
  a.recv_x = args.recv_x != own_x ? static_cast<std::byte*>(args.recv_x) : nullptr;
  a.recv_scales =
      args.recv_scales != own_scales ? static_cast<std::byte*>(args.recv_scales) : nullptr;
  a.src_info = args.src_info != own_info ? args.src_info : nullptr;
  a.recv_rows = args.recv_capacity != 0 ? args.recv_capacity / g.wire_row : UINT64_MAX;
  a.recv_scales_row_step = args.recv_scales_token_stride_bytes != 0
                               ? args.recv_scales_token_stride_bytes
                               : g.scale_row_step;
  a.recv_scales_expert_step = args.recv_scales_group_stride_bytes;
  if (a.recv_scales_expert_step == 0) {
    const bool row_major = g.sizes.column_major == 0;
    a.recv_scales_expert_step =
        row_major ? a.recv_scales_row_step * g.rows_per_expert : g.scale_expert_step;
  }
  a.recv_count[0] = args.recv_count;
  a.recv_count[1] = args.recv_count_host;
  a.layout_range = args.layout_range;
  a.recv_total = args.recv_total;
  a.statistics = args.statistics;
  a.op_status = args.op_status;
  return a;
}

bool aligned(const DispatchArgs& a) {
  constexpr uint64_t kRow = 16;
  const uint64_t scale = a.g.scale_bytes != 0 ? a.g.scale_bytes : 1;
  return is_aligned(a.x, kRow) && a.x_stride % kRow == 0 && is_aligned(a.recv_x, kRow) &&
         is_aligned(a.x_scales, scale) && a.x_scales_stride % scale == 0 &&
         is_aligned(a.recv_scales, scale) && a.recv_scales_row_step % scale == 0 &&
         a.recv_scales_expert_step % scale == 0;
}

// What goes beyond the default has to be asked for.
cudaError_t allow_shared_memory(DispatchKernel kernel, size_t bytes) {
  constexpr size_t kDefault = 36 << 10;  // less what the kernels declare themselves
  if (bytes <= kDefault) return cudaSuccess;
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

cudaError_t launch_kernel(DispatchKernel kernel, const DispatchArgs& a, uint32_t ctas,
                          size_t shared_bytes, cudaStream_t stream) {
  kernel<<<ctas, kEpThreads, shared_bytes, stream>>>(a);
  return cudaPeekAtLastError();
}

}  // namespace

int ep_dispatch(const EpLaunch& launch, const mep_dispatch_args_t& args, void* stream_) {
  const DispatchArgs a = make_args(launch, args);
  if (!aligned(a)) return cudaErrorMisalignedAddress;
  auto* stream = static_cast<cudaStream_t>(stream_);
  cudaError_t error = cudaSuccess;
  if (a.sends != 0) {
    const size_t shared_bytes = shared_words(a.g, a.tokens) * sizeof(uint32_t);
    const DispatchKernel kernel = select_dispatch_kernel(a.g.sizes);
    error = allow_shared_memory(kernel, shared_bytes);
    if (error != cudaSuccess) return error;
    // Few tokens are sooner done by few CTAs.
    constexpr uint32_t kUnitBytes = 512;  // of the wire, about
    const uint64_t helpful = (uint64_t{a.tokens} * a.g.wire_row / kUnitBytes) / kEpWarps + 1;
    const uint32_t ctas = helpful < launch.ctas ? static_cast<uint32_t>(helpful) : launch.ctas;
    error = launch_kernel(kernel, a, ctas, shared_bytes, stream);
  } else {
    error = launch_kernel(receive_kernel, a, 1, 0, stream);
  }
  if (error != cudaSuccess || a.receives == 0) return error;
  if (a.recv_x == nullptr && a.recv_scales == nullptr && a.src_info == nullptr) return error;
  return launch_kernel(copy_out_kernel, a, launch.ctas, 0, stream);
}

int load_dispatch_kernels(const EpGeometry& g, int* ctas_per_sm) {
  const uint32_t words = 2 * g.places > kAloneWords ? 2 * g.places : kAloneWords;
  const size_t shared_bytes = words * sizeof(uint32_t);
  const cudaError_t allowed = allow_shared_memory(select_dispatch_kernel(g.sizes), shared_bytes);
  if (allowed != cudaSuccess) return allowed;
  const struct {
    DispatchKernel kernel;
    size_t shared_bytes;
  } kernels[] = {
      {select_dispatch_kernel(g.sizes), shared_bytes}, {receive_kernel, 0}, {copy_out_kernel, 0}};
  for (const auto& [kernel, bytes] : kernels) {
    const cudaError_t error =
        resident_ctas_per_sm(reinterpret_cast<const void*>(kernel), bytes, ctas_per_sm);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace mep::device

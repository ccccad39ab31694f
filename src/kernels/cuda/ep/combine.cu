// The combine kernels' instances and launches.
#include "kernels/cuda/ep/combine.cuh"
#include "kernels/cuda/ep/expanded.hpp"
#include "kernels/cuda/ep/instances.hpp"

namespace mep::device {
namespace {

using CombineKernel = void (*)(CombineArgs);

// With few ranks a token has few rows, and more units of it are summed at a time.
CombineKernel throughput_kernel(uint32_t rows) {
  if (rows <= 2) return combine_kernel<Bfloat16, 2, true>;
  if (rows <= 4) return combine_kernel<Bfloat16, 4, true>;
  if (rows <= 8) return combine_kernel<Bfloat16, 8, true>;
  return combine_kernel<Bfloat16, 0, true>;
}

CombineKernel select_combine_kernel(const EpGeometry& g) {
  const bool throughput = g.sizes.high_throughput != 0;
  if (g.sizes.combine_type == MEP_FLOAT16) {
    return throughput ? combine_kernel<Float16, 0, true> : combine_kernel<Float16, 0, false>;
  }
  if (g.sizes.combine_type == MEP_FLOAT32) {
    return throughput ? combine_kernel<Float32, 0, true> : combine_kernel<Float32, 0, false>;
  }
  if (throughput) return throughput_kernel(g.row_k);
  switch (g.sizes.top_k) {
#define MEP_EP_TOP_K(k) \
  case k:               \
    return combine_kernel<Bfloat16, k, false>;
#include "kernels/cuda/ep/instances.def"
#undef MEP_EP_TOP_K
    default:
      return combine_kernel<Bfloat16, 0, false>;
  }
}

// Whether combine_kernel pushes by itself.
bool pushes_in_one(const EpGeometry& g) {
  return g.sizes.high_throughput == 0;
}

CombineKernel select_push_kernel(const EpGeometry& g) {
  return g.sizes.high_throughput != 0 ? push_terms_kernel<true> : push_terms_kernel<false>;
}

// The folded terms in the place of the caller's expanded ones.
void use_folded_terms(const EpLaunch& launch, std::byte* terms, CombineArgs* a) {
  const EpGeometry& g = launch.geometry;
  a->y = a->own_terms = terms;
  a->own_copy = nullptr;
  a->push = terms != launch.memory.window + g.combine_out ? 1 : 0;
  if (a->returned_weights == nullptr) return;
  a->returned_weights = reinterpret_cast<float*>(launch.memory.local + g.expanded.values);
}

int launch_with(CombineKernel kernel, const CombineArgs& a, uint32_t ctas, size_t shared_bytes,
                cudaStream_t stream) {
  const cudaError_t allowed =
      allow_shared_memory(reinterpret_cast<const void*>(kernel), shared_bytes);
  if (allowed != cudaSuccess) return allowed;
  launch_kernel(kernel, ctas, kEpThreads, shared_bytes, stream, a);
  return cudaPeekAtLastError();
}

int launch_push(const CombineArgs& a, uint32_t ctas, cudaStream_t stream) {
  // More CTAs than these get in each other's way on the link: the same combine takes up to twice the time.
  constexpr uint32_t kMostPushingCtas = 96;
  if (a.g.sizes.high_throughput != 0 && a.push != 0 && ctas > kMostPushingCtas) {
    ctas = kMostPushingCtas;
  }
  return launch_with(select_push_kernel(a.g), a, ctas, range_bytes(a.g), stream);
}

}  // namespace

int ep_combine(const EpLaunch& launch, const CombineInput* send, const CombineOutput* receive,
               bool push, void* stream) {
  const EpGeometry& g = launch.geometry;
  CombineArgs a{};
  a.g = g;
  a.memory = launch.memory;
  a.handle = launch.handle;
  a.test_delay = launch.test_delay;
  std::byte* kept_terms = launch.memory.own + g.combine_out;
  a.own_terms = kept_terms;
  if (send != nullptr) {
    a.sends = 1;
    a.y = static_cast<const std::byte*>(send->y);
    a.push = push || a.y != launch.memory.window + g.combine_out ? 1 : 0;
    if (receive != nullptr) a.own_terms = a.y;
    if (a.own_terms != a.y) a.own_copy = kept_terms;
    a.returned_weights = send->topk_weights;
  }
  if (receive != nullptr) {
    a.receives = 1;
    a.renormalize = (receive->flags & MEP_COMBINE_RENORMALIZE) != 0 ? 1 : 0;
    a.weights = receive->weights;
    a.bias = static_cast<const std::byte*>(receive->bias);
    a.token_bias[0] = static_cast<const std::byte*>(receive->token_bias);
    a.token_bias[1] = static_cast<const std::byte*>(receive->token_bias2);
    a.out = static_cast<std::byte*>(receive->out);
    a.out_weights = receive->recv_topk_weights;
    a.out_stride = receive->out_stride_bytes != 0 ? receive->out_stride_bytes : g.combine_row;
    a.op_status = op_status_place(receive->op_status, receive->op_status_bytes, g.sizes.ranks);
  }
  if (!is_row(a.y) || !is_row(a.bias) || !is_row(a.token_bias[0]) || !is_row(a.token_bias[1]) ||
      !is_row(a.out) || a.out_stride % 16 != 0) {
    return cudaErrorMisalignedAddress;
  }
  const auto order = static_cast<cudaStream_t>(stream);
  if (a.sends != 0 && g.expanded.rows != 0) {
    const cudaError_t error =
        launch_fold(a, a.y, a.returned_weights, kept_terms, launch.ctas, order);
    if (error != cudaSuccess) return error;
    use_folded_terms(launch, kept_terms, &a);
  }
  if (launch.queues.scratch != nullptr) {
    return launch_queued_combine(a, launch.queues, launch.ctas, order);
  }
  const bool pushes = a.push != 0 || a.returned_weights != nullptr;
  const bool in_one = pushes && a.receives != 0 && pushes_in_one(g);
  if (pushes && !in_one) {
    const int error = launch_push(a, launch.ctas, order);
    if (error != cudaSuccess || a.receives == 0) return error;
    a.sends = 0;
  }
  return launch_with(select_combine_kernel(g), a, a.receives != 0 ? launch.ctas : 1,
                     in_one ? range_bytes(g) : 0, order);
}

int load_combine_kernels(const EpGeometry& g, int* ctas_per_sm) {
  const struct {
    CombineKernel kernel;
    size_t shared_bytes;
  } kernels[] = {{select_push_kernel(g), range_bytes(g)},
                 {select_combine_kernel(g), pushes_in_one(g) ? range_bytes(g) : 0}};
  for (const auto& [kernel, bytes] : kernels) {
    const auto* function = reinterpret_cast<const void*>(kernel);
    cudaError_t error = allow_shared_memory(function, bytes);
    if (error == cudaSuccess) error = resident_ctas_per_sm(function, bytes, ctas_per_sm);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

int ep_load_kernels(const EpGeometry& geometry, bool queued, uint32_t* resident_ctas) {
  int device = 0;
  int processors = 0;
  int ctas_per_sm = 2;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  }
  int result = error;
  if (result == cudaSuccess) result = load_dispatch_kernels(geometry, &ctas_per_sm);
  if (result == cudaSuccess) result = load_combine_kernels(geometry, &ctas_per_sm);
  if (result == cudaSuccess && queued) {
    result = load_queued_dispatch_kernels(geometry, &ctas_per_sm);
  }
  if (result == cudaSuccess && queued) result = load_queued_combine_kernels(geometry, &ctas_per_sm);
  if (result == cudaSuccess) *resident_ctas = static_cast<uint32_t>(processors * ctas_per_sm);
  return result;
}

}  // namespace mep::device

// One block for each pair of expert and source. A product is rounded once to bfloat16, and with e4m3
// once to float32 before: the bits of the reference.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "device/expert.hpp"
#include "protocol/row_formats.hpp"

namespace mep::perf {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kVector = 8;  // values that a thread takes at once
constexpr uint32_t kScaleBlock = row_format(MEP_FLOAT8_E4M3, MEP_SCALE_FLOAT32).group;

__device__ float widen(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}
__device__ float from_e4m3(uint8_t bits) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, __NV_E4M3)));
}

__device__ void read_vector(const ExpertCall& call, uint64_t row, uint32_t at, float* values) {
  if (call.scales == nullptr) {
    const auto* words = reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(call.rows) +
                                                       row * call.hidden + at);
    const uint4 packed = *words;
    const uint32_t pairs[] = {packed.x, packed.y, packed.z, packed.w};
    for (uint32_t i = 0; i < kVector; ++i) {
      values[i] = widen(static_cast<uint16_t>(pairs[i / 2] >> (16 * (i % 2))));
    }
    return;
  }
  const auto* words = reinterpret_cast<const uint2*>(static_cast<const uint8_t*>(call.rows) +
                                                     row * call.hidden + at);
  const uint2 packed = *words;
  const uint32_t groups = (call.hidden + kScaleBlock - 1) / kScaleBlock;
  const float scale = call.scales[row * groups + at / kScaleBlock];
  const uint32_t quads[] = {packed.x, packed.y};
  for (uint32_t i = 0; i < kVector; ++i) {
    values[i] = from_e4m3(static_cast<uint8_t>(quads[i / 4] >> (8 * (i % 4)))) * scale;
  }
}

__device__ float factor_of(uint64_t expert) {
  return 0.5f + 0.125f * static_cast<float>(static_cast<uint32_t>(expert % 11));
}

__device__ void write_vector(const ExpertCall& call, uint64_t row, uint32_t at,
                             const float* values) {
  uint32_t pairs[kVector / 2] = {};
  for (uint32_t v = 0; v < kVector; ++v) {
    const uint32_t bits = __bfloat16_as_ushort(__float2bfloat16_rn(values[v]));
    pairs[v / 2] |= bits << (16 * (v % 2));
  }
  auto* to = static_cast<uint16_t*>(call.y) + row * call.hidden + at;
  *reinterpret_cast<uint4*>(to) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

__global__ void __launch_bounds__(kThreads) expert_kernel(ExpertCall call) {
  const uint32_t expert = blockIdx.y;
  const mep_range_t range = call.layout_range[expert * call.sources + blockIdx.x];
  const uint64_t first = uint64_t{expert} * call.capacity + static_cast<uint64_t>(range.begin);
  const auto rows = static_cast<uint32_t>(range.count);
  const float factor = factor_of(call.first_expert + expert);
  for (uint32_t i = 0; i < rows; ++i) {
    for (uint32_t at = threadIdx.x * kVector; at < call.hidden; at += kThreads * kVector) {
      float values[kVector];
      read_vector(call, first + i, at, values);
      for (float& value : values) value *= factor;
      write_vector(call, first + i, at, values);
    }
  }
}

// Rows of high throughput lie without gaps from the first on.
__global__ void __launch_bounds__(kThreads) mixing_kernel(ExpertCall call) {
  const mep_range_t last = call.layout_range[call.sources - 1];
  const auto rows = static_cast<uint64_t>(last.begin) + static_cast<uint64_t>(last.count);
  for (uint64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    for (uint32_t at = threadIdx.x * kVector; at < call.hidden; at += kThreads * kVector) {
      float values[kVector];
      read_vector(call, row, at, values);
      float sums[kVector] = {};
      for (uint32_t k = 0; k < call.top_k; ++k) {
        const int32_t expert = call.topk_idx[row * call.top_k + k];
        if (expert < 0) continue;
        const float factor = factor_of(call.first_expert + static_cast<uint32_t>(expert));
        const float weight = call.topk_weights[row * call.top_k + k];
        for (uint32_t v = 0; v < kVector; ++v) {
          const float output =
              widen(__bfloat16_as_ushort(__float2bfloat16_rn(__fmul_rn(values[v], factor))));
          sums[v] = __fadd_rn(sums[v], __fmul_rn(weight, output));
        }
      }
      write_vector(call, row, at, sums);
    }
  }
}

}  // namespace

cudaError_t load_expert_kernels() {
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, mixing_kernel);
  return error == cudaSuccess ? cudaFuncGetAttributes(&attributes, expert_kernel) : error;
}

cudaError_t launch_expert(const ExpertCall& call, cudaStream_t stream) {
  if (call.topk_idx != nullptr) {
    constexpr uint32_t kBlocks = 528;  // enough to fill a GPU
    mixing_kernel<<<kBlocks, kThreads, 0, stream>>>(call);
    return cudaGetLastError();
  }
  expert_kernel<<<dim3(call.sources, call.experts), kThreads, 0, stream>>>(call);
  return cudaGetLastError();
}

}  // namespace mep::perf

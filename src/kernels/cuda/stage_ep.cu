// Staged dispatch and combine: inputs to the staging, one CTA that asks the host and says what came, and the
// rows from the staging. Rows lie in the staging one behind the other, by range, so a row's place there is
// the count of rows before it.
#include "kernels/cuda/ep_caller.hpp"
#include "kernels/cuda/stage_device.cuh"

namespace mep::device {
namespace {

constexpr uint32_t kWarp = 32;
constexpr uint32_t kWarps = kStageThreads / kWarp;
constexpr uint32_t kRowCtas = 24;

struct CombineInputs {
  const std::byte* y;  // null: no rows are sent
  const float* weights;
  const std::byte* bias;
};

__device__ inline int64_t* ranges_of(const StageEpBuffer& buffer) {
  return reinterpret_cast<int64_t*>(buffer.local + buffer.geometry.layout_range);
}

// Calls visit(local expert, row of the expert, place in the staging) for the rows of this warp.
template <class Visit>
__device__ inline void each_row(const StageEpBuffer& buffer, Visit&& visit) {
  const uint32_t warps = gridDim.x * kWarps;
  const uint32_t warp = threadIdx.x / kWarp * gridDim.x + blockIdx.x;
  const int64_t* ranges = ranges_of(buffer);
  const uint32_t ranks = buffer.geometry.sizes.ranks;
  uint64_t before = 0;
  for (uint32_t i = 0; i < buffer.geometry.places; ++i) {
    const auto range = static_cast<uint64_t>(ranges[i]);
    const auto begin = static_cast<uint32_t>(range >> 32);
    const auto count = static_cast<uint32_t>(range);
    const auto taken = static_cast<uint32_t>(before % warps);
    for (uint32_t row = (warp + warps - taken) % warps; row < count; row += warps) {
      visit(i / ranks, begin + row, before + row);
    }
    before += count;
  }
}

__device__ inline void copy_row(std::byte* to, const std::byte* from, uint32_t bytes,
                                uint32_t lane) {
  for (uint32_t at = lane * 16; at < bytes; at += kWarp * 16) {
    *reinterpret_cast<uint4*>(to + at) = read_staged(reinterpret_cast<const uint4*>(from + at));
  }
}

__device__ inline uint64_t row_index(const EpGeometry& g, uint32_t expert, uint32_t row) {
  return uint64_t{expert} * g.rows_per_expert + row;
}

// --- Dispatch ---------------------------------------------------------------------------------------

// What came, to the library's memory and the caller's, by one CTA.
__device__ inline void deliver(const StageEpBuffer& buffer, const DispatchOutputs& out) {
  const StageAnswer& answer = buffer.channel.state->answer;
  const EpGeometry& g = buffer.geometry;
  const bool here = answer.delivers != 0;
  for (uint32_t i = threadIdx.x; i < g.sizes.local_experts; i += kStageThreads) {
    const int32_t count = here ? read_staged(buffer.staging.recv_count + i) : 0;
    reinterpret_cast<int32_t*>(buffer.local + g.recv_count)[i] = count;
    for (int32_t* counts : out.recv_count) {
      if (counts != nullptr) counts[i] = count;
    }
    if (out.statistics != nullptr) out.statistics[i] += count;
  }
  for (uint32_t i = threadIdx.x; i < g.places; i += kStageThreads) {
    const auto* from = reinterpret_cast<const long long*>(buffer.staging.layout_range + i);
    const int64_t range = here ? read_staged(from) : 0;
    ranges_of(buffer)[i] = range;
    if (out.layout_range != nullptr) out.layout_range[i] = range;
  }
  if (threadIdx.x != 0) return;
  if (out.recv_total != nullptr) *out.recv_total = here ? answer.total : 0;
  tell_status(out.op_status, answer);
}

__global__ void __launch_bounds__(kStageThreads)
    dispatch_exchange_kernel(const __grid_constant__ StageEpBuffer buffer,
                             const __grid_constant__ StageRequest request, uint32_t receives,
                             const __grid_constant__ DispatchOutputs out) {
  if (threadIdx.x == 0) exchange_with_host(buffer.channel, request);
  __syncthreads();
  if (receives != 0) deliver(buffer, out);
}

__global__ void __launch_bounds__(kStageThreads)
    dispatch_rows_kernel(const __grid_constant__ StageEpBuffer buffer,
                         const __grid_constant__ DispatchOutputs out) {
  const StageAnswer& answer = buffer.channel.state->answer;
  if (answer.delivers == 0) return;
  const EpGeometry& g = buffer.geometry;
  const uint32_t lane = threadIdx.x % kWarp;
  const bool fits = answer.recv_x_fits != 0;
  each_row(buffer, [&](uint32_t expert, uint32_t row, uint64_t place) {
    const uint64_t index = row_index(g, expert, row);
    const std::byte* x = buffer.staging.rows + place * g.wire_row;
    copy_row(buffer.window + g.recv_x + index * g.wire_row, x, g.wire_row, lane);
    if (out.recv_x != nullptr && fits) {
      copy_row(out.recv_x + index * g.wire_row, x, g.wire_row, lane);
    }
    if (lane == 0) {
      const int32_t token = read_staged(buffer.staging.src_info + place);
      reinterpret_cast<int32_t*>(buffer.window + g.src_info)[index] = token;
      if (out.src_info != nullptr && fits) out.src_info[index] = token;
    }
    const std::byte* scales = buffer.staging.scales + place * g.groups * g.scale_bytes;
    std::byte* own =
        buffer.window + g.scales + expert * g.scale_expert_step + row * g.scale_row_step;
    std::byte* given =
        out.recv_scales + expert * out.recv_scales_expert_step + row * out.recv_scales_row_step;
    for (uint32_t group = lane; group < g.groups; group += kWarp) {
      const uint64_t at = group * g.scale_group_step;
      for (std::byte* to : {own, out.recv_scales != nullptr && fits ? given : nullptr}) {
        if (to == nullptr) continue;
        if (g.scale_bytes == 4) {
          *reinterpret_cast<uint32_t*>(to + at) =
              read_staged(reinterpret_cast<const uint32_t*>(scales) + group);
        } else {
          *reinterpret_cast<uint8_t*>(to + at) =
              read_staged(reinterpret_cast<const uint8_t*>(scales) + group);
        }
      }
    }
  });
}

// --- Combine ----------------------------------------------------------------------------------------

__global__ void __launch_bounds__(kStageThreads)
    combine_inputs_kernel(const __grid_constant__ StageEpBuffer buffer,
                          const __grid_constant__ CombineInputs in) {
  const StageState& state = *buffer.channel.state;
  if (state.ended != 0) return;
  const EpGeometry& g = buffer.geometry;
  const uint64_t thread = blockIdx.x * kStageThreads + threadIdx.x;
  const uint64_t threads = uint64_t{gridDim.x} * kStageThreads;
  if (in.weights != nullptr) {
    const uint64_t count = uint64_t{state.answer.tokens} * g.sizes.top_k;
    for (uint64_t i = thread; i < count; i += threads) buffer.staging.weights[i] = in.weights[i];
  }
  if (in.bias != nullptr && thread < kWarp) {
    copy_row(buffer.staging.bias, in.bias, g.combine_row, static_cast<uint32_t>(thread));
  }
  if (in.y == nullptr) return;
  each_row(buffer, [&](uint32_t expert, uint32_t row, uint64_t place) {
    copy_row(buffer.staging.rows + place * g.combine_row,
             in.y + row_index(g, expert, row) * g.combine_row, g.combine_row, threadIdx.x % kWarp);
  });
}

__global__ void combine_exchange_kernel(const __grid_constant__ StageEpBuffer buffer,
                                        const __grid_constant__ StageRequest request,
                                        const __grid_constant__ OpStatusPlace op_status) {
  exchange_with_host(buffer.channel, request);
  tell_status(op_status, buffer.channel.state->answer);
}

// What is combined after a failure is defined: what the host made of it, or zeros.
__global__ void __launch_bounds__(kStageThreads)
    combine_rows_kernel(const __grid_constant__ StageEpBuffer buffer, std::byte* out,
                        uint64_t out_stride) {
  const StageAnswer& answer = buffer.channel.state->answer;
  const EpGeometry& g = buffer.geometry;
  const uint32_t warps = gridDim.x * kWarps;
  const uint32_t lane = threadIdx.x % kWarp;
  for (uint32_t token = blockIdx.x * kWarps + threadIdx.x / kWarp; token < answer.tokens;
       token += warps) {
    std::byte* to = out + token * out_stride;
    if (answer.delivers != 0) {
      copy_row(to, buffer.staging.out + uint64_t{token} * g.combine_row, g.combine_row, lane);
      continue;
    }
    for (uint32_t at = lane * 16; at < g.combine_row; at += kWarp * 16) {
      *reinterpret_cast<uint4*>(to + at) = {0, 0, 0, 0};
    }
  }
}

}  // namespace

int load_stage_ep_kernels() {
  cudaFuncAttributes attributes{};
  for (const void* kernel : {reinterpret_cast<const void*>(dispatch_exchange_kernel),
                             reinterpret_cast<const void*>(dispatch_rows_kernel),
                             reinterpret_cast<const void*>(combine_inputs_kernel),
                             reinterpret_cast<const void*>(combine_exchange_kernel),
                             reinterpret_cast<const void*>(combine_rows_kernel)}) {
    const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

int stage_dispatch(const StageEpBuffer& buffer, const mep_dispatch_send_t* send,
                   const mep_dispatch_receive_t* receive, const StageRequest& request,
                   void* stream_) {
  const EpGeometry& g = buffer.geometry;
  const DispatchInputs in = send != nullptr ? dispatch_inputs(g, *send) : DispatchInputs{};
  const DispatchOutputs out =
      receive != nullptr ? dispatch_outputs(g, *receive) : DispatchOutputs{};
  if (!are_aligned(g, in, out)) return cudaErrorMisalignedAddress;
  auto* stream = static_cast<cudaStream_t>(stream_);
  if (send != nullptr && send->num_tokens != 0) {
    const uint32_t tokens = send->num_tokens;
    const uint64_t entries = uint64_t{tokens} * g.sizes.top_k;
    const uint64_t idx_bytes = send->topk_idx_type == MEP_INT32 ? 4 : 8;
    StageCopies inputs{};
    inputs.add(in.x, buffer.staging.x, tokens, g.input_row, in.x_stride, g.input_row);
    if (in.x_scales != nullptr) {
      const uint64_t scale_row = uint64_t{g.groups} * g.scale_bytes;
      inputs.add(in.x_scales, buffer.staging.x_scales, tokens, scale_row, in.x_scales_stride,
                 scale_row);
    }
    inputs.add(send->topk_idx, buffer.staging.topk_idx, 1, entries * idx_bytes, 0, 0);
    if (send->topk_weights != nullptr) {
      inputs.add(send->topk_weights, buffer.staging.weights, 1, entries * sizeof(float), 0, 0);
    }
    const int error = stage_inputs(buffer.channel.state, inputs, stream);
    if (error != cudaSuccess) return error;
  }
  const bool receives = receive != nullptr;
  dispatch_exchange_kernel<<<1, kStageThreads, 0, stream>>>(buffer, request, receives ? 1 : 0, out);
  if (receives) {
    dispatch_rows_kernel<<<kRowCtas, kStageThreads, 0, stream>>>(buffer, out);
  }
  return cudaGetLastError();
}

int stage_combine(const StageEpBuffer& buffer, const mep_combine_send_t* send,
                  const mep_combine_receive_t* receive, const StageRequest& request,
                  void* stream_) {
  const EpGeometry& g = buffer.geometry;
  CombineInputs in{};
  std::byte* out = nullptr;
  uint64_t out_stride = g.combine_row;
  OpStatusPlace status{};
  if (send != nullptr) in.y = static_cast<const std::byte*>(send->y);
  if (receive != nullptr) {
    in.weights = receive->weights;
    in.bias = static_cast<const std::byte*>(receive->bias);
    out = static_cast<std::byte*>(receive->out);
    if (receive->out_stride_bytes != 0) out_stride = receive->out_stride_bytes;
    status = op_status_place(receive->op_status, receive->op_status_bytes, g.sizes.ranks);
  }
  if (!is_row(in.y) || !is_row(in.bias) || !is_row(out) || out_stride % 16 != 0) {
    return cudaErrorMisalignedAddress;
  }
  auto* stream = static_cast<cudaStream_t>(stream_);
  if (in.y != nullptr || in.weights != nullptr || in.bias != nullptr) {
    const uint32_t ctas = in.y != nullptr ? kRowCtas : 1;
    combine_inputs_kernel<<<ctas, kStageThreads, 0, stream>>>(buffer, in);
  }
  combine_exchange_kernel<<<1, 1, 0, stream>>>(buffer, request, status);
  if (receive != nullptr) {
    combine_rows_kernel<<<kRowCtas, kStageThreads, 0, stream>>>(buffer, out, out_stride);
  }
  return cudaGetLastError();
}

}  // namespace mep::device

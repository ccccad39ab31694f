// Staged collectives: small ones are one CTA that copies, asks the host and copies; others three kernels, of
// which the one that waits is a single thread. Messages and collectives with counts are one CTA.
#include "kernels/cuda/coll/stage_device.cuh"

namespace mep::device {
namespace {

constexpr uint64_t kSmallBytes = 32u << 10;
constexpr uint32_t kListThreads = 1024;

__global__ void __launch_bounds__(kStageThreads)
    whole_kernel(StageChannel channel, StageRequest request, StageCopies inputs,
                 StageCopies outputs, OpStatusPlace status) {
  if (channel.state->ended == 0) copy_all(inputs, channel.state, threadIdx.x, kStageThreads);
  __syncthreads();
  if (threadIdx.x == 0) exchange_with_host(channel, request);
  __syncthreads();
  if (channel.state->answer.result == MEP_SUCCESS) {
    copy_all(outputs, channel.state, threadIdx.x, kStageThreads);
    __syncthreads();
  }
  if (threadIdx.x == 0) tell_status(status, channel.state->answer);
}

__global__ void __launch_bounds__(kStageThreads)
    input_kernel(const StageState* state, StageCopies inputs) {
  if (state->ended != 0) return;
  copy_all(inputs, state, blockIdx.x * kStageThreads + threadIdx.x, gridDim.x * kStageThreads);
}

__global__ void __launch_bounds__(kStageThreads)
    output_kernel(const StageState* state, StageCopies outputs) {
  if (state->answer.result != MEP_SUCCESS) return;
  copy_all(outputs, state, blockIdx.x * kStageThreads + threadIdx.x, gridDim.x * kStageThreads);
}

__global__ void exchange_kernel(StageChannel channel, StageRequest request) {
  exchange_with_host(channel, request);
}

__global__ void status_kernel(const StageState* state, OpStatusPlace status) {
  tell_status(status, state->answer);
}

__device__ uint32_t unit_of(const StagePart& part) {
  const uint64_t bits = part.from | part.to | part.bytes;
  return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 1;
}

// By a whole CTA.
__device__ void tell_list(const StageChannel& channel, const StageSublist& part) {
  StageList* list = &channel.mailbox->list;
  const auto* words = reinterpret_cast<const uint64_t*>(part.of);
  auto* to = reinterpret_cast<uint64_t*>(list->of + part.first);
  for (uint64_t i = threadIdx.x; i < part.count * sizeof(StageItem) / 8; i += blockDim.x) {
    store_word(to + i, words[i]);
  }
  if (threadIdx.x == 0) store_word(&list->count, part.first + part.count);
}

__global__ void __launch_bounds__(kStageThreads)
    list_kernel(StageChannel channel, const __grid_constant__ StageSublist part) {
  tell_list(channel, part);
}

__global__ void __launch_bounds__(kListThreads)
    parts_kernel(StageChannel channel, StageRequest request,
                 const __grid_constant__ StageSublist last, OpStatusPlace status) {
  __shared__ uint64_t parts;
  tell_list(channel, last);
  const auto goes_on = static_cast<StageStep>(static_cast<uint64_t>(request.step) + 1);
  do {
    __syncthreads();
    if (threadIdx.x == 0) {
      exchange_with_host(channel, request);
      const StageAnswer& answer = channel.state->answer;
      parts = answer.result == MEP_SUCCESS ? answer.parts : 0;
    }
    __syncthreads();
    for (uint64_t i = 0; i < parts; ++i) {
      StagePart part;
      copy_words(&part, &channel.mailbox->parts[i], sizeof part);
      const StageCopy copy{reinterpret_cast<const std::byte*>(part.from),
                           reinterpret_cast<std::byte*>(part.to),
                           1,
                           part.bytes,
                           0,
                           0,
                           unit_of(part),
                           0};
      copy_one(copy, channel.state, threadIdx.x, kListThreads);
    }
    request.step = goes_on;
  } while (parts != 0);
  if (threadIdx.x == 0) tell_status(status, channel.state->answer);
}

// Sets the units; the bytes of all.
uint64_t prepare(StageCopies* copies) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < copies->count; ++i) {
    StageCopy& copy = copies->of[i];
    uint64_t bits = reinterpret_cast<uintptr_t>(copy.from) | reinterpret_cast<uintptr_t>(copy.to) |
                    copy.row_bytes;
    if (copy.rows > 1) bits |= copy.from_stride | copy.to_stride;
    copy.unit = bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 1;
    bytes += copy.rows * copy.row_bytes;
  }
  return bytes;
}

}  // namespace

int load_stage_kernels() {
  cudaFuncAttributes attributes{};
  for (const void* kernel :
       {reinterpret_cast<const void*>(whole_kernel), reinterpret_cast<const void*>(input_kernel),
        reinterpret_cast<const void*>(output_kernel),
        reinterpret_cast<const void*>(exchange_kernel),
        reinterpret_cast<const void*>(status_kernel), reinterpret_cast<const void*>(list_kernel),
        reinterpret_cast<const void*>(parts_kernel)}) {
    const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

int stage_list(const StageChannel& channel, const StageRequest& request,
               std::span<const StageItem> list, const OpStatusPlace& status, void* stream_) {
  auto* stream = static_cast<cudaStream_t>(stream_);
  StageSublist part{};
  for (const StageItem& item : list) {
    if (part.count == kStageMessages) {
      launch_kernel(list_kernel, 1, kStageThreads, 0, stream, channel, part);
      part.first += part.count;
      part.count = 0;
    }
    part.of[part.count++] = item;
  }
  launch_kernel(parts_kernel, 1, kListThreads, 0, stream, channel, request, part, status);
  return cudaGetLastError();
}

int stage_collective(const StageChannel& channel, const StageRequest& request,
                     const StageCopies& inputs_, const StageCopies& outputs_,
                     const OpStatusPlace& status, void* stream_) {
  StageCopies inputs = inputs_;
  StageCopies outputs = outputs_;
  auto* stream = static_cast<cudaStream_t>(stream_);
  const uint64_t in = prepare(&inputs);
  const uint64_t out = prepare(&outputs);
  if (in + out <= kSmallBytes) {
    launch_kernel(whole_kernel, 1, kStageThreads, 0, stream, channel, request, inputs, outputs,
                  status);
    return cudaGetLastError();
  }
  if (in != 0) {
    launch_kernel(input_kernel, stage_ctas(in), kStageThreads, 0, stream, channel.state, inputs);
  }
  launch_kernel(exchange_kernel, 1, 1, 0, stream, channel, request);
  if (out != 0) {
    launch_kernel(output_kernel, stage_ctas(out), kStageThreads, 0, stream, channel.state, outputs);
  }
  if (status.record != nullptr) {
    launch_kernel(status_kernel, 1, 1, 0, stream, channel.state, status);
  }
  return cudaGetLastError();
}

}  // namespace mep::device

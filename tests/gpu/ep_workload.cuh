// A self-checking MoE step that lives on the device, so that graphs of it can be replayed often: tokens,
// routing and experts' results follow from (operation, rank, token), and the combined rows are compared on
// the rank that sent them. All values are small integers, exact in bf16 in any order.
//
// Routing changes with every operation and most experts of an operation get nothing from a rank, so a
// word of an earlier operation, or a count that was not said, is noticed.
#pragma once

#include <cuda_bf16.h>

#include "ep_rig.hpp"

namespace rig {

struct Step {
  EpSizes sizes;
  uint32_t tokens;
  uint32_t buffer;
  uint64_t* operation;  // of this rank and buffer; check_step counts it
  unsigned long long* errors;
  __nv_bfloat16* x;
  int32_t* topk;
  __nv_bfloat16* out;
  const std::byte* recv_x;  // of the library's window
  const int32_t* recv_count;
  const int32_t* src_info;
  const int64_t* layout_range;
  __nv_bfloat16* y;  // where terms are read from
  const mep_op_status_t* status;
  const DeviceControl* control;
};

__host__ __device__ inline uint32_t mix(uint64_t operation, uint32_t a, uint32_t b, uint32_t c) {
  uint64_t h = operation * 0x9e3779b97f4a7c15u + a * 0xbf58476d1ce4e5b9u + b * 0x94d049bb133111ebu +
               c * 0xd6e8feb86659fd93u;
  h ^= h >> 31;
  h *= 0xbf58476d1ce4e5b9u;
  h ^= h >> 29;
  return static_cast<uint32_t>(h >> 8);
}

__device__ inline int32_t expert_of(const Step& s, uint64_t operation, uint32_t rank,
                                    uint32_t token, uint32_t k) {
  // K different experts: consecutive ones from a random start, some left out.
  const uint32_t start = mix(operation, rank, token, 77) % s.sizes.experts;
  if (mix(operation, rank, token, 100 + k) % 5 == 0) return -1;
  return static_cast<int32_t>((start + k) % s.sizes.experts);
}

__device__ inline float value_of(const Step& s, uint64_t operation, uint32_t rank, uint32_t token,
                                 uint32_t i) {
  return static_cast<float>(mix(operation, rank * 64 + s.buffer, token, i / 8) % 14 + i % 2);
}

[[maybe_unused]] __global__ static void make_step(const __grid_constant__ Step s) {
  const uint64_t operation = *s.operation;
  const uint32_t stride = gridDim.x * blockDim.x;
  const uint32_t first = blockIdx.x * blockDim.x + threadIdx.x;
  for (uint32_t i = first; i < s.tokens * s.sizes.hidden; i += stride) {
    s.x[i] = __float2bfloat16(
        value_of(s, operation, s.sizes.rank, i / s.sizes.hidden, i % s.sizes.hidden));
  }
  for (uint32_t i = first; i < s.tokens * s.sizes.top_k; i += stride) {
    s.topk[i] = expert_of(s, operation, s.sizes.rank, i / s.sizes.top_k, i % s.sizes.top_k);
  }
  for (uint32_t i = first; i < s.tokens * s.sizes.hidden; i += stride) {
    s.out[i] = __float2bfloat16(-1.0f);
  }
}

// y = received row + 1 + (expert mod 4); and the received rows themselves are checked.
[[maybe_unused]] __global__ static void expert_step(const __grid_constant__ Step s) {
  const uint64_t operation = *s.operation;
  const uint32_t pitch = s.sizes.ranks * s.sizes.max_tokens;
  for (uint32_t local = 0; local < s.sizes.local_experts; ++local) {
    const uint32_t expert = s.sizes.rank * s.sizes.local_experts + local;
    for (uint32_t source = 0; source < s.sizes.ranks; ++source) {
      const auto range = static_cast<uint64_t>(s.layout_range[local * s.sizes.ranks + source]);
      const auto begin = static_cast<uint32_t>(range >> 32);
      const auto count = static_cast<uint32_t>(range);
      for (uint32_t row = begin + blockIdx.x; row < begin + count; row += gridDim.x) {
        const uint64_t index = uint64_t{local} * pitch + row;
        const auto token = static_cast<uint32_t>(s.src_info[index]);
        const auto* from =
            reinterpret_cast<const __nv_bfloat16*>(s.recv_x) + index * s.sizes.hidden;
        for (uint32_t i = threadIdx.x; i < s.sizes.hidden; i += blockDim.x) {
          const float value = __bfloat162float(from[i]);
          if (value != value_of(s, operation, source, token, i)) atomicAdd(s.errors, 1ull);
          s.y[index * s.sizes.hidden + i] =
              __float2bfloat16(value + 1 + static_cast<float>(expert % 4));
        }
      }
    }
  }
}

[[maybe_unused]] __global__ static void check_step(const __grid_constant__ Step s) {
  const uint64_t operation = *s.operation;
  for (uint32_t token = blockIdx.x; token < s.tokens; token += gridDim.x) {
    for (uint32_t i = threadIdx.x; i < s.sizes.hidden; i += blockDim.x) {
      float expected = 0;
      for (uint32_t k = 0; k < s.sizes.top_k; ++k) {
        const int32_t expert = expert_of(s, operation, s.sizes.rank, token, k);
        if (expert < 0) continue;
        const uint32_t owner = static_cast<uint32_t>(expert) / s.sizes.local_experts;
        if ((s.control->live[owner / 64] >> owner % 64 & 1) == 0) continue;
        expected +=
            value_of(s, operation, s.sizes.rank, token, i) + 1 + static_cast<float>(expert % 4);
      }
      const float got = __bfloat162float(s.out[uint64_t{token} * s.sizes.hidden + i]);
      if (got != __bfloat162float(__float2bfloat16(expected))) atomicAdd(s.errors, 1ull);
    }
  }
  if (blockIdx.x == 0 && threadIdx.x == 0 && s.status != nullptr && s.status->result < 0) {
    atomicAdd(s.errors, 1ull << 40);
  }
}

[[maybe_unused]] __global__ static void count_step(const __grid_constant__ Step s) {
  *s.operation += 1;
}

[[maybe_unused]] __global__ static void spin(uint64_t nanoseconds_) {
  uint64_t begin = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds_);
}

// Full of arithmetic, for a while, on every multiprocessor.
[[maybe_unused]] __global__ static void __launch_bounds__(1024)
    fill_processors(float* sink, uint32_t rounds) {
  float a = static_cast<float>(threadIdx.x), b = 1.0001f, c = 0.5f;
  for (uint32_t i = 0; i < rounds * 64; ++i) {
    a = a * b + c;
    c = c * b + a;
  }
  if (a == 123.456f) *sink = c;
}

// Every CTA of all ranks waits for all others: they are on the GPU together, or it says no in a second.
[[maybe_unused]] __global__ static void __launch_bounds__(kEpThreads, 2)
    rendezvous(unsigned* here, unsigned total, unsigned* missed) {
  if (threadIdx.x != 0) return;
  atomicAdd(here, 1u);
  uint64_t begin = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  while (*static_cast<volatile unsigned*>(here) < total) {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (now - begin < 1'000'000'000) continue;
    atomicAdd(missed, 1u);
    return;
  }
}

// On the streams that the ranks will use.
inline bool all_resident(Group& group, uint32_t buffers, uint32_t ctas) {
  Memory counters(8);
  for (uint32_t r = 0; r < group.size(); ++r) {
    for (uint32_t b = 0; b < buffers; ++b) {
      rendezvous<<<ctas, kEpThreads, 0, group[r].streams[b]>>>(
          counters.as<unsigned>(), group.size() * buffers * ctas, counters.as<unsigned>() + 1);
    }
  }
  GPU_OK(cudaDeviceSynchronize());
  unsigned counts[2];
  std::memcpy(counts, counters.get().data(), sizeof counts);
  return counts[1] == 0 && counts[0] == group.size() * buffers * ctas;
}

// Memory traffic beside the ranks, so that stores take long and overtake each other if they may.
[[maybe_unused]] __global__ static void stream_memory(uint4* memory, size_t count,
                                                      uint32_t rounds) {
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (uint32_t round = 0; round < rounds; ++round) {
    for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
      uint4 v = memory[i];
      v.x += 1;
      memory[(i * 7 + round) % count] = v;
    }
  }
}

// One rank's steps on one buffer: memory, and what enqueues a step.
class Worker {
 public:
  Worker(Group& group, uint32_t rank, uint32_t buffer)
      : group_(group),
        rank_(rank),
        buffer_(buffer),
        sizes_(group[rank].g.sizes),
        x_(row_bytes()),
        topk_(size_t{sizes_.max_tokens} * sizes_.top_k * 4),
        out_(row_bytes()),
        own_y_(size_t{sizes_.local_experts} * group[rank].g.rows_per_expert * sizes_.hidden * 2),
        counters_(64),
        status_(sizeof(OpStatus)) {
    GPU_OK(cudaDeviceSynchronize());
  }

  struct Options {
    uint32_t tokens = 0;
    bool split = false, push = false, own_y = false, combines = true, dispatches = true;
    bool receives = true;  // false: the dispatch is only sent, and nothing follows
    bool ends = true;      // without combine: the operation is over nevertheless
    uint32_t delay = 0;
  };

  void enqueue(const Options& options, cudaStream_t stream) {
    Rank& r = group_[rank_];
    const EpGeometry& g = r.g;
    const Buffer& b = *r.buffers[buffer_];
    Step s{};
    s.sizes = sizes_;
    s.tokens = options.tokens;
    s.buffer = buffer_;
    s.operation = counters_.as<uint64_t>();
    s.errors = counters_.as<unsigned long long>() + 1;
    s.x = x_.as<__nv_bfloat16>();
    s.topk = topk_.as<int32_t>();
    s.out = out_.as<__nv_bfloat16>();
    s.recv_x = b.window.data() + g.recv_x;
    s.recv_count = reinterpret_cast<const int32_t*>(b.local.data() + g.recv_count);
    s.src_info = reinterpret_cast<const int32_t*>(b.window.data() + g.src_info);
    s.layout_range = reinterpret_cast<const int64_t*>(b.local.data() + g.layout_range);
    s.y = options.own_y ? own_y_.as<__nv_bfloat16>()
                        : reinterpret_cast<__nv_bfloat16*>(b.window.data() + g.combine_out);
    s.status = status_.as<mep_op_status_t>();
    s.control = r.control.as<DeviceControl>();
    const EpLaunch launch = group_.launch(rank_, buffer_, options.delay);
    if (options.dispatches) enqueue_dispatch(options, launch, s, stream);
    if (!options.receives) return;
    if (options.dispatches) expert_step<<<4, 256, 0, stream>>>(s);
    if (options.combines) enqueue_combine(options, launch, s, stream);
    if (options.combines) count_step<<<1, 1, 0, stream>>>(s);
    if (!options.combines && options.ends) count_step<<<1, 1, 0, stream>>>(s);
    GPU_OK(cudaPeekAtLastError());
  }

 private:
  template <class Receive>
  Receive with_status() const {
    Receive receive{};
    receive.op_status = status_.as<mep_op_status_t>();
    receive.op_status_bytes = sizeof(OpStatus);
    return receive;
  }

  void enqueue_dispatch(const Options& options, const EpLaunch& launch, const Step& s,
                        cudaStream_t stream) {
    make_step<<<4, 256, 0, stream>>>(s);
    mep::DispatchInput send{};
    send.num_tokens = options.tokens;
    send.x = s.x;
    send.topk_idx = s.topk;
    send.topk_idx_type = MEP_INT32;
    const mep::DispatchOutput receive = with_status<mep::DispatchOutput>();
    const bool only_sends = options.split || !options.receives;
    GPU_OK(ep_dispatch(launch, &send, only_sends ? nullptr : &receive, stream));
    if (!options.split || !options.receives) return;
    GPU_OK(ep_dispatch(launch, nullptr, &receive, stream));
  }

  void enqueue_combine(const Options& options, const EpLaunch& launch, const Step& s,
                       cudaStream_t stream) {
    mep::CombineInput send{};
    send.y = s.y;
    auto receive = with_status<mep::CombineOutput>();
    receive.out = s.out;
    GPU_OK(ep_combine(launch, &send, options.split ? nullptr : &receive, options.push, stream));
    if (options.split) GPU_OK(ep_combine(launch, nullptr, &receive, options.push, stream));
    check_step<<<4, 256, 0, stream>>>(s);
  }

 public:
  // The receiving half of a dispatch that was only sent.
  void enqueue_receive(cudaStream_t stream) {
    const mep::DispatchOutput receive = with_status<mep::DispatchOutput>();
    GPU_OK(ep_dispatch(group_.launch(rank_, buffer_), nullptr, &receive, stream));
  }

  uint64_t operations() const { return counter(0); }
  uint64_t errors() const { return counter(1); }
  OpStatus status() const {
    OpStatus out{};
    std::memcpy(&out, status_.get().data(), sizeof out);
    return out;
  }
  std::vector<uint8_t> out() const { return out_.get(); }
  void reset() { GPU_OK(cudaMemset(counters_.data(), 0, 64)); }
  static void load_kernels() {
    cudaFuncAttributes attributes{};
    for (const void* kernel :
         {reinterpret_cast<const void*>(make_step), reinterpret_cast<const void*>(expert_step),
          reinterpret_cast<const void*>(check_step), reinterpret_cast<const void*>(count_step),
          reinterpret_cast<const void*>(spin), reinterpret_cast<const void*>(fill_processors),
          reinterpret_cast<const void*>(rendezvous),
          reinterpret_cast<const void*>(stream_memory)}) {
      GPU_OK(cudaFuncGetAttributes(&attributes, kernel));
    }
  }

 private:
  size_t row_bytes() const { return size_t{sizes_.max_tokens} * sizes_.hidden * 2; }
  uint64_t counter(size_t index) const {
    uint64_t values[8];
    std::memcpy(values, counters_.get().data(), sizeof values);
    return values[index];
  }

  Group& group_;
  uint32_t rank_, buffer_;
  EpSizes sizes_;
  Memory x_, topk_, out_, own_y_, counters_, status_;
};

}  // namespace rig

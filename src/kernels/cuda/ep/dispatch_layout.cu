// A block reads the whole routing and counts what it says of one rank, so blocks share nothing and nothing is zeroed
// before. A rank of many experts has several blocks; the first of them also tells the rank's tokens.
#include <algorithm>

#include "kernels/cuda/device/instructions.cuh"
#include "kernels/cuda/ep/dispatch_layout.hpp"

namespace mep::device {
namespace {

constexpr uint32_t kThreads = 1024;
constexpr uint32_t kBlockExperts = 1024;  // counted in shared memory

// Experts from `first` up to `end`.
struct Experts {
  int64_t first, end;
  __device__ bool have(int64_t expert) const { return expert >= first && expert < end; }
};

template <class Index>
__device__ bool is_repeated(const Index* mine, uint32_t k) {
  for (uint32_t earlier = 0; earlier < k; ++earlier) {
    if (mine[earlier] == mine[k]) return true;
  }
  return false;
}

template <class Index>
__global__ void __launch_bounds__(kThreads)
    dispatch_layout_kernel(const __grid_constant__ DispatchLayout a, uint32_t local_experts) {
  __shared__ int32_t counts[kBlockExperts];
  __shared__ int32_t rows;
  const int64_t begin = int64_t{blockIdx.x} * local_experts;
  const int64_t experts = a.experts;
  const Experts rank{begin, min(begin + local_experts, experts)};
  const int64_t first = begin + int64_t{blockIdx.y} * kBlockExperts;
  const Experts counted{first, min(first + kBlockExperts, rank.end)};
  const bool tells_rank = blockIdx.y == 0;
  for (uint32_t i = threadIdx.x; i < kBlockExperts; i += kThreads) counts[i] = 0;
  if (threadIdx.x == 0) rows = 0;
  __syncthreads();
  int32_t here = 0;
  for (uint32_t token = threadIdx.x; token < a.tokens; token += kThreads) {
    const Index* mine = static_cast<const Index*>(a.topk_idx) + uint64_t{token} * a.top_k;
    bool has_expert = false;
#pragma unroll 8
    for (uint32_t k = 0; k < a.top_k; ++k) {
      const int64_t expert = mine[k];
      has_expert = has_expert || rank.have(expert);
      if (counted.have(expert) && !is_repeated(mine, k)) atomicAdd(&counts[expert - first], 1);
    }
    here += has_expert ? 1 : 0;
    if (tells_rank && a.in_rank != nullptr) {
      a.in_rank[uint64_t{token} * a.ranks + blockIdx.x] = has_expert ? 1 : 0;
    }
  }
  if (here != 0) atomicAdd(&rows, here);
  __syncthreads();
  if (a.per_expert != nullptr) {
    for (int64_t expert = first + threadIdx.x; expert < counted.end; expert += kThreads) {
      a.per_expert[expert] = counts[expert - first];
    }
  }
  if (tells_rank && threadIdx.x == 0 && a.per_rank != nullptr) a.per_rank[blockIdx.x] = rows;
}

}  // namespace

int launch_dispatch_layout(const DispatchLayout& layout, void* stream) {
  const uint32_t local = layout.local_experts();
  const dim3 blocks(layout.ranks, (local + kBlockExperts - 1) / kBlockExperts);
  launch_kernel(
      layout.idx_is_int32 != 0 ? dispatch_layout_kernel<int32_t> : dispatch_layout_kernel<int64_t>,
      blocks, dim3(kThreads), 0, static_cast<cudaStream_t>(stream), layout, local);
  return cudaPeekAtLastError();
}

}  // namespace mep::device

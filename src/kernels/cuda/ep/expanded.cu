// The expanded layout of high throughput, three launches:
//
//   place    finds how many received rows of each chunk name each expert; the last block adds them up
//   spread   copies each received row to its expanded rows, and pads the groups with zeros
//   fold     before a combine: sums a received row's expanded outputs in ascending k
//
// Rows of a group keep the order in which they were received: a row's place in its group is the rows of earlier chunks,
// plus the bits below its own in the chunk's mask.
#include "kernels/cuda/ep/expanded.hpp"

#include <algorithm>

#include "kernels/cuda/ep/combine.cuh"
#include "kernels/cuda/ep/instances.hpp"

namespace mep::device {
namespace {

struct ExpandArgs : EpBase {
  ExpandedOutputs out;

  __device__ uint32_t chunk_of(uint32_t row) const { return row / kChunkTokens; }
  __device__ const int32_t* experts_of(uint32_t row) const {
    return reinterpret_cast<const int32_t*>(memory.window + g.topk_idx) +
           uint64_t{row} * g.sizes.top_k;
  }
  __device__ uint32_t* of_chunk(uint64_t block, uint32_t chunk) const {
    return local<uint32_t>(block) + uint64_t{chunk} * g.sizes.local_experts;
  }
  __device__ const uint32_t* group_first() const { return local<uint32_t>(g.expanded.group_first); }
};

// How many rows were received: the ranges of the sources follow each other.
__device__ inline uint32_t received_rows(const EpBase& a) {
  const auto last = static_cast<uint64_t>(a.local<int64_t>(a.g.layout_range)[a.g.sizes.ranks - 1]);
  return static_cast<uint32_t>(last >> 32) + static_cast<uint32_t>(last);
}

// --- Place --------------------------------------------------------------------------------------------

// By a warp, a lane for each row.
__device__ inline void mark_chunk(const ExpandArgs& a, uint32_t chunk, uint32_t rows,
                                  uint32_t lane) {
  const uint32_t experts = a.g.sizes.local_experts;
  uint32_t* masks = a.of_chunk(a.g.expanded.masks, chunk);
  for (uint32_t expert = lane; expert < experts; expert += kWarpThreads) masks[expert] = 0;
  __syncwarp();
  const uint32_t row = chunk * kChunkTokens + lane;
  if (row < rows) {
    const int32_t* named = a.experts_of(row);
    for (uint32_t k = 0; k < a.g.sizes.top_k; ++k) {
      const auto expert = static_cast<uint32_t>(named[k]);
      if (expert < experts) atomicOr(&masks[expert], 1u << lane);
    }
  }
  __syncwarp();
}

// Rows before `row` that name the expert.
__device__ inline uint32_t rows_before(const ExpandArgs& a, uint32_t row, uint32_t expert) {
  const uint32_t chunk = a.chunk_of(row);
  const uint32_t below = (1u << row % kChunkTokens) - 1;
  return a.of_chunk(a.g.expanded.before, chunk)[expert] +
         static_cast<uint32_t>(__popc(a.of_chunk(a.g.expanded.masks, chunk)[expert] & below));
}

// By one CTA: the groups, and what each source has in each.
__device__ inline void place_groups(const ExpandArgs& a, uint32_t rows) {
  const uint32_t experts = a.g.sizes.local_experts;
  const uint32_t ranks = a.g.sizes.ranks;
  auto* first = a.local<uint32_t>(a.g.expanded.group_first);
  const auto* counts = a.local<uint32_t>(a.g.recv_count);
  const uint32_t total = add_up(
      experts, [&](uint32_t i) { return counts[i]; },
      [&](uint32_t i, uint32_t sum) { first[i] = sum; });
  if (threadIdx.x == 0) first[experts] = total;
  __syncthreads();
  const auto up_to = [&](uint32_t row, uint32_t expert) {
    return row < rows ? rows_before(a, row, expert) : a.local<uint32_t>(a.g.expert_rows)[expert];
  };
  for (uint32_t i = threadIdx.x; i < experts * ranks; i += kEpThreads) {
    const uint32_t expert = i / ranks;
    const auto range = static_cast<uint64_t>(a.local<int64_t>(a.g.layout_range)[i % ranks]);
    const auto begin = static_cast<uint32_t>(range >> 32);
    const uint32_t before = up_to(begin, expert);
    const uint32_t count = up_to(begin + static_cast<uint32_t>(range), expert) - before;
    const auto told = static_cast<int64_t>(uint64_t{first[expert] + before} << 32 | count);
    for (int64_t* ranges : a.out.ranges) {
      if (ranges != nullptr) ranges[i] = told;
    }
  }
}

__global__ void __launch_bounds__(kEpThreads, 2)
    place_kernel(const __grid_constant__ ExpandArgs a) {
  __shared__ uint32_t shared_last;
  const uint32_t rows = received_rows(a);
  const uint32_t chunks = (rows + kChunkTokens - 1) / kChunkTokens;
  const uint32_t warp = threadIdx.x / kWarpThreads * gridDim.x + blockIdx.x;
  for (uint32_t chunk = warp; chunk < chunks; chunk += gridDim.x * kEpWarps) {
    mark_chunk(a, chunk, rows, threadIdx.x % kWarpThreads);
  }
  if (!is_last_of(&a.state()->channel.ticket[0], gridDim.x, &shared_last)) return;
  add_up_masks(a.of_chunk(a.g.expanded.masks, 0), a.of_chunk(a.g.expanded.before, 0), chunks,
               a.g.sizes.local_experts, [](uint32_t, uint32_t) {});
  __syncthreads();
  place_groups(a, rows);
}

// --- Spread -------------------------------------------------------------------------------------------

__device__ inline void tell_row(const ExpandArgs& a, uint32_t slot, int32_t token, float weight) {
  for (int32_t* tokens : a.out.tokens) {
    if (tokens != nullptr) tokens[slot] = token;
  }
  for (float* weights : a.out.weights) {
    if (weights != nullptr) weights[slot] = weight;
  }
}

// A received row to all its expanded rows, by a warp.
__device__ inline void spread_row(const ExpandArgs& a, uint32_t row, uint32_t lane) {
  const EpGeometry& g = a.g;
  const uint32_t top_k = g.sizes.top_k;
  const auto own = static_cast<uint64_t>(a.local<int64_t>(g.layout_range)[g.sizes.rank]);
  const bool is_own = row - static_cast<uint32_t>(own >> 32) < static_cast<uint32_t>(own);
  const std::byte* rows = is_own ? a.memory.own : a.memory.window;
  copy_beside(a, nullptr, g.src_info, row, 1, lane);
  copy_beside(a, nullptr, g.topk_idx, row, top_k, lane);
  for (uint32_t base = 0; base < top_k; base += kWarpThreads) {
    const uint32_t k = base + lane;
    const uint32_t expert = k < top_k ? static_cast<uint32_t>(a.experts_of(row)[k]) : UINT32_MAX;
    int32_t slot = -1;
    if (expert < g.sizes.local_experts) {
      const uint32_t at = a.group_first()[expert] + rows_before(a, row, expert);
      if (at < a.group_first()[expert + 1]) slot = static_cast<int32_t>(at);
    }
    if (k < top_k) {
      const uint64_t entry = uint64_t{row} * top_k + k;
      a.local<int32_t>(g.expanded.row_slots)[entry] = slot;
      if (slot >= 0) {
        tell_row(a, static_cast<uint32_t>(slot),
                 reinterpret_cast<const int32_t*>(a.memory.window + g.src_info)[row],
                 reinterpret_cast<const float*>(a.memory.window + g.topk_weights)[entry]);
      }
    }
    uint32_t there = __ballot_sync(0xffffffffu, slot >= 0 && a.out.x != nullptr);
    for (; there != 0; there &= there - 1) {
      const auto to = static_cast<uint32_t>(__shfl_sync(0xffffffffu, slot, __ffs(there) - 1));
      copy_row(a.out.x + uint64_t{to} * g.wire_row, rows + g.recv_x + uint64_t{row} * g.wire_row,
               g.wire_row, lane);
      if (a.out.scales != nullptr) {
        copy_scales(g, a.out.scales + to * a.out.scale_row_step, g.expanded.scale_group_step,
                    a.scales_of(const_cast<std::byte*>(rows) + g.scales, 0, row),
                    g.scale_group_step, lane);
      }
    }
  }
}

// The rows that round an expert's group up; its CTAs take them in turns.
__device__ inline void pad_group(const ExpandArgs& a, uint32_t expert, uint32_t warp,
                                 uint32_t warps, uint32_t lane) {
  const uint32_t end = a.group_first()[expert + 1];
  uint32_t row = a.group_first()[expert] + a.local<uint32_t>(a.g.expert_rows)[expert] + warp;
  for (; row < end; row += warps) {
    std::byte* x = a.out.x + uint64_t{row} * a.g.wire_row;
    for (uint32_t at = lane * 16; a.out.x != nullptr && at < a.g.wire_row; at += kRowUnit) {
      *reinterpret_cast<uint4*>(x + at) = {0, 0, 0, 0};
    }
    if (a.out.scales != nullptr) {
      copy_scales(a.g, a.out.scales + row * a.out.scale_row_step, a.g.expanded.scale_group_step,
                  nullptr, 0, lane);
    }
    if (lane == 0) tell_row(a, row, -1, 0);
  }
}

__global__ void __launch_bounds__(kEpThreads, 2)
    spread_kernel(const __grid_constant__ ExpandArgs a) {
  if (a.state()->rows_refused != 0) return;
  const uint32_t lane = threadIdx.x % kWarpThreads;
  const uint32_t in_cta = threadIdx.x / kWarpThreads;
  const uint32_t rows = received_rows(a);
  const uint32_t warps = gridDim.x * kEpWarps;
  for (uint32_t row = in_cta * gridDim.x + blockIdx.x; row < rows; row += warps) {
    spread_row(a, row, lane);
  }
  const uint32_t experts = a.g.sizes.local_experts;
  const uint32_t each = max(gridDim.x / experts, 1u);  // CTAs of an expert
  for (uint32_t i = blockIdx.x; i < experts * each; i += gridDim.x) {
    pad_group(a, i / each, i % each * kEpWarps + in_cta, each * kEpWarps, lane);
  }
}

// --- Fold ---------------------------------------------------------------------------------------------

struct FoldArgs : EpBase {
  const std::byte* y;   // [X] combine rows
  const float* values;  // [X], or null
  std::byte* terms;     // [R * M] combine rows
};

template <class Type>
__global__ void __launch_bounds__(kEpThreads, 2) fold_kernel(const __grid_constant__ FoldArgs a) {
  __shared__ TermList<kMaxEpTopK> lists[kEpWarps];
  TermList<kMaxEpTopK>& list = lists[threadIdx.x / kWarpThreads];
  const uint32_t lane = threadIdx.x % kWarpThreads;
  const uint32_t top_k = a.g.sizes.top_k;
  const uint32_t rows = received_rows(a);
  const uint32_t warps = gridDim.x * kEpWarps;
  const uint32_t first = threadIdx.x / kWarpThreads * gridDim.x + blockIdx.x;
  for (uint32_t row = first; row < rows; row += warps) {
    const int32_t* slots = a.local<int32_t>(a.g.expanded.row_slots) + uint64_t{row} * top_k;
    uint32_t count = 0;
    for (uint32_t base = 0; base < top_k; base += kWarpThreads) {
      const uint32_t k = base + lane;
      const int32_t slot = k < top_k ? slots[k] : -1;
      const uint32_t here = __ballot_sync(0xffffffffu, slot >= 0);
      if (slot >= 0) {
        const uint32_t at = count + static_cast<uint32_t>(__popc(here & ((1u << lane) - 1)));
        list.rows[at] = a.y + static_cast<uint64_t>(slot) * a.g.combine_row;
        list.weights[at] = 1;
      }
      count += static_cast<uint32_t>(__popc(here));
      if (a.values == nullptr || k >= top_k) continue;
      a.local<float>(a.g.expanded.values)[uint64_t{row} * top_k + k] =
          slot >= 0 ? a.values[slot] : 0;
    }
    __syncwarp();
    for (uint32_t offset = lane * 16; offset < a.g.combine_row; offset += kRowUnit) {
      *reinterpret_cast<uint4*>(a.terms + uint64_t{row} * a.g.combine_row + offset) =
          sum_outputs<Type, 4>(list, count, offset);
    }
    __syncwarp();
  }
}

using FoldKernel = void (*)(FoldArgs);

FoldKernel select_fold_kernel(const EpSizes& sizes) {
  if (sizes.combine_type == MEP_FLOAT16) return fold_kernel<Float16>;
  if (sizes.combine_type == MEP_FLOAT32) return fold_kernel<Float32>;
  return fold_kernel<Bfloat16>;
}

}  // namespace

cudaError_t launch_expansion(const DispatchArgs& a, const ExpandedOutputs& out, uint32_t ctas,
                             cudaStream_t stream) {
  const ExpandArgs args{a, out};
  const uint32_t places = std::min(a.g.expanded.chunks / kEpWarps + 1, ctas);
  launch_kernel(place_kernel, places, kEpThreads, 0, stream, args);
  launch_kernel(spread_kernel, ctas, kEpThreads, 0, stream, args);
  return cudaPeekAtLastError();
}

cudaError_t launch_fold(const CombineArgs& a, const std::byte* y, const float* values,
                        std::byte* terms, uint32_t ctas, cudaStream_t stream) {
  const FoldArgs args{a, y, values, terms};
  launch_kernel(select_fold_kernel(a.g.sizes), ctas, kEpThreads, 0, stream, args);
  return cudaPeekAtLastError();
}

int load_expansion_kernels(const EpGeometry& g, int* ctas_per_sm) {
  const void* kernels[] = {reinterpret_cast<const void*>(place_kernel),
                           reinterpret_cast<const void*>(spread_kernel),
                           reinterpret_cast<const void*>(select_fold_kernel(g.sizes))};
  for (const void* kernel : kernels) {
    const cudaError_t error = resident_ctas_per_sm(kernel, 0, ctas_per_sm);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace mep::device

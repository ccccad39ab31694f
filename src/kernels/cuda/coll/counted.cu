// Allgather, gather, scatter, alltoall and reduce-scatter with a length for each block. A rank knows the lengths of what
// it gives and gets itself, no others. So in a first step, of packets, each tells each other what it gives it, and the
// longest block that it gives any; then all know how many chunks there are, and these go as those of blocks.cu.
//
// A rank that expects another length says so by its word of the next step, which has another fingerprint: all fail with
// MEP_ERR_MISMATCH then, two steps after they began.
#include "kernels/cuda/coll/allreduce.cuh"
#include "kernels/cuda/coll/chunks.cuh"
#include "kernels/cuda/coll/packets.cuh"

namespace mep::device {
namespace {

// By one thread.
__device__ uint64_t longest_given(const CollState* state, const CollBlocks& blocks) {
  uint64_t longest = 0;
  for (uint32_t rank = 0; rank < state->layout.ranks; ++rank) {
    if (blocks.given[rank].bytes > longest) longest = blocks.given[rank].bytes;
  }
  return longest;
}

// The data threads: the first step. Into *most the longest block of all, and into *fits whether this rank gets what it
// expects. False in all of them: the operation has failed.
__device__ bool exchange_lengths(CollState* state, CollFrame* frame, const CollBlocks& blocks,
                                 uint64_t* most, bool* fits) {
  __shared__ unsigned long long own_longest;
  __shared__ unsigned long long longest;
  __shared__ uint32_t differs;
  const PacketStep step(state, frame);
  if (threadIdx.x == 0) {
    longest = own_longest = longest_given(state, blocks);
    differs = blocks.given[state->rank].bytes != blocks.gotten[state->rank].bytes ? 1 : 0;
  }
  data_sync();
  const uint64_t at = uint64_t{blockIdx.x} * 16;  // each CTA tells its own
  step.announce();
  if (threadIdx.x + 1 < frame->members) {
    const uint32_t other = frame->member_after(1 + threadIdx.x);
    const uint64_t bytes = blocks.given[other].bytes;
    const uint64_t own = own_longest;
    step.store(other, at,
               {static_cast<uint32_t>(bytes), static_cast<uint32_t>(bytes >> 32),
                static_cast<uint32_t>(own), static_cast<uint32_t>(own >> 32)});
    uint4 told;
    if (step.take(step.look(other, at), other, at, &told)) {
      if ((told.x | uint64_t{told.y} << 32) != blocks.gotten[other].bytes) atomicExch(&differs, 1u);
      atomicMax(&longest, static_cast<unsigned long long>(told.z | uint64_t{told.w} << 32));
    }
  }
  if (!step.end()) return false;
  *most = longest;
  *fits = differs == 0;
  return true;
}

// The data threads of a rank that gets another length than it expects: until all know.
__device__ void refuse_lengths(CollState* state, CollFrame* frame, uint64_t step) {
  const uint64_t row = state->layout.exchange_row(step & 1, blockIdx.x);
  const uint64_t tag = coll_tag(*frame, step) ^ 1;
  signal_members(state, *frame, row, tag);
  (void)wait_members(state, frame, row, state->layout.scatter_row(blockIdx.x), tag);
  if (threadIdx.x == 0) {
    atomicExch(&frame->mismatched, 1u);
    atomicExch(&frame->failed, 1u);
  }
}

// Beyond a block's own end nothing of a chunk is moved.
__device__ uint64_t end_in(const CollChunk& chunk, uint64_t bytes) {
  const uint64_t left = bytes > chunk.at ? bytes - chunk.at : 0;
  return chunk.end < left ? chunk.end : left;
}

__device__ void push_counted(const Team& team, const CollState* state, const CollFrame& frame,
                             const CollCall& call, const CollBlocks& blocks,
                             const CollChunk& chunk) {
  const uint64_t slot = state->layout.slot(chunk.step, state->rank);
  for (uint32_t k = 1; k < frame.members; ++k) {
    const uint32_t target = frame.member_after(k);
    const CollBlock& block = blocks.given[target];
    uint8_t* to = state->windows[target] + slot;
    move_from_user(team, static_cast<const uint8_t*>(call.send) + block.at, chunk.at, block.bytes,
                   chunk.begin, end_in(chunk, block.bytes),
                   [&](uint64_t i, const uint4& pack) { store_window(to + i, pack); });
  }
}

__device__ void take_counted(const Team& team, const CollState* state, const CollFrame& frame,
                             const CollCall& call, const CollBlocks& blocks,
                             const CollChunk& chunk) {
  for (uint32_t k = 1; k < frame.members; ++k) {
    const uint32_t source = frame.member_after(k);
    const CollBlock& block = blocks.gotten[source];
    move_to_user(team, window_of(frame, source) + state->layout.slot(chunk.step, source),
                 static_cast<uint8_t*>(call.receive) + block.at, chunk.at, block.bytes, chunk.begin,
                 end_in(chunk, block.bytes));
  }
}

// This rank's block: what all give it, and itself.
template <typename Type>
__device__ void reduce_counted(const Team& team, const CollState* state, CollFrame* frame,
                               const CollCall& call, const CollBlocks& blocks,
                               const CollChunk& chunk) {
  const CollBlock& given = blocks.given[state->rank];
  const auto* own = static_cast<const uint8_t*>(call.send) + given.at;
  auto* to = static_cast<uint8_t*>(call.receive) + blocks.gotten[state->rank].at;
  const uint32_t rank = state->rank;
  const uint64_t slot = state->layout.slot(chunk.step, 0), slot_bytes = state->layout.slot_bytes;
  const auto from = [&](uint32_t source) {
    if (source == rank) return own + chunk.at;
    return window_of(*frame, source) + slot + source * slot_bytes;
  };
  lay_out_reduction(team, frame, from, to + chunk.at);
  reduce_range<Type>(team, *frame, call.op, chunk.begin, end_in(chunk, given.bytes),
                     given.bytes - chunk.at);
}

// own(team, chunk) is what this rank does without the others, take(team, chunk) comes when all is there.
template <typename Own, typename Take>
__device__ void counted(CollState* state, const CollCall& call, const CollBlocks& blocks,
                        CollFrame* frame, Own&& own, Take&& take) {
  uint64_t most = 0;
  bool fits = true;
  if (!exchange_lengths(state, frame, blocks, &most, &fits)) return;
  const uint64_t first = frame->step + 1;
  const CollChunks chunks(state->layout, most);
  if (threadIdx.x == 0) atomicExch(&frame->chunks, (unsigned long long)chunks.count());
  if (!fits) return refuse_lengths(state, frame, first);
  const bool all_here = run_pipeline<1>(
      state, frame, chunks.count(), kHalfSenders,
      [&](const Team& team, uint64_t number) {
        push_counted(team, state, *frame, call, blocks, chunks.chunk(first, number));
      },
      [&](const Team& team, uint64_t number) { own(team, chunks.chunk(first, number)); },
      [&](const Team& team, uint64_t number) { take(team, chunks.chunk(first, number)); }, first);
  if (all_here) confirm_blocks(state, frame, first + chunks.count());
}

__global__ void __launch_bounds__(kCollThreads, 1)
    counted_entry(CollState* state, const CollCall call,
                  const __grid_constant__ CollBlocks blocks) {
  const auto own = [&](const Team& team, const CollChunk& chunk) {
    const CollBlock& from = blocks.given[state->rank];
    move_own(team, static_cast<const uint8_t*>(call.send) + from.at,
             static_cast<uint8_t*>(call.receive) + blocks.gotten[state->rank].at, chunk.at,
             from.bytes, chunk.begin, end_in(chunk, from.bytes));
  };
  run_coll(
      state, call,
      [&](CollFrame* frame) {
        counted(state, call, blocks, frame, own, [&](const Team& team, const CollChunk& chunk) {
          take_counted(team, state, *frame, call, blocks, chunk);
        });
      },
      [](CollFrame& frame) { return 2 + frame.told_chunks(); });
}

template <typename Type>
__global__ void __launch_bounds__(kCollThreads, 1)
    counted_reduce_entry(CollState* state, const CollCall call,
                         const __grid_constant__ CollBlocks blocks) {
  run_coll(
      state, call,
      [&](CollFrame* frame) {
        counted(
            state, call, blocks, frame, [](const Team&, const CollChunk&) {},
            [&](const Team& team, const CollChunk& chunk) {
              reduce_counted<Type>(team, state, frame, call, blocks, chunk);
            });
      },
      [](CollFrame& frame) { return 2 + frame.told_chunks(); });
}

}  // namespace

CountedKernel counted_kernel() {
  return counted_entry;
}

CountedKernel counted_reduce_kernel(mep_dtype_t dtype) {
  switch (dtype) {
#define MEP_KERNEL_OF(name, ...) \
  case name:                     \
    return counted_reduce_entry<__VA_ARGS__>;
    MEP_REDUCE_TYPES(MEP_KERNEL_OF)
#undef MEP_KERNEL_OF
    default:
      return nullptr;
  }
}

}  // namespace mep::device

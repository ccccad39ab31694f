// Exchanges of the bytes themselves: what a rank gives is put into its slot in all windows, signalled, and used when the
// words of all members are there. Long messages go in chunks, through a pipeline.
#pragma once

#include "kernels/cuda/coll/copy.cuh"
#include "kernels/cuda/coll/pipeline.cuh"
#include "kernels/cuda/coll/registered.cuh"

namespace mep::device {

__device__ inline uint64_t chunk_count(const CollLayout& layout, uint64_t bytes) {
  return bytes <= layout.slot_bytes ? 1 : (bytes + layout.slot_bytes - 1) / layout.slot_bytes;
}

// One CTA's part of one chunk.
struct CollChunk {
  uint64_t step;
  uint64_t at;     // its first byte in the message
  uint64_t begin;  // this CTA's part, in the chunk
  uint64_t end;
};

class CollChunks {
 public:
  __device__ CollChunks(const CollLayout& layout, uint64_t bytes)
      : slot_bytes_(layout.slot_bytes), bytes_(bytes), count_(chunk_count(layout, bytes)) {
    // The same in all chunks: a place is free when the CTA that reads it says so, and no other.
    const uint64_t longest = count_ > 1 ? slot_bytes_ : bytes;
    part_ = part_of_cta(longest);
  }
  __device__ uint64_t count() const { return count_; }
  __device__ CollChunk chunk(uint64_t first_step, uint64_t number) const {
    const uint64_t at = number * slot_bytes_;
    const uint64_t left = bytes_ - at;
    const uint64_t length = left < slot_bytes_ ? left : slot_bytes_;
    const uint64_t begin = part_ * blockIdx.x;
    return {first_step + number, at, begin, begin + part_ < length ? begin + part_ : length};
  }

 private:
  uint64_t slot_bytes_;
  uint64_t bytes_;
  uint64_t count_;
  uint64_t part_;
};

// This CTA's part of a block that is read in registered memory, whole.
__device__ inline CollChunk whole_block(uint64_t bytes) {
  const uint64_t part = part_of_cta(bytes);
  const uint64_t begin = part * blockIdx.x;
  return {0, 0, begin, begin + part < bytes ? begin + part : bytes};
}

// A block of the registered memory of `source`, from byte `at` of what it offered.
__device__ inline void pull_block(const Team& team, const CollFrame& frame, const CollCall& call,
                                  const CollChunk& chunk, uint32_t source, uint64_t at,
                                  uint8_t* to) {
  const bool aligned = is_aligned(to);
  move_from_user(team, frame.source[source] + at, chunk.at, call.bytes, chunk.begin, chunk.end,
                 [&](uint64_t i, const uint4& pack) {
                   store_user(to, chunk.at + i, call.bytes, aligned, pack);
                 });
}
__device__ inline void pull_blocks(const Team& team, const CollFrame& frame, const CollCall& call,
                                   const CollChunk& chunk, uint64_t at) {
  for (uint32_t k = 1; k < frame.members; ++k) {
    const uint32_t source = frame.member_after(k);
    pull_block(team, frame, call, chunk, source, at,
               static_cast<uint8_t*>(call.receive) + source * call.bytes);
  }
}

// The same bytes to all others.
__device__ inline void push_to_others(const Team& team, const CollState* state,
                                      const CollFrame& frame, const CollCall& call,
                                      const CollChunk& chunk) {
  const uint64_t slot = state->layout.slot(chunk.step, state->rank);
  move_groups_from_user(team, static_cast<const uint8_t*>(call.send), chunk.at, call.bytes,
                        chunk.begin, chunk.end, [&](const auto& group) {
                          for (uint32_t k = 1; k < frame.members; ++k) {
                            group.store_to(frame.window[frame.member_after(k)] + slot);
                          }
                        });
}

// One block to one member.
__device__ inline void push_block(const Team& team, const CollState* state, const CollCall& call,
                                  const CollChunk& chunk, const uint8_t* block, uint32_t target) {
  uint8_t* to = state->windows[target] + state->layout.slot(chunk.step, state->rank);
  move_from_user(team, block, chunk.at, call.bytes, chunk.begin, chunk.end,
                 [&](uint64_t i, const uint4& pack) { store_window(to + i, pack); });
}

// If a chunk has few packs for many members, from the member `first` places after this rank on: all at once,
// each by one thread, move(member, pack's place in the chunk). False: they are to be moved one member after the
// other.
template <typename Move>
__device__ inline bool move_few(const Team& team, const CollFrame& frame, const CollChunk& chunk,
                                uint32_t first, Move&& move) {
  if (chunk.begin >= chunk.end) return true;
  const uint64_t packs = (chunk.end - chunk.begin + 15) / 16;
  if (packs * (frame.members - first) > team.threads) return false;
  const uint32_t k = first + team.index / static_cast<uint32_t>(packs);
  if (k < frame.members) {
    move(frame.member_after(k), chunk.begin + team.index % static_cast<uint32_t>(packs) * 16);
  }
  return true;
}

// Each member its own block of the send buffer, from the member `first` places after this rank on.
__device__ inline void push_blocks(const Team& team, const CollState* state, const CollFrame& frame,
                                   const CollCall& call, const CollChunk& chunk, uint32_t first) {
  const auto* send = static_cast<const uint8_t*>(call.send);
  const uint64_t slot = state->layout.slot(chunk.step, state->rank);
  const bool few = move_few(team, frame, chunk, first, [&](uint32_t target, uint64_t i) {
    const uint8_t* block = send + target * call.bytes;
    store_window(state->windows[target] + slot + i,
                 load_user(block, chunk.at + i, call.bytes, is_aligned(block)));
  });
  for (uint32_t k = first; !few && k < frame.members; ++k) {
    const uint32_t target = frame.member_after(k);
    push_block(team, state, call, chunk, send + target * call.bytes, target);
  }
}

// Copies the contributions of the others, each to its block of the receive buffer.
__device__ inline void take_blocks(const Team& team, const CollState* state, const CollFrame& frame,
                                   const CollCall& call, const CollChunk& chunk) {
  auto* receive = static_cast<uint8_t*>(call.receive);
  const auto from = [&](uint32_t source) {
    return window_of(frame, source) + state->layout.slot(chunk.step, source);
  };
  const bool few = move_few(team, frame, chunk, 1, [&](uint32_t source, uint64_t i) {
    uint8_t* to = receive + source * call.bytes;
    store_user(to, chunk.at + i, call.bytes, is_aligned(to), load_window(from(source) + i));
  });
  for (uint32_t k = 1; !few && k < frame.members; ++k) {
    const uint32_t source = frame.member_after(k);
    move_to_user(team, from(source), receive + source * call.bytes, chunk.at, call.bytes,
                 chunk.begin, chunk.end);
  }
}

// push(team, chunk) puts what this rank gives into windows; own(team, chunk) is what it does without the others,
// use(team, chunk) comes when all is there. False in all threads: the operation has failed.
template <typename Push, typename Own, typename Use>
__device__ inline bool exchange_chunks(CollState* state, const CollCall& call, CollFrame* frame,
                                       uint32_t senders, Push&& push, Own&& own, Use&& use) {
  const CollChunks chunks(state->layout, call.bytes);
  const uint64_t first = frame->step;
  return run_pipeline<1>(
      state, frame, chunks.count(), senders,
      [&](const Team& team, uint64_t number) { push(team, chunks.chunk(first, number)); },
      [&](const Team& team, uint64_t number) { own(team, chunks.chunk(first, number)); },
      [&](const Team& team, uint64_t number) { use(team, chunks.chunk(first, number)); });
}

// Steps of an operation whose blocks are for one rank each: chunks, and confirm_blocks() where they are confirmed.
__device__ inline uint64_t block_steps(const CollState* state, const CollFrame& frame,
                                       uint64_t bytes) {
  if (frame.pulls) return 1;
  return chunk_count(state->layout, bytes) + (state->layout.confirms_blocks() ? 1 : 0);
}

}  // namespace mep::device

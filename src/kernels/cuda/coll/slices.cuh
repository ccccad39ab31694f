// Long broadcasts and reduces of three ranks or more. Every rank but the root is a worker, which has a slice of each
// chunk: a broadcast's root gives each worker its slice, and the workers pass theirs on to each other; a reduce's
// workers get their slice of all ranks, and give the sums to the root. So each link carries each byte once.
//
// Chunk c is given in slots of step c and passed on in slots of step c + 1: a pipeline in which a chunk is taken two
// steps after it was given.
//
// A chunk that one rank lacks may lie in no other window. So such an operation is confirmed (confirm_blocks()).
#pragma once

#include "kernels/cuda/coll/chunks.cuh"

namespace mep::device {

struct SlicedChunk {
  uint64_t step;  // in whose slots it is given
  uint64_t at;    // its first byte in the message
};

// This CTA's part of a worker's slice of a chunk: bytes [begin, end) of the slice, which is at `at` in the message.
struct SlicePart {
  uint64_t at;
  uint64_t begin;
  uint64_t end;
};

class CollSlices {
 public:
  __device__ CollSlices(const CollState* state, const CollCall& call, const CollFrame& frame)
      : bytes_(call.bytes), first_step_(frame.step), alone_(frame.members == 1) {
    workers_ = alone_ ? 1 : frame.members - 1;
    while (root_ + 1 < frame.members && frame.member[root_] != call.root) ++root_;
    const uint64_t pack_row = uint64_t{16} * workers_;
    const uint64_t most = state->layout.slot_bytes * workers_;
    uint64_t limit =
        call.bytes / kChunks < kLeastChunkBytes ? kLeastChunkBytes : call.bytes / kChunks;
    if (limit > kMostChunkBytes) limit = kMostChunkBytes;
    if (limit > most) limit = most;
    limit = limit / pack_row * pack_row;
    count_ = call.bytes <= limit ? 1 : (call.bytes + limit - 1) / limit;
    chunk_bytes_ = ((call.bytes + count_ - 1) / count_ + pack_row - 1) / pack_row * pack_row;
    slice_ = chunk_bytes_ / workers_;
    part_ = part_of_cta(slice_);
  }

  __device__ uint64_t count() const { return count_; }
  // Chunks are given in as many steps; then the last is passed on, and all is confirmed.
  __device__ uint64_t steps() const { return count_ + 2; }
  __device__ uint32_t workers() const { return workers_; }
  // A rank's place among the members -> its number as a worker, and back. Alone, the root is its own worker.
  __device__ bool is_worker(uint32_t cursor) const { return alone_ || cursor != root_; }
  __device__ uint32_t worker_of(uint32_t cursor) const {
    return cursor > root_ ? cursor - 1 : cursor;
  }
  __device__ uint32_t cursor_of(uint32_t worker) const {
    return !alone_ && worker >= root_ ? worker + 1 : worker;
  }

  __device__ SlicedChunk chunk(uint64_t number) const {
    return {first_step_ + number, number * chunk_bytes_};
  }
  __device__ SlicePart part(const SlicedChunk& chunk, uint32_t worker) const {
    const uint64_t at = chunk.at + worker * slice_;
    const uint64_t left = bytes_ > at ? bytes_ - at : 0;
    const uint64_t length = left < slice_ ? left : slice_;
    const uint64_t begin = part_ * blockIdx.x;
    return {at, begin, begin + part_ < length ? begin + part_ : length};
  }

 private:
  // A long message has about so many chunks, so that giving and passing on overlap, but none so small that its
  // signals take longer than its bytes.
  static constexpr uint64_t kChunks = 4;
  static constexpr uint64_t kLeastChunkBytes = 2u << 20;
  static constexpr uint64_t kMostChunkBytes = 8u << 20;

  uint64_t bytes_;
  uint64_t first_step_;
  uint64_t count_;
  uint64_t chunk_bytes_;
  // Both are the same in all chunks: a place is free when the CTA that reads it says so, and no other.
  uint64_t slice_;
  uint64_t part_;  // of one CTA, of a slice
  uint32_t workers_;
  uint32_t root_ = 0;  // its place among the members
  bool alone_;
};

// give(team, chunk) puts into the workers' windows what this rank has for them, pass_on(team, chunk) comes when all of
// that is there, and take(team, chunk) when what was passed on is there. Ends early if the operation has failed.
template <typename Give, typename PassOn, typename Take>
__device__ inline void exchange_slices(CollState* state, const CollSlices& slices, CollFrame* frame,
                                       uint32_t senders, Give&& give, PassOn&& pass_on,
                                       Take&& take) {
  const uint64_t count = slices.count();
  const auto send = [&](const Team& team, uint64_t number) {
    if (number < count) give(team, slices.chunk(number));
    if (number != 0) pass_on(team, slices.chunk(number - 1));
  };
  const auto take_one = [&](const Team& team, uint64_t number) {
    take(team, slices.chunk(number));
  };
  if (run_pipeline<2>(
          state, frame, count, senders, send, [](const Team&, uint64_t) {}, take_one)) {
    confirm_blocks(state, frame, frame->step + count + 1);
  }
}

}  // namespace mep::device

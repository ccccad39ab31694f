// Barrier, broadcast and allgather: every rank that has something puts it into its slot in all windows,
// signals, and copies what the others have put into its own.
#include "kernels/cuda/coll_allreduce.cuh"
#include "kernels/cuda/coll_chunks.cuh"
#include "kernels/cuda/coll_packets.cuh"

namespace mep::device {
namespace {

__device__ void exchange(CollState* state, const CollCall& call, CollFrame* frame) {
  const auto* send = static_cast<const uint8_t*>(call.send);
  auto* receive = static_cast<uint8_t*>(call.receive);
  const bool gives = call.kind == Collective::k_allgather ||
                     (call.kind == Collective::k_broadcast && call.root == state->rank);
  // What this rank gives itself it copies from one buffer to the other.
  const auto own = [&](const CollChunk& chunk) {
    if (!gives) return;
    const uint32_t place = call.kind == Collective::k_allgather ? state->rank : 0;
    move_own(send, receive + place * call.bytes, chunk.at, call.bytes, chunk.begin, chunk.end);
  };
  const auto push = [&](const CollChunk& chunk) {
    if (gives) push_to_others(state, *frame, call, chunk);
  };
  const auto use = [&](const CollChunk& chunk) {
    if (call.kind == Collective::k_allgather) take_blocks(state, *frame, call, chunk);
    if (call.kind != Collective::k_broadcast || gives) return;
    const uint8_t* from = window_of(*frame, call.root) + state->layout.slot(chunk.step, call.root);
    move_to_user(from, receive, chunk.at, call.bytes, chunk.begin, chunk.end);
  };
  (void)exchange_chunks(state, call, frame, push, own, use);
}

// What `source` gives, to a block of the receive buffer.
__device__ bool take_packets(const PacketStep& step, const CollCall& call, uint32_t source,
                             uint8_t* to) {
  const bool aligned = is_aligned(to);
  for (uint64_t i = first_pack(); i < call.bytes; i += gridDim.x * kPackStride) {
    uint4 pack;
    if (!step.take(step.look(source, i), source, i, &pack)) return false;
    store_user(to, i, call.bytes, aligned, pack);
  }
  return true;
}

// One pack of all others, each by a thread of its own.
__device__ bool take_single_packs(const PacketStep& step, const CollCall& call,
                                  const CollFrame& frame) {
  const uint32_t k = threadIdx.x + 1;
  if (blockIdx.x != 0 || k >= frame.members) return true;
  const uint32_t source = frame.member_after(k);
  uint4 pack;
  if (!step.take(step.look(source, 0), source, 0, &pack)) return false;
  uint8_t* to = static_cast<uint8_t*>(call.receive) + source * call.bytes;
  store_user(to, 0, call.bytes, is_aligned(to), pack);
  return true;
}

__device__ void exchange_in_packets(CollState* state, const CollCall& call, CollFrame* frame) {
  const PacketStep step(state, frame);
  const bool gathers = call.kind == Collective::k_allgather;
  const bool gives = gathers || (call.kind == Collective::k_broadcast && call.root == state->rank);
  const auto* send = static_cast<const uint8_t*>(call.send);
  auto* receive = static_cast<uint8_t*>(call.receive);
  test_delay(state, *frame, 0);
  if (gives) {
    const bool aligned = is_aligned(send);
    uint8_t* own = receive + (gathers ? state->rank * call.bytes : 0);
    const bool own_aligned = is_aligned(own);
    for (uint64_t i = first_pack(); i < call.bytes; i += gridDim.x * kPackStride) {
      const uint4 pack = load_user(send, i, call.bytes, aligned);
      for (uint32_t k = 1; k < frame->members; ++k) step.store(frame->member_after(k), i, pack);
      if (own != send) store_user(own, i, call.bytes, own_aligned, pack);
    }
  }
  test_delay(state, *frame, 1);
  step.announce();
  if (gathers && call.bytes != 0 && call.bytes <= 16) {
    (void)take_single_packs(step, call, *frame);
  } else if (gathers) {
    for (uint32_t k = 1; k < frame->members; ++k) {
      const uint32_t source = frame->member_after(k);
      if (!take_packets(step, call, source, receive + source * call.bytes)) break;
    }
  } else if (call.kind == Collective::k_broadcast && !gives) {
    (void)take_packets(step, call, call.root, receive);
  }
  // Who gives nothing is known to have come by its word.
  if (step.end() && (!gathers || call.bytes == 0)) (void)step.wait_for_all();
}

__global__ void __launch_bounds__(kCollThreads)
    exchange_entry(CollState* state, const CollCall call) {
  run_coll(
      state, call,
      [&](CollFrame* frame) {
        if (call.bytes <= kPacketMessageBytes) {
          exchange_in_packets(state, call, frame);
        } else {
          exchange(state, call, frame);
        }
      },
      [&](const CollFrame&) { return chunk_count(state->layout, call.bytes); });
}

}  // namespace

CollKernel exchange_kernel() {
  return exchange_entry;
}

}  // namespace mep::device

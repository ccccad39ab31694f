// Short messages that are not reduced, in packets: who gives something stores it in the windows of those that get it,
// and each rank takes from its own what the others gave.
#include "kernels/cuda/coll/allreduce.cuh"
#include "kernels/cuda/coll/packets.cuh"

namespace mep::device {
namespace {

// Takes what `source` gives to a block of the receive buffer; two packs are looked at together.
__device__ bool take_packets(const PacketStep& step, const CollCall& call, uint32_t source,
                             uint8_t* to) {
  const bool aligned = is_aligned(to);
  const uint64_t stride = gridDim.x * kPackStride;
  for (uint64_t first = first_pack(); first < call.bytes; first += 2 * stride) {
    const bool has_second = first + stride < call.bytes;
    const PacketPair looks[2] = {step.look(source, first),
                                 step.look(source, has_second ? first + stride : first)};
#pragma unroll 1
    for (uint32_t k = 0; k < (has_second ? 2u : 1u); ++k) {
      const uint64_t at = first + k * stride;
      uint4 pack;
      if (!step.take(k == 0 ? looks[0] : looks[1], source, at, &pack)) return false;
      store_user(to, at, call.bytes, aligned, pack);
    }
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

// Takes the blocks of all others; four packs, of whichever sources, are looked at together.
__device__ bool take_blocks(const PacketStep& step, const CollCall& call, const CollFrame& frame) {
  auto* receive = static_cast<uint8_t*>(call.receive);
  if (frame.members == 2) {
    if (call.bytes <= 16 && call.bytes != 0 && call.kind == Collective::k_alltoall) {
      return take_single_packs(step, call, frame);
    }
    const uint32_t source = frame.member_after(1);
    return take_packets(step, call, source, receive + source * call.bytes);
  }
  const BlockPacks packs(frame, call.bytes);
  for (uint32_t first = packs.first(); first < packs.count(); first += 4 * packs.stride()) {
    PacketPair looks[4];
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) {
      const uint32_t number = first + k * packs.stride();
      if (number < packs.count()) looks[k] = step.look(packs.member(number), packs.at(number));
    }
#pragma unroll 1
    for (uint32_t k = 0; k < 4 && first + k * packs.stride() < packs.count(); ++k) {
      const uint32_t number = first + k * packs.stride();
      const uint32_t source = packs.member(number);
      const PacketPair seen =
          k < 2 ? (k == 0 ? looks[0] : looks[1]) : (k == 2 ? looks[2] : looks[3]);
      uint4 pack;
      if (!step.take(seen, source, packs.at(number), &pack)) return false;
      uint8_t* to = receive + source * call.bytes;
      store_user(to, packs.at(number), call.bytes, is_aligned(to), pack);
    }
  }
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
  // The word of a rank that gives nothing says that it has come.
  if (step.end() && (!gathers || call.bytes == 0)) (void)step.wait_for_all();
}

// Gather, scatter and alltoall: whether `source` has a block for `target`.
__device__ bool is_given(const CollCall& call, uint32_t source, uint32_t target) {
  if (call.kind == Collective::k_scatter) return source == call.root;
  return call.kind != Collective::k_gather || target == call.root;
}

__device__ void blocks_in_packets(CollState* state, const CollCall& call, CollFrame* frame) {
  const PacketStep step(state, frame);
  // A rank that gives has a block for each, one that gets has a block of each; else one.
  const bool gives_each = call.kind != Collective::k_gather;
  const bool gets_of_each = call.kind != Collective::k_scatter;
  const auto* send = static_cast<const uint8_t*>(call.send);
  auto* receive = static_cast<uint8_t*>(call.receive);
  const uint32_t rank = state->rank;
  test_delay(state, *frame, 0);
  if (gives_each && is_given(call, rank, rank)) {
    if (frame->members > 2) {
      step.store_blocks(call, send);
    } else if (frame->members == 2) {
      const uint32_t target = frame->member_after(1);
      step.store_all(target, call, send + target * call.bytes);
    }
  } else if (!gives_each && rank != call.root) {
    step.store_all(call.root, call, send);
  }
  test_delay(state, *frame, 1);
  step.announce();
  const uint64_t own = rank * call.bytes;
  const uint8_t* own_from = send + (gives_each ? own : 0);
  uint8_t* own_to = receive + (gets_of_each ? own : 0);
  if (is_given(call, rank, rank) && own_from != own_to) {
    for (uint64_t i = first_pack(); i < call.bytes; i += gridDim.x * kPackStride) {
      store_user(own_to, i, call.bytes, is_aligned(own_to),
                 load_user(own_from, i, call.bytes, is_aligned(own_from)));
    }
  }
  if (gets_of_each && is_given(call, rank, rank)) {
    (void)take_blocks(step, call, *frame);
  } else if (!gets_of_each && rank != call.root) {
    (void)take_packets(step, call, call.root, receive);
  }
  // The word of a rank that gives nothing says that it has come. So it does for a CTA that has no packs of that rank.
  const bool all_give = gives_each && gets_of_each && call.bytes != 0;
  const bool came = step.end() && ((all_give && gridDim.x == 1) || step.wait_for_all());
  if (came && state->layout.confirms_blocks()) step.confirm();
}

__global__ void __launch_bounds__(kCollThreads, 1)
    short_blocks_entry(CollState* state, const CollCall call) {
  run_coll<store_word>(
      state, call, [&](CollFrame* frame) { blocks_in_packets(state, call, frame); },
      [&](const CollFrame&) { return state->layout.confirms_blocks() ? 2ull : 1ull; });
}

__global__ void __launch_bounds__(kCollThreads, 1)
    short_exchange_entry(CollState* state, const CollCall call) {
  run_coll<store_word>(
      state, call, [&](CollFrame* frame) { exchange_in_packets(state, call, frame); },
      [](const CollFrame&) { return uint64_t{1}; });
}

}  // namespace

CollKernel short_exchange_kernel() {
  return short_exchange_entry;
}
CollKernel short_blocks_kernel() {
  return short_blocks_entry;
}

}  // namespace mep::device

// Short messages. A packet is 16 bytes that are stored in a window: 8 of the message and 8 that are the step's tag.
// A reader that sees the tag has the bytes. So no fence and no barrier of the CTA stands between the data and
// its reader. A pack, 16 bytes of the message, is two packets.
//
// A source's packets lie in layout.packets(step, source), of kCollSlots places in turn. A rank has ended all
// operations before the one that it stores packets of, and for that it had what all ranks gave in each of them. So
// all have ended operation n - 2 when one of them stores packets of n: the place of n - 3 is free. Operations with a
// step that confirms them pass over a place.
//
// Beside its packets a rank stores its signal word, with no order between them: of it others learn that this
// rank has come, where it gives nothing, and that it calls something else.
#pragma once

#include "kernels/cuda/coll/arith.cuh"
#include "kernels/cuda/coll/copy.cuh"
#include "kernels/cuda/coll/run.cuh"

namespace mep::device {

struct Packet {
  uint64_t data;
  uint64_t tag;
};

// 16 bytes are stored and loaded as one.
__device__ inline void store_packet(uint8_t* to, const Packet& packet) {
#ifdef MEP_MUTANT_SPLIT_PACKET  // gpu_coll_test notices
  store_word(reinterpret_cast<uint64_t*>(to) + 1, packet.tag);
  __nanosleep(1000);
  store_word(reinterpret_cast<uint64_t*>(to), packet.data);
#else
  store_system_pair(to, packet.data, packet.tag);
#endif
}
__device__ inline Packet load_packet(const uint8_t* from) {
  Packet packet;
  load_system_pair(from, &packet.data, &packet.tag);
  return packet;
}

// The two packets of a pack as they were seen.
struct PacketPair {
  Packet low, high;

  __device__ bool is_of(uint64_t tag) const {
#ifdef MEP_MUTANT_NO_TAG_CHECK  // gpu_coll_test notices
    return true;
#else
    return low.tag == tag && high.tag == tag;
#endif
  }
  // Another call's, of this step.
  __device__ bool differs_from(uint64_t tag) const {
    return (low.tag != tag && is_near_step(low.tag, tag)) ||
           (high.tag != tag && is_near_step(high.tag, tag));
  }
  __device__ uint4 pack() const {
    return {static_cast<uint32_t>(low.data), static_cast<uint32_t>(low.data >> 32),
            static_cast<uint32_t>(high.data), static_cast<uint32_t>(high.data >> 32)};
  }
};

// The packs of a message that are this thread's begin here, and are gridDim.x * kPackStride bytes apart.
__device__ inline uint64_t first_pack() {
  return (uint64_t{blockIdx.x} * kDataThreads + threadIdx.x) * 16;
}

// Blocks of all other members, all packs of them one after the other: this thread's begin at first(), and are stride()
// apart.
class BlockPacks {
 public:
  __device__ BlockPacks(const CollFrame& frame, uint64_t bytes)
      : frame_(frame),
        of_block_(static_cast<uint32_t>((bytes + 15) / 16)),
        count_(of_block_ * (frame.members - 1)) {}
  __device__ uint32_t count() const { return count_; }
  __device__ uint32_t first() const { return blockIdx.x * kDataThreads + threadIdx.x; }
  __device__ uint32_t stride() const { return gridDim.x * kDataThreads; }
  __device__ uint32_t member(uint32_t number) const {
    return frame_.member_after(1 + number / of_block_);
  }
  __device__ uint64_t at(uint32_t number) const { return uint64_t{number % of_block_} * 16; }

 private:
  const CollFrame& frame_;
  uint32_t of_block_;
  uint32_t count_;
};

// One step of packets, of the data threads.
class PacketStep {
 public:
  __device__ PacketStep(CollState* state, CollFrame* frame)
      : state_(state),
        frame_(frame),
        tag_(coll_tag(*frame, frame->step)),
        own_place_(state->layout.packets(frame->step, state->rank)) {}

  __device__ void store(uint32_t target, uint64_t pack_at, const uint4& pack) const {
    uint8_t* to = state_->windows[target] + own_place_ + 2 * pack_at;
    store_packet(to, {pack.x | uint64_t{pack.y} << 32, tag_});
    store_packet(to + sizeof(Packet), {pack.z | uint64_t{pack.w} << 32, tag_});
  }
  // This thread's packs of a message.
  __device__ void store_all(uint32_t target, const CollCall& call, const uint8_t* from) const {
    const bool aligned = is_aligned(from);
    for (uint64_t i = first_pack(); i < call.bytes; i += gridDim.x * kPackStride) {
      store(target, i, load_user(from, i, call.bytes, aligned));
    }
  }
  // This thread's packs of each other member's block.
  __device__ void store_blocks(const CollCall& call, const uint8_t* send) const {
    const BlockPacks packs(*frame_, call.bytes);
    for (uint32_t number = packs.first(); number < packs.count(); number += packs.stride()) {
      const uint32_t target = packs.member(number);
      const uint8_t* block = send + target * call.bytes;
      store(target, packs.at(number),
            load_user(block, packs.at(number), call.bytes, is_aligned(block)));
    }
  }
  // This rank has come, and calls this.
  __device__ void announce() const {
    if (blockIdx.x != 0 || threadIdx.x >= frame_->members) return;
    uint8_t* window = state_->windows[frame_->member[threadIdx.x]];
    store_word(reinterpret_cast<uint64_t*>(window + row()) + state_->rank, tag_);
  }
  // Until all have come. False in all threads: the operation has failed.
  __device__ bool wait_for_all() const {
    return wait_members(state_, frame_, row(), state_->layout.scatter_row(0), tag_);
  }
  __device__ PacketPair look(uint32_t source, uint64_t pack_at) const {
    const uint8_t* from =
        window_of(*frame_, source) + state_->layout.packets(frame_->step, source) + 2 * pack_at;
    return {load_packet(from), load_packet(from + sizeof(Packet))};
  }
  // `seen` was the first look. False: the operation has failed.
  __device__ bool take(PacketPair seen, uint32_t source, uint64_t pack_at, uint4* pack) const {
    for (uint32_t polls = 1; !seen.is_of(tag_); ++polls) {
      const bool looks_around = polls % kPollsPerDecision == 0;
      const bool strays = seen.differs_from(tag_) || (looks_around && calls_another(source));
      if (looks_around && !strays && !may_still_come(source, polls)) return fail(false);
      // Another call may be the source's next one: then its packets of this one have come by now.
      if (strays) observe();
      let_others_run();
      seen = look(source, pack_at);
      if (strays && !seen.is_of(tag_)) return fail(true);
    }
    *pack = seen.pack();
    return true;
  }
  // After all packs. False in all threads: the operation has failed, and all ranks have come, as after
  // wait_members(): who goes on has ended all before.
  __device__ bool end() const {
    data_sync();
    if (*static_cast<volatile uint32_t*>(&frame_->failed) == 0) return true;
    (void)wait_for_all();
    return false;
  }

  // The step after this one, like confirm_blocks(), in a CTA that has seen that all have come: its word may take the place
  // of one of the operation before. Data that this rank has read had its tag, and nobody reads what
  // it has written because of the word: so that need not be a release.
  __device__ void confirm() const { confirm_blocks<store_word>(state_, frame_, frame_->step + 1); }

 private:
  __device__ uint64_t row() const { return state_->layout.exchange_row(frame_->step & 1, 0); }
  __device__ uint64_t word_in(uint64_t row_at, uint32_t source) const {
    return load_word(reinterpret_cast<const uint64_t*>(frame_->own + row_at) + source);
  }
  __device__ bool calls_another(uint32_t source) const {
    const uint64_t here = word_in(row(), source);
    return (here != tag_ && is_near_step(here, tag_)) ||
           is_near_step(word_in(state_->layout.scatter_row(0), source), tag_);
  }
  __device__ bool may_still_come(uint32_t source, uint32_t polls) const {
    constexpr uint32_t kMostPolls = 1u << 24;  // of a donor's packets, which are there
    switch (look_at_decision(state_, frame_, source)) {
      case Outlook::kWaits:
        return true;
      case Outlook::kReplaced:
        return polls < kMostPolls;
      case Outlook::kFailed:
        return false;
    }
    return false;
  }
  __device__ bool fail(bool by_mismatch) const {
    if (by_mismatch) atomicExch(&frame_->mismatched, 1u);
    atomicExch(&frame_->failed, 1u);
    return false;
  }

  CollState* state_;
  CollFrame* frame_;
  uint64_t tag_;
  uint64_t own_place_;
};

}  // namespace mep::device

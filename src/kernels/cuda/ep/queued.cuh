// Dispatch and combine where send queues reach some peers, or all (ep/queue_layout.hpp): shared by the kernels of both.
//
//   count      tells every rank this rank's counts, and waits until all have given back the rows of the last use
//   pack       writes rows as records, quantised if the wire wants it: to the inboxes of mapped peers, and for the others
//              to the outbox
//   exchange   posts what is in the outbox, tells that the records are there, and waits for those of the others
//   unpack     takes the records of the others out of the inboxes, to each place of a row
//   push       stores or posts the terms of this rank's experts, tells that they are there, and waits for those of the
//              others
//   sum        adds the terms of each token
//
// Each is a launch. One block waits at a time, so ranks that share a GPU need no more than that to be there together.
#pragma once

#include "kernels/cuda/ep/count.cuh"
#include "kernels/cuda/ep/queue_layout.hpp"
#include "transport/gpu_queue/peer.hpp"

namespace mep::device {

constexpr uint32_t kMostBusCtas = 32;  // they fill the bus

// `Args` with memory.window and the words' places being those of the inbox.
template <class Args>
struct Queued : Args {
  EpQueueLayout l;
  EpQueues queues;

  __device__ gpu_queue::QueuePeer<> queue_to(uint32_t rank, const Waiter& waiter) const {
    auto* all = reinterpret_cast<gpu_queue::Queue*>(queues.scratch + l.queues);
    return {all + rank, {waiter.deadline, waiter.abort_word, waiter.epoch}};
  }
  __device__ uint32_t* sent_first() const {
    return reinterpret_cast<uint32_t*>(queues.scratch + l.sent_first);
  }
  __device__ gpu_queue::LocalMemory from_outbox(const gpu_queue::QueuePeer<>& peer,
                                                uint64_t offset) const {
    return peer.in_source(queues.outbox + offset);
  }
  // The word at the peer that this rank writes.
  __device__ gpu_queue::RemoteMemory word_at_peer(const gpu_queue::QueuePeer<>& peer,
                                                  uint64_t block, uint64_t use) const {
    return peer.in_window(block + (use % 2 * this->g.sizes.ranks + this->g.sizes.rank) * 8);
  }
  // By whole warps, each for some of the ranks that queues reach. False: some call failed.
  template <class Call>
  __device__ bool for_queued_peers(const Waiter& waiter, Call&& call) const {
    bool good = true;
    for (uint32_t rank = threadIdx.x / kWarpThreads; rank < this->g.sizes.ranks; rank += kEpWarps) {
      if (!this->is_live(rank) || stored_to(rank) != nullptr) continue;
      good = call(rank, queue_to(rank, waiter)) && good;
    }
    return good;
  }
  // This rank's inbox that `source` writes: with read_peers() or without.
  __device__ std::byte* written_by(uint32_t source) const {
    return this->memory.peers[source] != nullptr ? queues.mapped_inbox : queues.inbox;
  }
  // The inbox where kernels of this rank store for a rank; null: a queue reaches it.
  __device__ std::byte* stored_to(uint32_t rank) const {
    return rank == this->g.sizes.rank ? queues.inbox : this->peer(rank);
  }
  // By a whole CTA, behind a barrier: this rank's word, where it stores. A rank that acquires it sees what all threads have
  // stored there before. before(rank, inbox) stores what else it tells of.
  template <class Word, class Before>
  __device__ void tell_stored(uint64_t block, uint64_t use, Word&& word, Before&& before) const {
    const uint32_t own = this->g.sizes.rank;
    for (uint32_t rank = threadIdx.x; rank < this->g.sizes.ranks; rank += kEpThreads) {
      std::byte* inbox = stored_to(rank);
      if (inbox == nullptr || !this->is_live(rank)) continue;
      before(rank, inbox);
      store_word_release(this->rank_word(inbox, block, use, own), word(rank));
    }
  }
  __device__ void tell_stored(uint64_t block, uint64_t use, uint64_t word) const {
    tell_stored(
        block, use, [word](uint32_t) { return word; }, [](uint32_t, std::byte*) {});
  }
  // The counts of `source` in an inbox.
  __device__ uint32_t* counts_in(std::byte* inbox, uint64_t use, uint32_t source) const {
    return reinterpret_cast<uint32_t*>(inbox + l.counts) +
           (use % 2 * this->g.sizes.ranks + source) * this->g.count_words;
  }
  __device__ std::byte* record_in(std::byte* inbox, uint64_t row) const {
    return inbox + l.records + row * l.record_bytes;
  }
};

// Whether the call was done; else the failure is recorded. By a whole warp.
__device__ inline bool is_done(gpu_queue::Status status, const gpu_queue::QueuePeer<>& peer,
                               const Waiter& waiter, uint32_t rank) {
  if (status == gpu_queue::Status::kOk) return true;
  gpu_queue::QueueError error{};
  Cause cause = status == gpu_queue::Status::kTimedOut ? Cause::kDeadline : Cause::kAborted;
  if (status == gpu_queue::Status::kFailed) {
    peer.error(&error);
    cause = error.is_of_peer() ? Cause::kUnreachable : Cause::kRefused;
  }
  if (threadIdx.x % kWarpThreads == 0) {
    fail(waiter.channel, waiter.epoch, cause, rank, waiter.phase, gpu_queue::pack_error(error));
  }
  return false;
}

using QueuedDispatch = Queued<DispatchArgs>;

// The first dispatch of an epoch: nothing of the old one is under way afterwards.
__device__ inline bool flush_queues(const QueuedDispatch& a, const Waiter& waiter) {
  return a.for_queued_peers(waiter, [&](uint32_t rank, gpu_queue::QueuePeer<> peer) {
    return is_done(peer.flush(), peer, waiter, rank);
  });
}

// Tells the counts: those that the outbox has go to ranks that queues reach; mapped peers have theirs, stored before the
// barrier before this. Rows of the last use that were not combined are given back, as in give_back_unused(). That word is
// seen before the counts: a queue keeps the order, and the words are released in turn.
__device__ inline bool post_counts(const QueuedDispatch& a, const Waiter& waiter, uint64_t use) {
  const uint64_t last = use - 1;
  const bool gives_back = is_unused(a, last);
  const uint64_t given_back = unused_word(waiter.epoch, last);
  const uint64_t tag = signal_tag(waiter.epoch, use);
  if (gives_back) a.tell_stored(a.l.combine_ready, last, given_back);
  a.tell_stored(a.l.counts_ready, use, tag);
  const uint64_t from = a.l.sent_counts + use % 2 * a.l.sent_counts_bytes;
  const uint64_t to = a.l.counts + (use % 2 * a.g.sizes.ranks + a.g.sizes.rank) * a.l.counts_bytes;
  const uint32_t lane = threadIdx.x % kWarpThreads;
  return a.for_queued_peers(waiter, [&](uint32_t rank, gpu_queue::QueuePeer<> peer) {
    gpu_queue::Request request{};
    if (lane == 0) {
      request = gpu_queue::write_word(a.word_at_peer(peer, a.l.combine_ready, last), given_back);
    } else if (lane == 1) {
      request = gpu_queue::write(peer.in_window(to),
                                 a.from_outbox(peer, from + rank * a.l.sent_counts_step),
                                 a.l.counts_bytes);
    } else if (lane == 2) {
      request = gpu_queue::write_word(a.word_at_peer(peer, a.l.counts_ready, use), tag);
    }
    const bool wants = lane == 0 ? gives_back : lane <= 2;
    return is_done(peer.post_lanes(wants, request), peer, waiter, rank);
  });
}

// This rank's counts in the outbox.
__device__ inline uint32_t* sent_counts(const QueuedDispatch& a, uint64_t use) {
  return reinterpret_cast<uint32_t*>(a.queues.outbox + a.l.sent_counts +
                                     use % 2 * a.l.sent_counts_bytes);
}
// A count of another rank; is_count(): whether it can be.
__device__ inline uint32_t inbox_count(const QueuedDispatch& a, uint64_t use, uint32_t source,
                                       uint32_t column) {
  return __ldcv(a.counts_in(a.written_by(source), use, source) + column);
}
__device__ inline bool is_count(const QueuedDispatch& a, const Waiter& waiter, uint32_t source,
                                uint32_t count) {
  if (count <= a.g.sizes.max_tokens) return true;
  refuse_bytes(waiter, source);
  return false;
}

// A geometry whose words and terms are those of the inbox, for kernels that get it as their window.
inline EpGeometry inbox_geometry(const EpGeometry& g, const EpQueueLayout& l) {
  EpGeometry inbox = g;
  inbox.rows_ready = l.rows_ready;
  inbox.combine_ready = l.combine_ready;
  inbox.combine_in = l.terms;
  inbox.weights_in = l.weights;
  inbox.weights_marks = l.weights_marks;
  return inbox;
}

template <class Args>
Queued<Args> make_queued(const Args& args, const EpQueues& queues) {
  Queued<Args> a{args, make_ep_queue_layout(args.g), queues};
  a.g = inbox_geometry(args.g, a.l);
  a.memory.window = queues.inbox;
  return a;
}

}  // namespace mep::device

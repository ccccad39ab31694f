// Collectives on streams: what the host and the kernels agree on. Plain C++.
//
//   CollState   device memory, one per comm and rank: a graph captures its address. The leader of the operation that
//               runs writes it. The host writes all of it before the first operation; later only the timeout, and
//               while no operation runs the windows and what is registered.
//   CollPost    pinned host memory, one per comm and rank. One writer each half; every word is whole.
//   window      device memory that the peers write, laid out by CollLayout. Every byte has one writer.
//
// A rank pushes its contribution into its own place in every window and then its signal word; short ones carry
// their tags themselves (coll/packets.cuh). So a rank that is late, or out, only ever writes bytes that nobody reads any more. All ranks count steps alike:
// each operation takes some, a signal word is tag(epoch, step, call), rows of words alternate with the step's
// parity, and there are kCollSlots places of exchanges, used in turn. Every operation waits for every live rank,
// so whoever runs operation n + 1 to its end knows that all have ended n: that frees the places of n.
//
// Steps begin at 0 again in each epoch. Before its first step there the ranks meet: who writes its word into the
// begin row has ended all operations of the epoch before, so nobody reads their places any more.
//
// A word carries a fingerprint of the call, so ranks that call different things find out in the first step,
// all of them, since all wait for all. Such an operation fails with MEP_ERR_MISMATCH, and takes a number
// and one step; where lengths differ that they told in the first step, two. It counts as done: a rank that a decision
// ends before it has found out fails alike, so that the next calls of all ranks meet.
//
// Membership. `entered`, `done` and `parked` tell the control thread what the device has begun and
// ended; `word` is odd while the channel is frozen. The leader stores `entered` and then reads `word`,
// the control thread does it the other way round, so one of them sees the other. An operation that
// meets a freeze parks: it ends by the decision only. It succeeds if a member has completed it; then what
// a dead rank had sent there and not here is read in that member's window. Only a member that needed no decision for
// it says in its window that it is done: one that did has not got all in its own window. Blocks that are for one rank alone
// lie in no other window: operations of such take one more step, in which all say that they have theirs, so none
// is complete anywhere while a rank lacks a block. So do broadcasts and reduces in slices (coll/slices.cuh). A long reduce of two ranks does without: if one dies, nobody is left
// who could lack what the other one has.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/op_status.hpp"
#include "mep.h"
#include "protocol/operations.hpp"

namespace mep::device {

constexpr uint32_t kMaxCollRanks = 64;
constexpr uint32_t kMaxCollCtas = 64;
#ifdef MEP_MUTANT_TWO_SLOTS  // gpu_coll_test notices
constexpr uint32_t kCollSlots = 2;
#else
constexpr uint32_t kCollSlots = 3;  // of a source, used in turn: see coll/chunks.cuh
#endif
// Messages between two ranks, one way: see coll/messages.hpp.
constexpr uint32_t kMessageLanes = 32;
constexpr uint32_t kMessageSlots = 4;  // of a lane
constexpr uint32_t kMessageHeadBytes = 16;
constexpr uint32_t kMaxRegistered = 32;  // pieces of registered memory of a comm
constexpr uint32_t kCollDecisions = 16;
constexpr uint32_t kCollFailures = 16;

// How one epoch ended.
struct CollDecision {
  uint64_t old_epoch;
  uint64_t last_completed;  // operations up to here succeed
  uint64_t epoch;           // that follows; 0: none, the world has ended for this rank
  uint64_t next;            // number of its first operation
  uint64_t live;            // its ranks
  int32_t result;           // of operations beyond last_completed; told once
  uint32_t reserved;
};

struct CollPost {
  // The host's half.
  alignas(64) uint64_t word;  // counts freezes and what ended them; odd: frozen
  uint64_t installed;  // number of decisions so far; number g (from 1) is at g % kCollDecisions
  CollDecision decisions[kCollDecisions];
  // The device's half.
  alignas(64) uint64_t entered;  // number of the latest operation that has begun
  uint64_t done;  // ... that succeeded or found a mismatch, and touches memory of the comm no more
  uint64_t failed;    // ... that has ended without success
  uint64_t closed;    // ... and touches memory of the comm no more
  uint64_t parked;    // value of `word` for which the running operation waits
  uint64_t failures;  // count; number f (from 1) is at f % kCollFailures
  int32_t failed_results[kCollFailures];
  uint64_t late_epoch;  // an operation of this epoch passed its deadline; written last
  uint64_t late_seq;
  uint64_t late_missing;  // ranks that it waited for
};

// Where what lies in a window of `ranks` ranks.
struct CollLayout {
  uint32_t ranks;
  uint32_t ctas;                    // at most, per operation
  uint64_t slot_bytes;              // of one exchange, per rank
  uint64_t piece_bytes;             // of one two-shot step, per rank and CTA
  uint64_t packet_place_bytes;      // of one step, per rank; half of it is the message
  uint64_t sliced_broadcast_bytes;  // of so many a broadcast goes in slices, if ranks > 2
  uint64_t sliced_reduce_bytes;     // a reduce likewise
  // Blocks of so many bytes are read in registered memory, and broadcasts between two ranks from so many on.
  uint64_t pulled_from, pulled_to, pulled_alltoall_to;
  uint64_t pulled_broadcast_bytes;
  uint64_t message_chunk_bytes;  // of a slot of messages, behind the head

  // Before: the header. Word 0 is `done`, of successes alone; word 1 is mismatch_word().
  static constexpr uint64_t kWordsAt = 4096;
  static constexpr uint64_t kRowBytes = uint64_t{kMaxCollRanks} * 8;

#ifdef __CUDACC__
#define MEP_BOTH __host__ __device__
#else
#define MEP_BOTH
#endif
  // Rows of signal words, one word a source: exchanges by parity, the two halves of a two-shot, the begin of an
  // epoch. And one of offers, see coll/registered.cuh.
  MEP_BOTH uint64_t exchange_row(uint64_t parity, uint32_t cta) const {
    return kWordsAt + (parity * kMaxCollCtas + cta) * kRowBytes;
  }
  MEP_BOTH uint64_t scatter_row(uint32_t cta) const {
    return exchange_row(2, cta);
  }
  MEP_BOTH uint64_t result_row(uint32_t cta) const {
    return exchange_row(3, cta);
  }
  MEP_BOTH uint64_t begin_row(uint32_t cta) const {
    return exchange_row(4, cta);
  }
  MEP_BOTH uint64_t offer_row(uint32_t cta) const {
    return exchange_row(5, cta);
  }
  // Whether operations whose blocks are for one rank each end with confirm_blocks(). Those that read registered memory always
  // do. Else a rank of two that lacks a block, because the other has died, is alone.
  MEP_BOTH bool confirms_blocks() const {
    return ranks > 2;
  }
  MEP_BOTH uint64_t packets(uint64_t step, uint32_t source) const {
    return exchange_row(6, 0) + (step % kCollSlots * ranks + source) * packet_place_bytes;
  }
  MEP_BOTH uint64_t packets_end() const {
    return exchange_row(6, 0) + uint64_t{kCollSlots} * ranks * packet_place_bytes;
  }
  MEP_BOTH uint64_t slot(uint64_t step, uint32_t source) const {
    return packets_end() + (step % kCollSlots * ranks + source) * slot_bytes;
  }
  MEP_BOTH uint64_t slots_end() const {
    return packets_end() + uint64_t{kCollSlots} * ranks * slot_bytes;
  }
  MEP_BOTH uint64_t scatter_piece(uint32_t source, uint32_t cta) const {
    return slots_end() + (uint64_t{source} * ctas + cta) * piece_bytes;
  }
  MEP_BOTH uint64_t result_piece(uint32_t owner, uint32_t cta) const {
    return scatter_piece(ranks, 0) + (uint64_t{owner} * ctas + cta) * piece_bytes;
  }
  // A lane's word of `peer`: slots that it has taken of this rank's messages, or sent of its own.
  MEP_BOTH uint64_t message_word(bool taken, uint32_t peer, uint32_t lane) const {
    const uint64_t index = ((taken ? ranks : 0) + peer) * uint64_t{kMessageLanes} + lane;
    return result_piece(ranks, 0) + index * 8;
  }
  MEP_BOTH uint64_t message_slot(uint32_t source, uint32_t lane, uint64_t slot) const {
    const uint64_t index = (uint64_t{source} * kMessageLanes + lane) * kMessageSlots + slot;
    return message_word(true, ranks, 0) + index * (kMessageHeadBytes + message_chunk_bytes);
  }
  MEP_BOTH uint64_t window_bytes() const {
    return message_slot(ranks, 0, 0);
  }
#undef MEP_BOTH
};

// The leader's orders to the CTAs that wait; a code belongs to one operation.
enum LeaderOrder : uint32_t { kCollNone = 0, kCollGoOn = 1, kCollFail = 2 };

// No word of the host: a channel that goes on has an even one, a frozen one counts from 1.
constexpr uint64_t kUnseenWord = UINT64_MAX;

constexpr uint32_t kOfferShift = 40;  // of a piece's number in an offer, see coll/registered.cuh

// A piece of memory that each rank has registered, as mapped here; in the order of ranks.
struct CollRegistered {
  uint64_t
      number;  // the same on all ranks, of no other piece; 0: none. Modulo kMaxRegistered its place
  uint64_t bytes;
  const uint8_t* at[kMaxCollRanks];
};

struct CollState {
  // The comm, as of the last operation.
  uint64_t epoch;
  uint64_t seq;   // operations so far
  uint64_t step;  // of this epoch, steps so far
  uint64_t live;
  uint64_t seen_word;
  uint64_t seen_installed;
  int32_t pending_report;  // a view change that the next pending_calls operations tell
  int32_t ended;           // the world has ended for this rank: what all operations answer
  uint64_t pending_gone;   // ranks that it names
  uint64_t failures;
  // Constants.
  uint32_t rank;
  uint32_t test_delay_ns;  // tests: a delay of up to this before each phase of each CTA
  uint64_t timeout_ns;
  uint64_t settle_ns;  // beyond the timeout, until membership must have decided
  CollLayout layout;
  CollPost* post;                   // device address
  uint8_t* windows[kMaxCollRanks];  // of all ranks, as mapped here
  // Registered memory, kMaxRegistered pieces; the host writes both while no operation runs.
  const CollRegistered* registered;
  uint32_t offers;  // operations of pulled_bytes begin with offers: the same on all ranks
  // The running operation.
  uint32_t ticket;  // CTAs that are through
  uint32_t pending_calls;
  uint64_t decision;  // seq << 2 | LeaderOrder
  uint64_t decided_live;
  uint64_t donor;  // rank that has completed it
};

// Which kernels carry out a kind. The kernels know these kinds and no others.
enum class CollPath : uint32_t {
  kNone,          // none does: it must not be launched
  kExchange,      // what ranks give is put into the windows of all and copied out
  kReduce,        // ... and reduced; in slices, if it is long
  kBlocks,        // each block is put into the window of the rank that gets it, and copied out
  kReduceBlocks,  // ... and reduced
  kCounted,       // as kBlocks or kReduceBlocks, with a length for each block
};

constexpr CollPath coll_path(Collective kind) {
  switch (kind) {
    case Collective::k_barrier:
    case Collective::k_broadcast:
    case Collective::k_allgather:
      return CollPath::kExchange;
    case Collective::k_allreduce:
    case Collective::k_reduce:
      return CollPath::kReduce;
    case Collective::k_gather:
    case Collective::k_scatter:
    case Collective::k_alltoall:
      return CollPath::kBlocks;
    case Collective::k_reduce_scatter:
      return CollPath::kReduceBlocks;
    case Collective::k_allgatherv:
    case Collective::k_gatherv:
    case Collective::k_scatterv:
    case Collective::k_alltoallv:
    case Collective::k_reduce_scatterv:
      return CollPath::kCounted;
    default:
      return CollPath::kNone;
  }
}

// One launch, as a graph captures it.
struct CollCall {
  const void* send;
  void* receive;
  uint64_t bytes;  // of one block; with counts the longest, if all ranks know all of them, else 0
  mep_dtype_t dtype;
  mep_op_t op;
  Collective kind;
  uint32_t root;
  uint32_t fingerprint;  // launch_coll() sets this
  uint32_t is_rooted;    // and this: without the root in the view it is refused
  OpStatusPlace status;
};
constexpr uint32_t kFingerprintBits = 12;

// The blocks of a call with counts, in bytes of its buffers, by rank. A rank that gives another nothing, or gets nothing,
// has a length of 0 there.
struct CollBlock {
  uint64_t at, bytes;
};
struct CollBlocks {
  CollBlock given[kMaxCollRanks];
  CollBlock gotten[kMaxCollRanks];
};

}  // namespace mep::device

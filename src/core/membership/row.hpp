// The rows that members tell each other: one row per member, written by it alone, sent whole when it
// changes. A row is a value: it never changes after it was published. Everything in a row that
// names slots means the incarnations of the view with the row's epoch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/membership/channel_index.hpp"
#include "core/membership/slot_set.hpp"

namespace mep::membership {

struct Member {
  uint32_t slot = 0;
  uint64_t incarnation = 0;
  uint64_t host = 0;  // equal for processes that see each other's pidfd
  friend bool operator==(const Member&, const Member&) = default;
};

// The members that are in. The vectors are indexed by slot, 0 where there is no member.
struct View {
  uint64_t epoch = 0;
  SlotSet members;
  std::vector<uint64_t> incarnations;
  std::vector<uint64_t> hosts;

  uint64_t incarnation(uint32_t slot) const {
    return members.has(slot) && slot < incarnations.size() ? incarnations[slot] : 0;
  }
  uint64_t host(uint32_t slot) const {
    return members.has(slot) && slot < hosts.size() ? hosts[slot] : 0;
  }
  void put(const Member& member);
  void drop(uint32_t slot);
};

// One channel of one rank, read while frozen. Operations up to `done` have their result here: they have
// succeeded, or a call of this rank has met what an earlier change said of them. Operations up to
// `entered` were called. No data exists of what lies between N* and next of an earlier change: a catch-up
// that names it brings nothing.
struct ChannelState {
  uint64_t comm = 0;
  uint64_t channel = 0;
  uint64_t done = 0;
  uint64_t entered = 0;
  friend bool operator==(const ChannelState&, const ChannelState&) = default;
};

struct CommState {
  uint64_t comm = 0;
  uint64_t epoch = 0;
  friend bool operator==(const CommState&, const CommState&) = default;
};

// A view change's decision on one channel.
struct ChannelDecision {
  uint64_t comm = 0;
  uint64_t channel = 0;
  uint64_t last_completed = 0;  // operations up to here succeed on every survivor
  uint64_t next = 0;            // the first seq of the new epoch, last_completed + 2 at least
  uint64_t called = 0;          // the last that a member had called
  uint32_t donor =
      kNoSlot;  // a member that was at last_completed when the value was first proposed
  SlotSet
      late;  // of a channel that is settled: slots that had not called operation last_completed + 1
  friend bool operator==(const ChannelDecision&, const ChannelDecision&) = default;
};

// One channel on which a rank is behind: it gets the replicated operations from_seq..to_seq from
// `donor`. Personal operations and channels without N* are skipped by whoever carries this out.
struct CatchUpItem {
  uint64_t comm = 0;
  uint64_t channel = 0;
  uint64_t from_seq = 0;
  uint64_t to_seq = 0;
  uint32_t donor = kNoSlot;
  friend auto operator<=>(const CatchUpItem&, const CatchUpItem&) = default;
};

// A deadline that ran out: the channel is settled by a view change.
struct Settlement {
  uint64_t comm = 0;
  uint64_t channel = 0;
  uint64_t comm_epoch = 0;
  friend auto operator<=>(const Settlement&, const Settlement&) = default;
};

// The reason that a member gave when it gave up.
constexpr size_t kMaxReasonBytes = 200;
struct Statement {
  uint32_t slot = 0;
  std::string text;
  friend bool operator==(const Statement&, const Statement&) = default;
};

enum class RemovalReason : uint8_t {
  kDied = 1,         // confirmed through its pidfd, or by a member on its host
  kLeft = 2,         // its own statement
  kGaveUp = 3,       // its own statement: no quorum, no memory, or aborted
  kUnreachable = 4,  // heartbeats, not confirmed
  kEvicted = 5,      // asked for by a member
  kStalled = 6,      // lives, but did not answer a view change
  kCutOff = 7,       // connections alone, not confirmed
};

struct Removal {
  uint32_t slot = 0;
  uint64_t incarnation = 0;
  RemovalReason reason = RemovalReason::kUnreachable;
  std::string text =
      {};  // of a member that gave up, for people: what it said; at most kMaxReasonBytes
  friend bool operator==(const Removal&, const Removal&) = default;
};

// Ballots of one epoch. Within a round suspicions only grow, so the number of suspected slots
// orders the proposals of a round; a new round drops suspicions that left no quorum.
struct Ballot {
  uint32_t round = 0;
  uint32_t suspected = 0;
  friend auto operator<=>(const Ballot&, const Ballot&) = default;
};

// The value that members agree on: the next view and what it settles. Named by (epoch, origin,
// proposer): a lead makes at most one value per ballot.
struct Proposal {
  uint64_t epoch = 0;  // of the new view
  Ballot origin;
  uint32_t proposer = kNoSlot;
  SlotSet members;
  std::vector<Member> added;
  std::vector<Removal> removed;
  std::vector<CommState> comms;  // epochs before this change
  std::vector<ChannelDecision> channels;
  std::vector<Settlement> settled;
  std::vector<uint64_t> revoked;  // comms
  uint64_t recover_seq = 0;       // the recover or grow call that this change answers, 0: none

  bool same_value(const Proposal& other) const {
    return epoch == other.epoch && origin == other.origin && proposer == other.proposer;
  }
  // Null: it says nothing of that channel. By one thread, and only once `channels` has all its entries.
  const ChannelDecision* decision(uint64_t comm, uint64_t channel) const {
    if (index == nullptr) index = std::make_shared<const ChannelIndex>(channels);
    return index->find(channels, comm, channel);
  }
  mutable std::shared_ptr<const ChannelIndex> index;  // of `channels`, made when it is first needed
};
using ProposalPtr = std::shared_ptr<const Proposal>;

struct BallotProposal {
  Ballot ballot;
  uint32_t leader = kNoSlot;
  ProposalPtr value;
};

enum class Standing : uint8_t {
  kJoining = 0,  // not yet in a view; epoch is that of the view it would join
  kMember = 1,
  kLeft = 2,    // its last row: it does nothing more
  kGaveUp = 3,  // the same, for want of a quorum or memory, or aborted
};

struct Row {
  uint32_t slot = 0;
  uint64_t incarnation = 0;
  uint64_t version = 0;  // rises with every published row of this incarnation
  uint64_t epoch = 0;    // of the view that this member is in
  Standing standing = Standing::kMember;

  // Evidence of this member, first hand.
  SlotSet dead;                    // exits seen through a pidfd
  SlotSet left;                    // last rows seen, kLeft
  SlotSet gave_up;                 // last rows seen, kGaveUp
  std::vector<Statement> reasons;  // of some of those, and in its last row its own; each slot once
  SlotSet link_down;               // broken connections, transport errors
  SlotSet silent;                  // no heartbeat for accuse_after_us
  SlotSet evict;                   // asked to be evicted

  // The view change.
  uint32_t round = 0;
  SlotSet suspected;    // only grows within (epoch, round)
  bool frozen = false;  // comms and channels below are frozen
  std::vector<CommState> comms;
  std::vector<ChannelState> channels;
  std::vector<Settlement> settle;
  std::vector<uint64_t> revoke;
  BallotProposal offer;               // value empty: none
  BallotProposal accepted;            // value empty: none
  std::vector<CatchUpItem> catch_up;  // asked of donors for offer.value of the lead
  ProposalPtr committed;  // the value of the view that this member is in; empty in the first view

  // Join and grow.
  uint64_t recover_seq = 0;      // call entered and not answered, 0: none
  bool recover_expired = false;  // its deadline has passed: take whoever is ready
  SlotSet recover_wanted;        // slots to fill, less those whose joiner has ended meanwhile
  std::vector<Member> ready;     // joiners whose links this rank has tested
};
using RowPtr = std::shared_ptr<const Row>;

// Versioned little-endian form. Deterministic: equal rows give equal bytes.
std::vector<uint8_t> encode_row(const Row& row);
// Safe on any bytes: everything is bounded by `max_slots` and the length, so that a row has no bound but
// that of the message that brings it. Returns nullptr and says
// why in `error` (may be nullptr) if the bytes are not exactly one row.
RowPtr decode_row(std::span<const uint8_t> bytes, uint32_t max_slots, std::string* error);

// A view, for a joiner's start (see Membership::on_view_snapshot).
std::vector<uint8_t> encode_view(const View& view);
bool decode_view(std::span<const uint8_t> bytes, uint32_t max_slots, View* view,
                 std::string* error);

}  // namespace mep::membership

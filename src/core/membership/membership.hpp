// Decides once for all which members are in: the pure state machine of one member. Events in, actions out; no
// clock, socket, thread, environment or global inside, time only as the argument of tick(). Two
// objects fed the same events give the same actions. The control thread of a process owns one
// object per world; the simulator drives many.
//
// Invariants
//  1. Two live members never install different views of one epoch.
//  2. Suspicion only grows within (epoch, round). A row of a suspected member is not used: nothing
//     of it is learned, installed or adopted.
//  3. A lead (lowest unsuspected slot) offers only when all unsuspected members are frozen, in its
//     round, with its very suspicions, and are a quorum of the old view; it takes over the accepted
//     value of the highest ballot among their rows, else makes a new one, once per ballot.
//  4. A member accepts only from its lead, at its own (round, suspicions), and only after it holds
//     every replicated result up to N*, all excluded are fenced out, and it has prepared.
//  5. A value is committed when a quorum accepted one ballot of it and every member of it that is
//     not suspected since is among them. The base of the quorum is the old view and never shrinks.
//  6. N* is the maximum of done over the frozen tables; a donor is a member that was at N* or has
//     accepted the value. Only when no unsuspected member of the channel's comm holds the results
//     of a value that is taken over, N* of that channel falls back to what they hold.
//  7. "Confirmed" is an exit seen through a pidfd, here or by a member on the victim's host, or the
//     last row of the victim itself. Nothing else ever confirms; only rule "all that are not
//     confirmed dead" and the fence make a difference.
//  8. An event that names an incarnation other than the slot's present one changes nothing.
//  9. In a view of more than Config::rows_to_all_up_to members the leads collect all rows: the lowest members that are
//     neither suspected nor accused, by each member's own evidence. Leads push their rows to all, others to the leads. Only
//     leads judge links, offer and commit; a member follows what it reads in their rows. An accusation that is withdrawn is
//     withdrawn from everybody who was told it.
// 10. A joiner takes part only in the acceptance of a value that brings it in; when it dies or is
//     silent, it is suspected and waited for no more. If it dies before there is such a value, the
//     recover call that waited for it is answered without it.
// 11. Joiners that enter together have each said in their rows that they are linked to every other. If two are not, the
//     higher slot waits for a later recover call.
//
// Use: call events, then take_actions() and carry the actions out in order; replies come as later
// events. Not reentrant; one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "core/membership/config.hpp"
#include "core/membership/row.hpp"
#include "core/membership/slot_set.hpp"

namespace mep::membership {

// ---- Actions -----------------------------------------------------------------------------------

// Send this row to each of these slots: to the newest connection of the slot (members, joiners,
// and removed members so that they learn it); a broken link swallows it. Links keep the order and
// lose nothing until they break. `row` is a snapshot.
struct PushRow {
  RowPtr row;
  SlotSet to;
};

// Send the cheap liveness message to each slot: it carries this rank's (slot, incarnation) only and
// arrives as on_heartbeat(). Given every heartbeat_interval_us.
struct SendHeartbeat {
  SlotSet to;
};

// Freeze every channel of every comm of this process (set the freeze bit), stop posting, then reply
// on_frozen(epoch, table). Nothing may complete from then on until InstallView.
struct Freeze {
  uint64_t epoch = 0;  // of the present view
};

// Reply on_caught_up(plan) when all of them are here. A plan with a higher number replaces the
// earlier one (the donor died), but what has arrived for any plan of this epoch is kept until
// InstallView: this rank counts as a donor of it. Operations are the same for the same (epoch,
// comm, channel, seq), so data of either donor will do.
struct CatchUpReceive {
  uint64_t plan = 0;
  std::vector<CatchUpItem> items;
};
// The donor's side: give `to` the operations from_seq..to_seq of the channel, which its row asked
// for. No reply. With pull transports nothing is to be done but to keep the contributions.
struct CatchUpSend {
  uint32_t to = kNoSlot;
  uint64_t comm = 0;
  uint64_t channel = 0;
  uint64_t from_seq = 0;
  uint64_t to_seq = 0;
};

// Make sure that no byte of that incarnation can land in memory that a later epoch uses, then reply
// on_fenced(slot, incarnation). `confirmed`: its process is known to be gone. Given once per
// (slot, incarnation), and once more with `confirmed` set if that becomes known before the reply;
// one reply is enough. Leave its control connection open until the InstallView without it.
// `excluded`: the others leave it out. It did not ask to go, and may live.
struct FenceOut {
  uint32_t slot = kNoSlot;
  uint64_t incarnation = 0;
  bool confirmed = false;
  bool excluded = false;
};

// All excluded are fenced out and the catch-up is here: make ready for `value` (zero the signals of
// affected comms), then reply on_prepared(token). Nobody posts in the new epoch before InstallView.
struct Prepare {
  uint64_t token = 0;
  ProposalPtr value;
};

// Give this view to each of these joiners; arrives as on_view_snapshot().
struct SendView {
  std::shared_ptr<const View> view;
  SlotSet to;
};

// Why a comm's epoch advances; bits.
enum AffectedBy : uint32_t {
  kAffectedByMembers = 1,  // one of its slots was removed, added or replaced
  kAffectedByDeadline = 2,
  kAffectedByRevoke = 4,
};
struct AffectedComm {
  uint64_t comm = 0;
  uint64_t new_epoch = 0;
  uint32_t why = 0;  // AffectedBy bits
};

// The view has changed. Operations up to last_completed of `decision->channels` succeed (caught-up results
// count now), also those that a rank calls only later. On an affected comm, seqs from last_completed + 1 to
// next - 1 end by why: the pending ones, and a rank that calls later meets the same; its channels go on
// at `next` in the new comm epoch. A rank whose calls have gone k beyond last_completed (k < next - last_completed)
// reports done = last_completed + k from there on, so a change that follows before anybody has called shares
// the calls of this one. Comms that are not in `affected` are unfrozen as they were, same epoch.
// Afterwards connections to removed members may be closed (after a PushRow to them in this drain).
struct InstallView {
  std::shared_ptr<const View> view;
  ProposalPtr decision;
  std::vector<AffectedComm> affected;
  bool joined = false;  // this rank was a joiner and is in from here on
  // The recover call that this view answers, 0: none. Given to all: who calls with this seq only
  // later gets the same answer (its deadline had passed on another member), and a joiner's own
  // count of these calls starts after it.
  uint64_t recover_answered = 0;
};

// The rest of the world went on without this rank. Final.
struct SelfEvicted {
  uint64_t epoch = 0;  // the view without it, 0: not known
};
// No quorum can be found. Final; the last row says that this rank gave up.
struct NoQuorum {};
// The joiner could not come in (its slot was filled, or every member is gone). Final; start anew.
struct JoinFailed {};

enum class PeerHealth : uint8_t {
  kHealthy = 0,
  kSlow = 1,       // silent for slow_after_us
  kAccused = 2,    // silent for accuse_after_us or its connection broke, not yet suspected
  kSuspected = 3,  // being removed
  kDead = 4,       // confirmed
};
// For mep_comm_peer_state and logs; only on change.
struct PeerReport {
  uint32_t slot = kNoSlot;
  uint64_t incarnation = 0;
  PeerHealth health = PeerHealth::kHealthy;
};

// Policy kWitness, exactly half is left: ask the witness to store (epoch, digest) unless it holds
// something for that epoch, then reply on_witness(epoch, what it holds).
struct AskWitness {
  uint64_t epoch = 0;
  uint64_t digest = 0;
};

using Action =
    std::variant<PushRow, SendHeartbeat, SendView, Freeze, CatchUpReceive, CatchUpSend, FenceOut,
                 Prepare, InstallView, SelfEvicted, NoQuorum, JoinFailed, PeerReport, AskWitness>;

enum class Phase : uint8_t {
  kJoining = 0,
  kStable = 1,    // no view change under way
  kFreezing = 2,  // Freeze given, not answered
  kChanging = 3,  // frozen; proposing, catching up, fencing or waiting for the commit
  kLeft = 4,
  kEvicted = 5,
  kNoQuorum = 6,
};

// ---- The state machine -------------------------------------------------------------------------

struct Start {
  uint32_t slot = 0;
  uint64_t incarnation = 0;
  uint32_t max_slots = 0;  // max_size of the world
  uint64_t now_us = 0;
  // For a member: the first view, with itself in it, the same on all. For a joiner: a view that a member sent it
  // (decode_view), without itself.
  View view;
  // Ranks that are threads of this process.
  SlotSet siblings;
  bool joining = false;
  Config config;
  Mutations mutations;  // tests only
};

class Membership {
 public:
  explicit Membership(Start start);

  // -- time: at least once per heartbeat interval and soon after every batch of events; now_us
  // never goes back.
  void tick(uint64_t now_us);

  // -- evidence
  // A row of a peer, decoded, from an authenticated connection of (row->slot, row->incarnation).
  // The caller must have checked these two against the connection. Counts as a heartbeat.
  void on_row(RowPtr row);
  void on_heartbeat(uint32_t slot, uint64_t incarnation);
  // The pidfd of that process became readable. Confirms.
  void on_process_exit(uint32_t slot, uint64_t incarnation);
  // A control connection closed, or a transport reported an error. Suspicion only.
  void on_connection_lost(uint32_t slot, uint64_t incarnation);
  // A connection to a member was made (again): clears what its loss had said, if it is not yet
  // suspected, and sends it the row.
  void on_connection_up(uint32_t slot, uint64_t incarnation);

  // -- what users ask for
  // An operation's deadline passed on a channel of this rank: settle it by a view change. Dropped
  // if the comm's epoch has advanced meanwhile.
  void on_deadline(uint64_t comm, uint64_t channel, uint64_t comm_epoch);
  void on_revoke(uint64_t comm);
  void on_evict(uint32_t slot, uint64_t incarnation);
  // This rank leaves (mep_comm_destroy, after all hold what they need from it). The PushRow that
  // follows is the LEFT statement; then this object gives no more actions.
  void on_leave();
  // This rank ends its part at once (mep_comm_abort): the PushRow that follows says that it gave
  // up, so the others see it fail. No more actions.
  // `reason`: what the others' errors say of it, at most kMaxReasonBytes; may be empty.
  void on_abort(const std::string& reason);
  // An event could not be taken in whole, for want of memory. The PushRow that follows is this rank's
  // last one once more, with the statement that it gave up: what is half done is not told. No more
  // actions; what had been given and not taken is dropped.
  void on_exhausted();
  // Comms of this process. `members` holds every slot that the comm may have (all slots below
  // max_slots for the world), so that a replacement or a grown slot affects it.
  void on_comm_created(uint64_t comm, uint64_t comm_epoch, const SlotSet& members);
  void on_comm_destroyed(uint64_t comm);

  // -- join, replacement, grow
  // A joiner for an empty slot has connected here and its links to this rank are tested / it is
  // gone again. Members may hear of it in any order; another joiner hears of it too.
  void on_joiner_ready(const Member& joiner);
  void on_joiner_gone(uint32_t slot, uint64_t incarnation, bool confirmed);
  // A joiner for that slot had connected here and has ended, and no other is here in its place:
  // the recover call under way waits for the slot no more.
  void on_joiner_lost(uint32_t slot);
  // This rank called recover or grow, its `seq`-th such call (from 1, the same on all members).
  // Answered by an InstallView with recover_answered = seq: when all have called and every wanted
  // slot has a joiner ready everywhere or has lost the one that it had, or when a caller's deadline passed (then perhaps with
  // fewer, or none, of them).
  void on_recover(uint64_t seq, const SlotSet& wanted, uint64_t deadline_us);
  // Joiner only: a later view than the one it started with, from a member.
  void on_view_snapshot(const View& view);
  // Joiner only: a lower slot whose joiner all members name ready, and this rank has not met, so that no recover call
  // lets in both; kNoSlot: none.
  uint32_t unlinked_joiner() const;

  // -- replies to actions
  void on_frozen(uint64_t epoch, std::vector<ChannelState> channels);
  void on_caught_up(uint64_t plan);
  void on_fenced(uint32_t slot, uint64_t incarnation);
  void on_prepared(uint64_t token);
  void on_witness(uint64_t epoch, uint64_t digest);

  // Everything that follows from the events so far. Deterministic order.
  std::vector<Action> take_actions();

  // -- what holds now
  Phase phase() const { return phase_; }
  const View& view() const { return *view_; }
  std::shared_ptr<const View> view_ptr() const { return view_; }
  uint64_t comm_epoch(uint64_t comm) const;  // 0: not a comm of this rank
  PeerHealth health(uint32_t slot) const;
  bool confirmed_dead(uint32_t slot) const { return confirmed_.has(slot); }
  // It said so itself: it left, or gave up.
  bool stated_its_end(uint32_t slot) const {
    const RemovalReason reason = peers_[slot].reason;
    return confirmed_.has(slot) &&
           (reason == RemovalReason::kLeft || reason == RemovalReason::kGaveUp);
  }
  const Row& row() const { return row_; }
  // The latest take_actions() would change nothing until this time, if no event comes.
  uint64_t next_tick_us() const;

 private:
  struct Peer {
    uint64_t incarnation = 0;
    uint64_t heard_us = 0;         // moved on by what this rank slept itself
    uint64_t really_heard_us = 0;  // not moved
    RowPtr row;
    PeerHealth reported = PeerHealth::kHealthy;
    RemovalReason reason = RemovalReason::kUnreachable;  // of its suspicion, if it has one
    bool is_sibling = false;  // it lives as long as this process, so its silence says nothing
    bool fence_asked = false;
    bool fence_confirmed = false;
    bool fenced = false;
  };
  struct Comm {
    uint64_t epoch = 0;
    SlotSet members;
  };
  struct Joiner {
    Member member;
    uint64_t heard_us = 0;
    RowPtr row;
    bool ready = false;      // its links to this rank are tested
    bool gone = false;       // its connection broke
    bool confirmed = false;  // its process is gone
  };
  struct Accusation {
    uint64_t since_us = 0;
    uint64_t alone_since_us = 0;  // since when nobody else accuses the same member
  };
  // This rank's row as others have it.
  struct Published {
    RowPtr row;          // the last one that was pushed; null: none
    SlotSet accused_to;  // members that have one with an accusation
    SlotSet dead;        // deaths in a row of this epoch that went to all
    bool donor = false;  // it goes to all, since the value under way names this rank
  };
  enum class Quorum : uint8_t { kNo, kMajority, kWitness, kAllAlive };

  // evidence.cpp
  void note_heard(uint32_t slot, uint64_t incarnation);
  void update_silence();
  void forgive_gap(uint64_t gap_us);
  void confirm(uint32_t slot, RemovalReason reason);
  bool suspect(uint32_t slot, RemovalReason reason);
  void gather_evidence();
  void learn_from(const Row& row);
  void read_statements(const Row& row);
  void suspect_lost_joiners();
  void tell_left_behind(uint32_t slot);
  bool same_incarnation(uint32_t slot, uint64_t incarnation) const;
  Joiner* joiner(uint32_t slot, uint64_t incarnation);
  // The latest row of a member of this view while it is in this view too; nullptr if none.
  const Row* present_row(uint32_t slot) const;
  // The same, of an unsuspected member (this rank's own row for its slot).
  const Row* usable_row(uint32_t slot) const;
  const Row* joiner_row(uint32_t slot, uint64_t incarnation) const;
  SlotSet live() const { return view_->members - row_.suspected; }

  // readers.cpp
  SlotSet audience() const;
  SlotSet leads() const;
  bool rows_go_to_all() const { return view_->members.count() <= config_.rows_to_all_up_to; }
  bool collects_rows() const { return rows_go_to_all() || leads().has(slot_); }
  bool tells_all() const;
  bool speaks_for_host() const;
  SlotSet readers() const;
  void watch_donors();
  void publish(const SlotSet& also);

  // links.cpp
  using Edges = std::map<uint32_t, SlotSet>;
  void judge_links();
  bool note_accusations(const SlotSet& live);
  Edges counted_edges(const SlotSet& live) const;
  SlotSet best_component(const Edges& edges, const SlotSet& live) const;
  static SlotSet without_conflicts(const Edges& edges, SlotSet component, bool* by_count);
  static bool is_accused_by_all(const Edges& edges, const SlotSet& accused,
                                const SlotSet& accusers);
  bool accusations_settled() const;
  void report_health();

  // propose.cpp
  Quorum quorum(const SlotSet& set) const;
  bool change_wanted() const;
  Ballot ballot() const { return {row_.round, row_.suspected.count()}; }
  bool everyone_agrees(const SlotSet& live) const;
  bool joiners_read() const;
  bool joiners_settled(const BallotProposal& offer) const;
  void try_offer();
  ProposalPtr highest_accepted(const SlotSet& live) const;
  ProposalPtr new_value(const SlotSet& live) const;
  ProposalPtr attainable(const ProposalPtr& value, const SlotSet& live) const;
  void collect_tables(const SlotSet& live, Proposal* value) const;
  void name_late(const SlotSet& live, Proposal* value) const;
  std::string removal_text(uint32_t slot, const SlotSet& live) const;
  RemovalReason removal_reason(uint32_t slot, const SlotSet& live) const;
  void try_accept();
  void try_commit();
  bool witness_agrees(const Proposal& value);

  // catch_up.cpp
  bool ready_to_accept(const ProposalPtr& value);
  bool catch_up_done(const ProposalPtr& value);
  bool fences_done(const Proposal& value);
  static bool is_excluded(const Proposal& value, uint32_t slot);
  bool prepare_done(const ProposalPtr& value);
  void serve_catch_up();
  // The operations that members hold in the epoch before `epoch`, while their rows stay as they are.
  class HeldTables {
   public:
    explicit HeldTables(uint64_t epoch) : epoch_(epoch) {}
    std::optional<uint64_t> up_to(const Row& row, uint64_t comm, uint64_t channel);

   private:
    const uint64_t epoch_;
    std::map<const Row*, ChannelIndex> indices_;
  };
  uint32_t donor_for(const ChannelDecision& decision, HeldTables* tables) const;

  // progress.cpp
  void step();
  void new_round(uint32_t round);
  void watch_quorum();
  void watch_progress();
  uint64_t progress_mark() const;
  void suspect_stalled_joiners();
  void suspect_stalled(const SlotSet& live);
  void give_up();

  // install.cpp
  void look_for_committed();
  bool follow(const Row& sender_row, bool sender_trusted);
  void install(const ProposalPtr& value);
  std::shared_ptr<const View> next_view(const Proposal& value) const;
  std::vector<AffectedComm> affected_comms(const Proposal& value, const SlotSet& changed);
  void start_epoch(const std::shared_ptr<const View>& view, const ProposalPtr& value);
  void take_in(uint32_t slot);
  void forget_change();
  void be_evicted(uint64_t epoch);
  void end_with_value(const ProposalPtr& value);

  // join.cpp
  bool are_linked(const Member& joiner, const Member& other) const;
  std::vector<Member> named_joiners(const SlotSet& live) const;
  std::vector<Member> agreed_joiners(const SlotSet& live) const;
  uint64_t recover_due(const SlotSet& live, bool* complete) const;
  void refresh_ready();
  void watch_join();

  void give(Action action) { actions_.push_back(std::move(action)); }
  void touch() {
    row_dirty_ = true;
    step_due_ = true;
  }
  bool active() const { return phase_ <= Phase::kChanging; }

  Config config_;
  Mutations mutations_;
  uint32_t max_slots_ = 0;
  uint32_t slot_ = 0;
  uint64_t incarnation_ = 0;
  uint64_t now_us_ = 0;

  Phase phase_ = Phase::kStable;
  std::shared_ptr<const View> view_;
  Row row_;  // what the next PushRow carries
  Published published_;
  bool row_dirty_ = true;
  bool step_due_ = true;
  bool health_due_ = true;
  bool again_ = false;       // this step has changed what an earlier part of it looked at
  std::vector<Peer> peers_;  // by slot
  SlotSet confirmed_;        // members of the view that are known to be gone
  SlotSet new_rows_;         // members whose rows came since the last step
  std::map<uint64_t, Comm> comms_;
  std::map<uint32_t, Joiner> joiners_;   // by slot
  std::vector<Member> offered_joiners_;  // ready in a row of this epoch with a recover call
  std::map<std::pair<uint32_t, uint32_t>, Accusation> accusations_;  // (by, of)
  uint64_t accused_us_ = 0;                                          // when the latest of them came

  // local health
  uint64_t ticked_us_ = 0;
  uint64_t heartbeat_us_ = 0;
  uint32_t health_steps_ = 0;
  uint32_t healthy_ticks_ = 0;

  // the view change
  ProposalPtr catch_up_value_;  // what the catch-up below is for
  uint64_t catch_up_plan_ = 0;
  bool catch_up_complete_ = false;
  std::vector<CatchUpItem> catch_up_items_;
  std::set<std::pair<uint32_t, CatchUpItem>> served_;
  uint64_t prepare_token_ = 0;
  ProposalPtr prepare_value_;
  bool prepared_ = false;
  uint64_t witness_asked_ = 0;  // digest
  uint64_t witness_digest_ = 0;
  uint64_t no_quorum_since_us_ = 0;  // 0: there is one
  uint64_t stuck_since_us_ = 0;      // 0: not stuck
  uint64_t progress_us_ = 0;
  uint64_t progress_mark_ = 0;
  uint64_t stall_acted_us_ = 0;

  uint64_t recover_deadline_us_ = 0;

  std::vector<Action> actions_;
};

}  // namespace mep::membership

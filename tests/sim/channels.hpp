// A model of what runs over the membership: the channels of one process, as their contract says.
// Operations are replicated; contributions name (slot, incarnation, seq, comm epoch) and the step of
// the caller's program, which no part of the protocol looks at. It knows nothing of how members agree,
// and shares no code with core/comm.
//
// The contract: each call consumes a seq unless it is refused. A change that affects a comm fixes, the
// same on all, N* and `next`. Calls up to N* succeed, whenever they are made; calls from N* + 1 to
// next - 1 report the change, whenever they are made; `next` is the first of the new epoch. A change
// whose N* is that of an earlier one is reported by the same calls; a later N* cuts earlier ranges.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/membership/membership.hpp"

namespace mep::sim {

// Faults that are made on purpose in the processes around the state machine.
struct Wrong {
  bool complete_after_freeze = false;
  bool one_decision_only = false;   // a second change overwrites the first
  bool late_is_not_told = false;    // who calls only after a change goes on at next
  bool earlier_is_not_cut = false;  // what an earlier change said stands beyond a later N*
  bool refused_consumes = false;    // a call refused for its arguments takes a seq
  bool closes_at_once = false;      // a closed comm is in no table any more
  bool held_unseen = false;         // "I hold it" is answered without a look
  bool nothing_is_fixed = false;    // what a closer was told binds nobody
  bool born_in_change = false;      // a comm made during a change takes part at once
  bool born_too_late = false;       // ... or is made although a member is gone since the split
  bool born_unaware = false;        // ... or is made although it was settled before
};

struct Share {
  uint64_t incarnation = 0;
  uint64_t step = 0;  // 0: a joiner that does not know yet
  uint32_t what = 0;  // the operation that it called
  bool root = false;  // that operation needs no other share
  friend bool operator==(const Share&, const Share&) = default;
};
using Contributors = std::map<uint32_t, Share>;  // by slot

enum class Kind : uint8_t {
  kAll = 0,   // done when all members' contributions are here (allreduce)
  kRoot = 1,  // done when the contribution of the lowest living slot is here (broadcast)
};

struct ChannelName {
  uint64_t comm = 0;
  uint64_t channel = 0;
  friend auto operator<=>(const ChannelName&, const ChannelName&) = default;
};

// One call of the program.
struct Call {
  Kind kind = Kind::kAll;
  uint64_t step = 0;
  uint32_t what = 0;
};

struct Contribution {
  ChannelName name;
  uint64_t seq = 0;
  uint64_t comm_epoch = 0;
  uint32_t slot = 0;
  Share share;
};

enum class Answer : uint8_t { kSuccess, kMismatch, kChanged };

// The answer that a caller was given.
struct Told {
  Answer answer = Answer::kSuccess;
  uint64_t step = 0;
  Contributors contributors;   // of a success
  std::set<uint64_t> changes;  // that it reports, by the epoch of the view
};

// A change, as a channel keeps it until no call can meet it any more.
struct Decision {
  uint64_t last_completed = 0;
  uint64_t last = 0;           // calls in (last_completed, last] report it
  std::set<uint64_t> changes;  // none: members were added, no call meets it
};

struct Settled {
  Contributors contributors;
  bool mismatch = false;
};

struct Channel {
  uint64_t called = 0;
  uint64_t done = 0;
  uint64_t next = 1;   // first seq of the comm's epoch
  uint64_t first = 1;  // of this rank
  uint64_t fixed = 0;  // another that closes the comm was told of calls up to here
  uint64_t step = 0;   // of the last call
  bool knows_step = true;
  std::map<uint64_t, Call> pending;
  std::map<std::pair<uint64_t, uint64_t>, Contributors> arrived;  // (seq, comm epoch)
  std::map<uint64_t, Settled> results;                            // of operations that are done
  std::map<uint64_t, Settled> provisional;                        // caught up, not yet in a view
  std::vector<Decision> decisions;                                // oldest first
  std::map<uint64_t, Told> told;                                  // by seq

  uint64_t base() const { return done < next - 1 ? next - 1 : done; }
  // Up to where calls have, or will have, a result that no later change may alter.
  uint64_t reported() const;
};

struct CatchUpData {
  ChannelName name;
  std::map<uint64_t, Settled> results;
};

struct Comm {
  uint64_t epoch = 1;
  membership::SlotSet members;
  std::map<uint32_t, uint64_t> incarnations;  // whose comm it is; empty: who fills a slot is in
  bool free = false;                          // wrongly: the change under way does not freeze it
  bool moved = false;  // a call was told of since it was made or since the last change of it
};

class ChannelTable {
 public:
  ChannelTable(uint32_t slot, uint64_t incarnation, const Wrong& wrong)
      : slot_(slot), incarnation_(incarnation), wrong_(wrong) {}

  void create(uint64_t comm, const Comm& state, uint32_t channels, const membership::View& view);
  void close(uint64_t comm);
  // Whether the comm was settled or revoked before it was made here.
  bool settled_before(uint64_t comm) const { return settled_unknown_.contains(comm); }
  // Nobody could complete anything of a comm that was never made here.
  void note_stillborn(uint64_t comm);

  // False if the call has to wait. `send`: what to send out, its slot kNoSlot if there is nothing.
  bool call(const ChannelName& name, Call call, const membership::View& view, Contribution* send);
  void refuse(const ChannelName& name);
  void arrive(const Contribution& contribution, const membership::View& view);
  // Whether this rank needs nothing more for calls up to `seq`, which have been told of elsewhere. True
  // is a promise: the next change finds at least that done here.
  bool holds(const ChannelName& name, uint64_t seq, const membership::View& view);

  std::vector<membership::ChannelState> freeze(const membership::View& view);
  // True if all of the plan is here already, from the donor of an earlier one.
  bool plan(const membership::CatchUpReceive& plan);
  // True if the latest plan is complete now.
  bool take_catch_up(const CatchUpData& data);
  CatchUpData give_catch_up(const membership::CatchUpSend& order) const;
  void install(const membership::InstallView& install);
  bool frozen() const { return frozen_; }
  uint64_t plan_number() const { return plan_; }

  // Contributions that are needed for an operation in this view.
  membership::SlotSet needed(uint64_t comm, Kind kind, const membership::View& view) const;
  const std::map<ChannelName, Channel>& channels() const { return channels_; }
  Channel& channel(const ChannelName& name) { return channels_.at(name); }
  const std::map<uint64_t, Comm>& comms() const { return comms_; }
  // The answers on comms that are closed.
  const std::map<ChannelName, std::map<uint64_t, Told>>& closed() const { return closed_; }
  // Calls that were told since the last look.
  std::vector<std::pair<ChannelName, uint64_t>> take_fresh();
  // Says what was found wrong; empty if nothing.
  const std::string& fault() const { return fault_; }
  // A view decided less than this rank had: right only if the others went on without it.
  bool rolled_back() const { return rolled_back_; }

 private:
  void fault(const std::string& what) {
    if (fault_.empty()) fault_ = what;
  }
  void try_complete(const ChannelName& name, Channel* channel, const membership::View& view);
  bool complete(const ChannelName& name, const Channel& channel, uint64_t seq, Kind kind,
                const Call* own, const membership::View& view, Settled* outcome) const;
  uint64_t reach(const ChannelName& name, const Channel& channel, const membership::View& view,
                 std::map<uint64_t, Settled>* results) const;
  bool plan_complete() const;
  void settle(const membership::ChannelDecision& decision, const ChannelName& name, bool affected,
              const std::set<uint64_t>& changes);
  void add_decision(Channel* channel, Decision decision) const;
  static const Decision* meets(const Channel& channel, uint64_t seq);
  void tell(const ChannelName& name, Channel* channel, uint64_t seq, Told told);
  void tell_result(const ChannelName& name, Channel* channel, uint64_t seq, const Call& call,
                   const Settled& outcome);

  uint32_t slot_;
  uint64_t incarnation_;
  Wrong wrong_;
  bool frozen_ = false;
  uint64_t plan_ = 0;
  std::string fault_;
  bool rolled_back_ = false;
  std::vector<membership::CatchUpItem> plan_items_;
  std::map<uint64_t, Comm> comms_;
  std::map<ChannelName, Channel> channels_;
  std::map<ChannelName, std::map<uint64_t, Told>> closed_;
  std::map<uint64_t, std::vector<Contribution>> early_;  // of comms that are not made here yet
  std::set<uint64_t> settled_unknown_;
  std::vector<std::pair<ChannelName, uint64_t>> fresh_;
};

}  // namespace mep::sim

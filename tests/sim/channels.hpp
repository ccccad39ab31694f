// A model of what runs over the membership: channels of replicated operations whose contributions
// name (slot, incarnation, seq, comm epoch), with completion that stops at the wedge, retained
// contributions, and flush. It knows nothing of how members agree.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/membership/membership.hpp"

namespace mep::sim {

using Contributors = std::map<uint32_t, uint64_t>;  // slot -> incarnation

enum class Kind : uint8_t {
  kAll = 0,   // done when all members' contributions are here (allreduce)
  kRoot = 1,  // done when the contribution of the lowest living slot is here (broadcast)
};

struct ChannelName {
  uint64_t comm = 0;
  uint64_t channel = 0;
  friend auto operator<=>(const ChannelName&, const ChannelName&) = default;
};

struct Contribution {
  ChannelName name;
  uint64_t seq = 0;
  uint64_t comm_epoch = 0;
  uint32_t slot = 0;
  uint64_t incarnation = 0;
};

struct Verdict {
  bool success = false;
  uint64_t comm_epoch = 0;
  Contributors contributors;
};

struct Channel {
  Kind kind = Kind::kAll;
  bool pending = false;
  uint64_t entered = 0;
  uint64_t done = 0;
  uint64_t next = 1;      // no call gets a lower seq
  uint64_t answered = 0;  // N* of the view: calls up to here succeed from `results`
  uint64_t frozen_done = 0;
  std::map<std::pair<uint64_t, uint64_t>, Contributors> arrived;  // (seq, comm epoch)
  std::map<uint64_t, Contributors> results;                       // of operations that are done
  std::map<uint64_t, Contributors> provisional;                   // flushed, not yet in a view
  std::map<uint64_t, Verdict> verdicts;                           // what the caller was told
};

struct FlushData {
  ChannelName name;
  std::map<uint64_t, Contributors> results;
};

struct Comm {
  uint64_t epoch = 1;
  membership::SlotSet members;
  bool revoked = false;
};

// The channels of one process.
class ChannelTable {
 public:
  ChannelTable(uint32_t slot, uint64_t incarnation, bool complete_after_wedge)
      : slot_(slot), incarnation_(incarnation), complete_after_wedge_(complete_after_wedge) {}

  void create(uint64_t comm, uint64_t comm_epoch, const membership::SlotSet& members,
              const std::vector<std::pair<uint64_t, Kind>>& channels);

  // Calls the next operation; false if wedged, pending or revoked. `send` says what to send out.
  bool call(const ChannelName& name, const membership::View& view, Contribution* send);
  void arrive(const Contribution& contribution, const membership::View& view);
  std::vector<membership::ChannelState> wedge();
  // True if all of the plan is here already, from the donor of an earlier one.
  bool plan(const membership::FlushReceive& plan);
  // True if the latest plan is complete now.
  bool take_flush(const FlushData& data);
  FlushData give_flush(const membership::FlushSend& order) const;
  // Returns what was wrong, empty if all is well.
  std::string install(const membership::InstallView& install);
  bool wedged() const { return wedged_; }
  uint64_t plan_number() const { return plan_; }

  std::map<ChannelName, Channel>& channels() { return channels_; }
  const std::map<uint64_t, Comm>& comms() const { return comms_; }

 private:
  void try_complete(const ChannelName& name, Channel* channel, const membership::View& view);
  bool plan_complete() const;
  std::string settle(const membership::ChannelVerdict& verdict, Channel* channel, uint32_t why,
                     uint64_t old_epoch);

  uint32_t slot_;
  uint64_t incarnation_;
  bool complete_after_wedge_;
  bool wedged_ = false;
  uint64_t plan_ = 0;
  std::vector<membership::FlushItem> plan_items_;
  std::map<uint64_t, Comm> comms_;
  std::map<ChannelName, Channel> channels_;
};

}  // namespace mep::sim

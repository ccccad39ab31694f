// A participant in a world's view changes: a comm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/membership/membership.hpp"
#include "core/world/comm_counters.hpp"

namespace mep {

// Receives one contribution of one operation for a rank that is behind.
using CatchUpSink =
    std::function<void(uint64_t seq, uint32_t source, std::span<const std::byte> bytes)>;

// All that a joiner must know to take its place in a comm.
struct CommDescription {
  uint64_t id = 0;
  std::string name;  // now; it may have been renamed
  uint64_t epoch = 0;
  std::vector<uint32_t> slots;
  // How many comms were split off and EP objects made from it: names follow from these.
  uint32_t child_number = 0;
  uint32_t ep_number = 0;
  // Its part on a GPU, then its EP objects: an ObjectKind, then their own form (ViewParticipant::describe_object).
  std::vector<std::vector<std::byte>> objects;
};

// A comm as MEP_METRICS_FILE has it.
struct CommMetrics {
  std::string name;
  uint64_t epoch = 0;
  uint64_t live = 0;
  const CommCounters* counters = nullptr;  // the comm's
};

// A comm's members at one moment, the same for all that make it.
struct CommMembers {
  uint64_t world_epoch = 1;
  std::vector<uint64_t> incarnations;  // by rank, 0: absent
  static CommMembers of(const membership::View& view, const std::vector<uint32_t>& slots);
};

// All functions are called by the control thread.
class WorldParticipant {
 public:
  virtual ~WorldParticipant() = default;
  virtual uint64_t comm_id() const = 0;
  virtual const membership::SlotSet& member_slots() const = 0;
  // Whether the channel's operations are replicated, so that who is behind is given what it lacks.
  virtual bool is_replicated(uint64_t channel) const = 0;
  // Channels with what is done now; freezes nothing.
  virtual void describe(std::vector<membership::ChannelState>* channels) const = 0;
  // Freezes all channels; any number of times.
  virtual void stop() = 0;
  // After that: whether nothing of this rank posts any more, a thread or a kernel.
  virtual bool is_still() const = 0;
  // Once it is: what was done and entered.
  virtual void freeze(std::vector<membership::ChannelState>* channels) = 0;
  // While frozen: whether this rank holds all that operation seq needs.
  virtual bool holds(uint64_t channel, uint64_t seq) = 0;
  virtual void give_catch_up(uint64_t channel, uint64_t from_seq, uint64_t to_seq,
                             const CatchUpSink& sink) = 0;
  virtual void take_catch_up(uint64_t channel, uint64_t seq, uint32_t source,
                             std::span<const std::byte> bytes) = 0;
  virtual void prepare() = 0;
  // `affected` null: the comm goes on as it was, in its old epoch. `admits`: ranks that the change adds are its members.
  virtual void install(const membership::InstallView& change,
                       const membership::AffectedComm* affected, bool admits) = 0;
  // The world has ended for this rank (WorldEnd): wake everybody.
  virtual void terminate() = 0;
  // Whether no user thread is still inside a call that began before the latest view: only then may
  // memory of a rank that left the view be unmapped.
  virtual bool quiesced() const = 0;
  // Whether joiners learn of it by itself. If not, what it belongs to makes it there.
  virtual bool stands_alone() const = 0;
  // Whether it was made over all of the world as that was then.
  virtual bool spans_world() const = 0;
  // For joiners, see kFrameComms.
  virtual CommDescription description() const = 0;
  virtual CommMetrics metrics() const = 0;
};

}  // namespace mep

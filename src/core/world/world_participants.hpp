// The participants in a world's view changes, by their comm, and the comms that this rank will never make. The control
// thread's alone: a participant is called from add() to remove(), by nobody else.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "core/world/world_participant.hpp"

namespace mep {

class WorldParticipants {
 public:
  void add(WorldParticipant* participant) { by_comm_[participant->comm_id()] = participant; }
  void remove(const WorldParticipant* participant) { by_comm_.erase(participant->comm_id()); }
  // Null: none, not begun yet or closed.
  WorldParticipant* find(uint64_t comm) const;
  // Pairs of (comm, participant).
  auto begin() const { return by_comm_.begin(); }
  auto end() const { return by_comm_.end(); }

  // Whether the world has grown beyond this comm over it, which joiners then have no part in.
  bool is_outgrown(const WorldParticipant& comm) const;

  // Whether no user thread is inside a call of an earlier view, see WorldParticipant::quiesced().
  bool quiesced() const;
  // Takes out what this rank's user has, or can have without the peer that completed it.
  void drop_held(std::vector<membership::ChannelState>* channels) const;

  // A change has ended operations of comms that this rank has not begun to make.
  void note_refused(const membership::Proposal& committed);
  // Such a comm will not be made.
  bool is_refused(uint64_t comm) const;

 private:
  std::map<uint64_t, WorldParticipant*> by_comm_;
  std::deque<uint64_t> refused_;  // comms, the newest
};

}  // namespace mep

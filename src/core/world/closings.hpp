// Comms that are closed while their world goes on: what was done on one is asked of its other members before this rank
// forgets it (see Comm::close_after_changes), and their questions are answered. The control thread's.
//
// A question of this rank ends by an answer of each member or the member's end; one of a peer by the answer or the end
// of the peer's link.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/membership/membership.hpp"
#include "core/world/control_links.hpp"
#include "core/world/world_participants.hpp"
#include "core/world/world_windows.hpp"

namespace mep {

class Closings {
 public:
  Closings(const WorldPeers& peers, const membership::Membership& membership, ControlLinks& links,
           const WorldParticipants& participants, const WorldWindows& windows)
      : peers_(peers),
        membership_(membership),
        links_(links),
        participants_(participants),
        windows_(windows) {}

  // See World::ask_held().
  void ask(const WorldParticipant* comm, uint64_t channel, uint64_t done,
           std::shared_ptr<std::atomic<bool>> held);
  void forget(const WorldParticipant* comm);
  void check();

  bool take_question(uint32_t slot, const Frame& frame);
  bool take_answer(uint32_t slot, const Frame& frame);
  void answer();
  // A peer waits for a user's thread of this rank to pass an operation.
  bool is_asked() const { return !asked_.empty(); }
  void forget_peer(uint32_t slot);

 private:
  struct Closing {
    uint64_t token = 0;
    const WorldParticipant* comm = nullptr;
    std::vector<std::pair<uint32_t, uint64_t>> awaited;  // (slot, incarnation)
    std::shared_ptr<std::atomic<bool>> held;
  };
  struct Question {
    uint32_t slot = 0;
    uint64_t token = 0;
    membership::ChannelState done;
  };

  const WorldPeers& peers_;
  const membership::Membership& membership_;
  ControlLinks& links_;
  const WorldParticipants& participants_;
  const WorldWindows& windows_;
  std::vector<Closing> closings_;
  uint64_t next_token_ = 1;
  std::vector<Question> asked_;  // this rank does not hold all of these yet
};

}  // namespace mep

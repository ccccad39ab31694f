// How this rank and its peers leave: nobody goes while another needs what it alone has done. The control thread's.
//
// A rank that leaves says what it has completed and asks everybody whether they hold it; only then is LEFT said. So no
// operation succeeds there and fails elsewhere because it has gone. Channels that are closed are asked for at once, when
// nobody waits yet: then little is left to ask for at the end (ClosedChannels).
//
// Not the question of closings.hpp, which comes before a comm is forgotten: there a thread waits, so answers are
// hurried (Closings::is_asked) and a lost link does not end the wait. About closed channels nobody waits, links that
// are gone are not asked, and answers come when the control thread wakes for something else.
#pragma once

#include <cstdint>
#include <vector>

#include "core/membership/membership.hpp"
#include "core/world/closed_channels.hpp"
#include "core/world/control_links.hpp"
#include "core/world/world_participants.hpp"

namespace mep {

class Leaving {
 public:
  Leaving(const WorldPeers& peers, const membership::Membership& membership, ControlLinks& links,
          const WorldParticipants& participants)
      : peers_(peers), membership_(membership), links_(links), participants_(participants) {}

  // Starts the orderly leave of this rank.
  void start();
  // True once: nobody needs this rank any more, and LEFT is to be said.
  bool is_due();
  bool take_leaving(uint32_t slot, const Frame& frame);
  void take_leaving_held(uint32_t slot) { awaited_.remove(slot); }
  void answer_leaving();
  // A peer waits for a user's thread of this rank to pass an operation.
  bool is_asked() const { return !leaving_peers_.empty(); }

  // This rank has closed them; `members` share them.
  void note_closed(std::vector<membership::ChannelState> channels,
                   const membership::SlotSet& members);
  bool take_closed(uint32_t slot, const Frame& frame);
  bool take_closed_held(uint32_t slot, const Frame& frame);
  void answer_closed();

  // A new view: those that are not in it need nothing of closed channels.
  void keep(const membership::SlotSet& members) { closed_.keep(members); }
  void forget_peer(uint32_t slot);

 private:
  enum class State : uint8_t { kNo, kAsking, kLeft };
  struct LeavingPeer {
    uint32_t slot = 0;
    std::vector<membership::ChannelState> done;
  };
  struct ClosedByPeer {
    uint32_t slot = 0;
    uint64_t number = 0;
    std::vector<membership::ChannelState> channels;
  };

  const WorldPeers& peers_;
  const membership::Membership& membership_;
  ControlLinks& links_;
  const WorldParticipants& participants_;
  State state_ = State::kNo;
  membership::SlotSet awaited_;  // have not said that they hold what this rank has done
  ClosedChannels closed_;
  // Peers' channels, until this rank holds all that was done on them.
  std::vector<LeavingPeer> leaving_peers_;
  std::vector<ClosedByPeer> closed_by_peers_;
};

}  // namespace mep

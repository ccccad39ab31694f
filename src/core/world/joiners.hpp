// Joiners: from a knock at the door to "its links are tested", and this rank's part if it is a joiner itself. The
// control thread's.
//
// A joiner for a slot that is not in the view is connected once no user thread can still be inside a
// call of a view that had the slot's former rank. Then this rank gives it the view, the comms that it
// will be a member of, and its part of every window they share; when all of the joiner's windows are
// mapped here and it has said the same of this rank's, the membership state machine hears of it. Comms
// and EP objects may be made and destroyed meanwhile: neither side waits for a window that the other
// does not have.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "base/function_ref.hpp"
#include "base/unique_fd.hpp"
#include "core/bootstrap/bootstrap.hpp"
#include "core/membership/membership.hpp"
#include "core/world/admissions.hpp"
#include "core/world/control_links.hpp"
#include "core/world/world_participants.hpp"
#include "core/world/world_view.hpp"
#include "core/world/world_windows.hpp"

namespace mep {

class Joiners {
 public:
  Joiners(WorldPeers& peers, membership::Membership& membership, ControlLinks& links,
          const WorldParticipants& participants, WorldWindows& windows, Admissions& admissions,
          WorldView& view)
      : peers_(peers),
        membership_(membership),
        links_(links),
        participants_(participants),
        windows_(windows),
        admissions_(admissions),
        view_(view) {}

  // --- The door ---
  // `listener` invalid: no joiner comes. `gate`: how they find this rank and are let in; null for threads.
  [[nodiscard]] mep_result_t open_door(const ResolvedConfig& config, UniqueFd listener,
                                       std::shared_ptr<Gate> gate);
  void serve_door();
  // Milliseconds until it is to be served for the time alone, at most `cap`.
  int wait_ms(int cap) const { return door_ != nullptr ? door_->wait_ms(cap) : cap; }
  // Nobody comes in any more; whoever waits there is sent away.
  void close_door();
  // Joiners that have knocked wait for a user's thread of this rank.
  bool is_knocked() const { return !knocked_.empty(); }
  // The slot's rank is out of the view: joiners are not led to it any more.
  void strike_out(uint32_t slot);

  // The start of this rank is over: from now on it can tell joiners of the world's comm.
  void begin() { has_begun_ = true; }

  // --- Those that are connected, and not in the view yet ---
  // Connects who has knocked and may come. `drop_link`: an earlier joiner's; `read_link`: the new one's.
  void connect(FunctionRef<void(uint32_t)> drop_link, FunctionRef<void(uint32_t)> read_link);
  bool is_connected(uint32_t slot) const { return arrivals_.contains(slot); }
  membership::SlotSet connected() const;
  // Its link has ended, or its process has (`confirmed`).
  void note_ended(uint32_t slot, bool confirmed);
  // It has taken all windows that it was offered.
  void note_ready(uint32_t slot);
  // Takes over those that a joiner owes which is not announced yet: it holds up its own admission, nobody else.
  void take_over(AwaitedWindows* awaited);
  void note_taken(uint32_t slot, uint64_t window, uint32_t generation);
  // Joiners that membership does not know of yet must not wait for who has gone.
  void tell_of(const membership::View& view);
  // It is in the view from now on.
  void take_in(uint32_t slot, uint64_t epoch);

  // --- This rank as a joiner ---
  // Tells all that it has their windows.
  void say_ready();
  bool take_view(const Frame& frame);
  bool take_comm_epochs(const Frame& frame);
  bool take_peer_states(const Frame& frame);
  // The comm's epoch after view changes that this rank has not taken part in, if that is later.
  uint64_t latest_epoch(uint64_t comm, uint64_t epoch) const;
  // A member, or a joiner that members have found ready, that this rank has had no link to for too long; or
  // membership::kNoSlot.
  uint32_t find_missed_rank();

 private:
  struct Arrival {
    bool is_ready = false;   // it has said so
    bool announced = false;  // to the membership state machine: ready, and nothing is untaken
    AwaitedWindows untaken;  // renewed windows that it has not taken yet
  };

  bool take_joiner(PeerLink* joiner, FunctionRef<void(uint32_t)> read_link);
  bool welcome(uint32_t slot);
  void offer_windows_to(uint32_t slot);
  void send_comm_epochs(uint32_t slot);
  void send_peer_states(uint32_t slot);
  void announce(uint32_t slot, Arrival& arrival);

  WorldPeers& peers_;
  membership::Membership& membership_;
  ControlLinks& links_;
  const WorldParticipants& participants_;
  WorldWindows& windows_;
  Admissions& admissions_;
  WorldView& view_;
  UniqueFd listener_;
  std::shared_ptr<Gate> gate_;
  std::unique_ptr<JoinListener> door_;
  std::vector<PeerLink> knocked_;
  std::map<uint32_t, Arrival> arrivals_;  // by slot, connected
  // This rank as a joiner.
  bool has_begun_ = false;
  bool said_ready_ = false;
  Deadline missed_until_ = Deadline::never();  // of a rank that it has no link to
  std::map<uint64_t, uint64_t> told_epochs_;   // by comm, see latest_epoch()
};

}  // namespace mep

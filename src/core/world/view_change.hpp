// The part of a view change that is done on this rank: freeze, catch-up, fence and prepare. The membership state
// machine asks for each of them, and is told when it is done. The control thread's.
//
// All that is kept is of the change under way: it is begun by act(), and over with commit().
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "core/bootstrap/bootstrap.hpp"
#include "core/membership/membership.hpp"
#include "core/world/control_links.hpp"
#include "core/world/dying_peers.hpp"
#include "core/world/joiners.hpp"
#include "core/world/world_participants.hpp"
#include "core/world/world_view.hpp"
#include "core/world/world_windows.hpp"

namespace mep {

class ViewChange {
 public:
  ViewChange(const ResolvedConfig& config, WorldPeers& peers, membership::Membership& membership,
             ControlLinks& links, const WorldParticipants& participants, Joiners& joiners,
             WorldWindows& windows)
      : config_(config),
        peers_(peers),
        membership_(membership),
        links_(links),
        participants_(participants),
        joiners_(joiners),
        windows_(windows),
        dying_(peers, links) {}

  // A sign of a death or a broken link.
  void note_evidence();
  DyingPeers& dying() { return dying_; }
  const DyingPeers& dying() const { return dying_; }
  void act(const membership::Freeze& action);
  void act(const membership::CatchUpReceive& action);
  void act(const membership::CatchUpSend& action);
  void act(const membership::FenceOut& action);
  void act(const membership::Prepare& action);

  bool take_catch_up(const Frame& frame);
  bool take_catch_up_end(const Frame& frame);
  // The peer has taken a renewed window.
  void note_taken(uint32_t slot, uint64_t window, uint32_t generation);
  void check_fences();
  // Goes on with the freeze once nothing of this rank posts any more. Membership gives this rank up where that lasts.
  void check_still();
  bool is_freezing() const { return freezing_epoch_ != 0; }
  // Goes on with what waits for data to land.
  void drain();
  // Prepare waits for that.
  bool is_draining() const { return preparing_ != nullptr; }

  // The decision is known.
  void commit();
  // And installed. The log gets the times of this change; the next one begins without any.
  void finish(uint64_t world_epoch);

 private:
  struct Fence {
    uint32_t slot = 0;
    uint64_t incarnation = 0;
    AwaitedWindows awaited;  // who has not yet taken which renewed window
    Deadline joiners_until = Deadline::never();
  };

  void note_agreed();
  void take_what_has_come();
  void give_up_the_gone();
  void ask_for_quiet();
  bool drained() const;
  void check_catch_up();
  void check_prepare();

  const ResolvedConfig& config_;
  WorldPeers& peers_;
  membership::Membership& membership_;
  ControlLinks& links_;
  const WorldParticipants& participants_;
  Joiners& joiners_;
  WorldWindows& windows_;
  DyingPeers dying_;

  uint64_t freezing_epoch_ = 0;  // a freeze waits for those who post; 0: none does

  // The items that are asked for, and which (comm, channel) have come up to which seq.
  std::vector<membership::CatchUpItem> catch_up_items_;
  uint64_t catch_up_plan_ = 0;
  bool catch_up_pending_ = false;
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> caught_up_;

  std::vector<Fence> fences_;  // wait for peers to have taken renewed windows

  // Data posted before the freeze may still be on its way here: no window is prepared for the next
  // epoch before the marks of all others that stay have come.
  uint64_t quiet_epoch_ = 0;                        // once this rank is frozen; 0: none
  std::unique_ptr<membership::Prepare> preparing_;  // null: none is put off

  // now_ns() of the steps of this change, for the log. Comparable between the processes of a host.
  struct Times {
    uint64_t evidence_ns = 0;   // the first sign of a death or a broken link, or the freeze
    uint64_t frozen_ns = 0;     // all channels are stopped
    uint64_t agreed_ns = 0;     // the proposal is known: catch-up, fence and prepare begin
    uint64_t prepared_ns = 0;   // this rank has accepted
    uint64_t committed_ns = 0;  // the decision is known
    uint64_t installed_ns = 0;  // user threads go on
  };
  Times times_;
};

}  // namespace mep

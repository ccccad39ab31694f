// Sees the end of a peer's process on this host before the kernel has torn its memory down.
//
// A mark in the peer's death page (transport/death_words.hpp), or the end of the control link, says only that it is worth looking:
// base/process_end.hpp. Kernels of the process run on until the driver has seen its end: WorldPeers::lingering().
#pragma once

#include <cstdint>

#include "base/clock.hpp"
#include "base/function_ref.hpp"
#include "core/membership/membership.hpp"
#include "core/membership/slot_set.hpp"
#include "core/world/control_links.hpp"
#include "core/world/world_peers.hpp"
#include "transport/death_words.hpp"

namespace mep {

class DyingPeers {
 public:
  DyingPeers(WorldPeers& peers, ControlLinks& links);
  DyingPeers(const DyingPeers&) = delete;
  DyingPeers& operator=(const DyingPeers&) = delete;

  // Watches the process that is in the slot, if it has given a page; to be called with its first frame.
  void watch(uint32_t slot);
  void note_link_end(uint32_t slot) { look_at(slot); }
  // Whether check() is to be called soon.
  bool any() const { return !dying_.empty(); }
  // Calls `ended` for each member that is seen to have ended.
  void check(const membership::Membership& membership, FunctionRef<void(uint32_t)> ended);

 private:
  void look_at(uint32_t slot);

  WorldPeers& peers_;
  membership::SlotSet dying_;  // worth looking at
  Deadline until_ = Deadline::never();
  DeathWatch watch_;
};

}  // namespace mep

// Sees the end of a peer's process on this host before the kernel has torn its memory down: base/process_end.hpp.
//
// A thread that has ended, or the control link, says only that it is worth looking. Linux tells of threads from 6.9 on;
// they are not watched where descriptors are scarce. Kernels of the process run on until the driver has seen its end:
// WorldPeers::lingering().
#pragma once

#include <cstdint>

#include "base/clock.hpp"
#include "base/function_ref.hpp"
#include "core/membership/membership.hpp"
#include "core/membership/slot_set.hpp"
#include "core/world/control_links.hpp"
#include "core/world/world_peers.hpp"

namespace mep {

class DyingPeers {
 public:
  DyingPeers(WorldPeers& peers, ControlLinks& links);
  DyingPeers(const DyingPeers&) = delete;
  DyingPeers& operator=(const DyingPeers&) = delete;

  // Looks for the peer's threads, once an incarnation: a heartbeat has come from them.
  void watch(uint32_t slot);
  void note_thread_end(uint32_t slot);
  void note_link_end(uint32_t slot) { look_at(slot); }
  // Whether check() is to be called soon.
  bool any() const { return !dying_.empty(); }
  // Calls `ended` for each member that is seen to have ended.
  void check(const membership::Membership& membership, FunctionRef<void(uint32_t)> ended);

 private:
  void look_at(uint32_t slot);

  const bool watches_;
  WorldPeers& peers_;
  ControlLinks& links_;
  membership::SlotSet dying_;  // worth looking at
  Deadline until_ = Deadline::never();
};

}  // namespace mep

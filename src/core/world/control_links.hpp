// The links of the control thread, and whatever else it waits on: pidfds of the peers, the door for joiners, the
// transports' descriptors and the event of its requests. Nobody else knows its epoll.
//
// A frame that cannot be sent breaks its link, since the peer would miss it: the control thread drops those of
// take_broken(). A peer has a link from WorldPeers::take_in() to end().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/function_ref.hpp"
#include "base/unique_fd.hpp"
#include "core/bootstrap/control_link.hpp"
#include "core/membership/slot_set.hpp"
#include "core/world/world_peers.hpp"
#include "mep.h"

namespace mep {

class ControlLinks {
 public:
  explicit ControlLinks(WorldPeers& peers) : peers_(peers) {}
  ControlLinks(const ControlLinks&) = delete;
  ControlLinks& operator=(const ControlLinks&) = delete;

  // Before all others.
  [[nodiscard]] mep_result_t open();
  // Any thread: ends a wait(), or the next one.
  void ring();

  // The peer's link and pidfd, if it has them.
  [[nodiscard]] mep_result_t watch_peer(uint32_t slot);
  [[nodiscard]] mep_result_t watch_door(int fd);
  // Those that have come since.
  void watch_transports();
  // Before the pidfd is closed.
  void unwatch_process(uint32_t slot);

  // `readable`: something has come from the slot, or its link ended. `ended`: its process has.
  void wait(int wait_ms, FunctionRef<void(uint32_t)> readable, FunctionRef<void(uint32_t)> ended);
  // Gives what has come to `take`, which returns false for what is no valid frame, and after which the link may be
  // gone. False: it is to be dropped.
  bool read(uint32_t slot, FunctionRef<bool(Frame&)> take);

  // Nothing happens if there is no link.
  void send(uint32_t slot, uint16_t type, std::span<const std::byte> payload);
  void tell_all(uint16_t type, std::span<const std::byte> payload);
  void flush();
  void mark_broken(uint32_t slot) { broken_.add(slot); }
  membership::SlotSet take_broken();

  void end(uint32_t slot);
  // All of them, the pidfds too. Takes no memory.
  void end_all();

 private:
  enum class Source : uint32_t { kRequests, kLink, kProcess, kDoor, kTransport };
  bool watch(int fd, Source source, uint32_t slot);
  void unwatch(int fd);

  WorldPeers& peers_;
  UniqueFd epoll_;
  UniqueFd request_event_;
  membership::SlotSet broken_;
  membership::SlotSet output_watched_;  // links that epoll also watches for room
  uint32_t watched_transports_ = 0;
};

}  // namespace mep

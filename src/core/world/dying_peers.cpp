#include "core/world/dying_peers.hpp"

#include <sys/types.h>

#include <array>
#include <string_view>

#include "base/process_end.hpp"
#include "mep.h"

namespace mep {
namespace {

constexpr uint32_t kMostSlots = 64;
// Threads that run as long as the world does.
constexpr std::array<std::string_view, 3> kThreadNames = {"mep-control", "mep-progress",
                                                          "mep-requests"};
constexpr uint32_t kLongestMs = 1000;

}  // namespace

DyingPeers::DyingPeers(WorldPeers& peers, ControlLinks& links)
    : watches_(peers.count() <= kMostSlots), peers_(peers), links_(links) {}

void DyingPeers::watch(uint32_t slot) {
  WorldPeer& peer = peers_[slot];
  if (peer.watched_incarnation == peer.identity.incarnation || !watches_) return;
  peer.watched_incarnation = peer.identity.incarnation;
  const long pid = peer.pidfd.valid() ? pid_behind(peer.pidfd.get()) : 0;
  if (pid <= 0) return;
  peer.thread_pidfds = open_thread_pidfds(static_cast<pid_t>(pid), kThreadNames);
  links_.watch_threads(slot);
}

void DyingPeers::note_thread_end(uint32_t slot) {
  links_.unwatch_threads(slot);
  peers_[slot].watched_incarnation = 0;  // again with its next heartbeat, if there is one
  look_at(slot);
}

void DyingPeers::look_at(uint32_t slot) {
  dying_.add(slot);
  until_ = Deadline::after_ms(kLongestMs);
}

void DyingPeers::check(const membership::Membership& membership,
                       FunctionRef<void(uint32_t)> ended) {
  if (dying_.empty()) return;
  const membership::SlotSet dying = dying_;
  dying.each([&](uint32_t slot) {
    const WorldPeer& peer = peers_[slot];
    const bool is_news = peer.pidfd.valid() && peers_.is_in(membership.view(), slot) &&
                         !membership.confirmed_dead(slot);
    const long pid = is_news ? pid_behind(peer.pidfd.get()) : 0;
    const bool has_ended = pid > 0 && all_threads_exit(static_cast<pid_t>(pid));
    if (has_ended) ended(slot);
    if (has_ended || pid <= 0) dying_.remove(slot);
  });
  if (until_.expired()) dying_ = {};
}

}  // namespace mep

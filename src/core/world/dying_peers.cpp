#include "core/world/dying_peers.hpp"

#include <sys/types.h>

#include <bit>
#include <utility>

#include "base/process_end.hpp"
#include "mep.h"

namespace mep {
namespace {

constexpr uint32_t kLongestMs = 1000;

}  // namespace

DyingPeers::DyingPeers(WorldPeers& peers, ControlLinks& links)
    : peers_(peers), watch_(peers.self().death_page, [&links] { links.ring(); }) {}

// A page has a word for each slot of a world of up to DeathPage::kWords.
void DyingPeers::watch(uint32_t slot) {
  WorldPeer& peer = peers_[slot];
  if (!peer.death_page.valid()) return;
  const UniqueFd page = std::move(peer.death_page);
  watch_.watch(slot, page.get(), peers_.self_slot());
}

void DyingPeers::look_at(uint32_t slot) {
  dying_.add(slot);
  until_ = Deadline::after_ms(kLongestMs);
}

void DyingPeers::check(const membership::Membership& membership,
                       FunctionRef<void(uint32_t)> ended) {
  for (uint64_t marked = watch_.take(); marked != 0; marked &= marked - 1) {
    look_at(static_cast<uint32_t>(std::countr_zero(marked)));
  }
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

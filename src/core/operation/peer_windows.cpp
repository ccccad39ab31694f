#include "core/operation/peer_windows.hpp"

#include <algorithm>

#include "base/log.hpp"
#include "base/status.hpp"

namespace mep {

void PeerWindows::drop() {
  if (own_ != nullptr) comm_.world().windows().drop(own_->id());
  own_ = nullptr;
}

mep_result_t PeerWindows::receive(const std::vector<uint64_t>& incarnations,
                                  const Deadline& deadline,
                                  const std::function<bool()>& has_changed) {
  const std::vector<uint32_t>& slots = comm_.slots();
  World& world = comm_.world();
  const auto is_absent = [&](uint32_t slot) {
    const auto rank =
        static_cast<size_t>(std::find(slots.begin(), slots.end(), slot) - slots.begin());
    return incarnations[rank] == 0 ||
           (world.admissions().entering() && world.view().snapshot().incarnation(slot) == 0);
  };
  MEP_TRY(world.windows().receive(own_, slots, is_absent, deadline, &remotes_, has_changed));
  incarnations_ = incarnations;
  for (uint32_t rank = 0; rank < slots.size(); ++rank) {
    if (!has(rank)) incarnations_[rank] = 0;
  }
  // Also of a joiner, which is in no view yet.
  incarnations_[comm_.rank()] = world.identity().incarnation;
  return MEP_SUCCESS;
}

mep_result_t PeerWindows::take(uint32_t rank, uint64_t incarnation, const Deadline& deadline,
                               bool may_lack) {
  const uint32_t slot = comm_.slots()[rank];
  WorldWindows& windows = comm_.world().windows();
  // One whose windows have all come has this one or never will.
  if (may_lack && windows.has_offered_all(slot, incarnation) &&
      !windows.has_offered(slot, own_->id())) {
    return fail(MEP_ERR_NOT_FOUND, "it joined while the windows were made or dropped");
  }
  return windows.await_remote(slot, own_, deadline, &remotes_[rank]);
}

mep_result_t PeerWindows::reach_joiners(const CommView& view, const Deadline& deadline,
                                        const char* what,
                                        const std::function<void(uint32_t)>& reached) {
  for (const uint32_t rank : view.live) {
    const uint64_t incarnation = view.incarnations[rank];
    if (reaches(rank, incarnation)) continue;
    // Gone again: this view has a successor, for which the channel is frozen by now, so nothing is posted to
    // it.
    if (comm_.world().view().snapshot().incarnation(comm_.slots()[rank]) != incarnation) continue;
    const mep_result_t taken = take(rank, incarnation, deadline, what != nullptr);
    if (taken != MEP_SUCCESS && what == nullptr) return taken;
    if (taken != MEP_SUCCESS) {
      log(LogLevel::kWarn, "rank %u does not take part in %s: %s", rank, what, last_error_text());
      continue;
    }
    incarnations_[rank] = incarnation;
    if (reached) reached(rank);
  }
  return MEP_SUCCESS;
}

void PeerWindows::flush_puts() const {
  for (const Remote& remote : remotes_) remote.flush();
}

}  // namespace mep

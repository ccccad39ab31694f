#include "core/operation/comm_view.hpp"

#include <algorithm>

namespace mep {
namespace {

std::shared_ptr<CommView> make_view(const CommMembers& members, uint64_t epoch) {
  auto view = std::make_shared<CommView>();
  view->epoch = epoch;
  view->world_epoch = members.world_epoch;
  view->incarnations = members.incarnations;
  const auto ranks = static_cast<uint32_t>(members.incarnations.size());
  view->live_bits.assign(rank_words(ranks), 0);
  view->left_bits.assign(rank_words(ranks), 0);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    if (members.incarnations[rank] == 0) continue;
    view->live.push_back(rank);
    add_rank(&view->live_bits, rank);
  }
  return view;
}

}  // namespace

std::shared_ptr<const CommView> CommView::first(const CommMembers& members, uint64_t epoch) {
  return make_view(members, epoch);
}

// A rank that has left counts as left until another takes its place.
std::shared_ptr<const CommView> CommView::after(const membership::InstallView& change,
                                                uint64_t new_epoch,
                                                const std::vector<uint32_t>& slots,
                                                bool admits) const {
  CommMembers members = CommMembers::of(*change.view, slots);
  for (uint32_t rank = 0; rank < slots.size() && !admits; ++rank) {
    if (members.incarnations[rank] != incarnations[rank]) members.incarnations[rank] = 0;
  }
  std::shared_ptr<CommView> view = make_view(members, new_epoch);
  const std::vector<membership::Removal>& removed = change.decision->removed;
  for (uint32_t rank = 0; rank < slots.size(); ++rank) {
    if (view->is_live(rank)) continue;
    const auto gone = std::find_if(removed.begin(), removed.end(), [&](const auto& removal) {
      return removal.slot == slots[rank];
    });
    const bool left = gone != removed.end() ? gone->reason == membership::RemovalReason::kLeft
                                            : has_rank(left_bits, rank);
    if (left) add_rank(&view->left_bits, rank);
  }
  return view;
}

}  // namespace mep

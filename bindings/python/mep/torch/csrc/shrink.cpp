// PyTorch's shrink_group(): a group without some of its ranks, which may be dead or not.
//
// PyTorch destroys the group of before, so what comes of a default group is a world of its own, whose ranks meet
// through the store.
#include <algorithm>
#include <functional>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "process_group.hpp"

namespace mep_torch {
namespace {

// In the flags of shrink_group(): what is pending is to end first.
constexpr int kShrinkAborts = 1;

}  // namespace

c10::intrusive_ptr<c10d::Backend> ProcessGroupMep::shrink(
    const std::vector<int64_t>& ranks_to_exclude, int shrink_flags,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts_override) {
  std::vector<int32_t> staying;
  int rank = -1;
  for (int each = 0; each < size_; ++each) {
    if (std::find(ranks_to_exclude.begin(), ranks_to_exclude.end(), each) != ranks_to_exclude.end())
      continue;
    if (each == rank_) rank = static_cast<int>(staying.size());
    staying.push_back(comms_.ranks[static_cast<size_t>(each)]);
  }
  TORCH_CHECK_VALUE(rank >= 0, "mep: shrink: rank ", rank_,
                    " is to be left out; only ranks that stay call it");
  const std::chrono::milliseconds timeout =
      opts_override ? timeout_or_default(opts_override->timeout) : options_->timeout;
  if ((shrink_flags & kShrinkAborts) != 0) abort();
  std::string name = comms_.name + "/only";
  for (const int32_t each : staying) name += "-" + std::to_string(each);
  const auto store = c10::make_intrusive<c10d::PrefixStore>(name, store_);
  if (!is_world()) {
    return group_of(store, world_, staying, rank, name, timeout, backend_name_);
  }
  World::Place place;
  place.rank = rank;
  place.size = static_cast<int>(staying.size());
  place.timeout = timeout;
  place.job = "torch-shrunk-" + std::to_string(std::hash<std::string>()(world_->job() + name));
  auto world = std::make_shared<World>(store, place);
  if (World::current() == world_) World::set_current(world);
  const Comms comms = world->comms();
  return noted(c10::make_intrusive<ProcessGroupMep>(store, std::move(world), comms, Kind::kWorld,
                                                    rank, timeout, backend_name_));
}

}  // namespace mep_torch

// Who is in a process group, and how ranks come back.
#include <c10/util/Exception.h>

#include "process_group.hpp"

namespace mep_torch {

std::vector<int> ProcessGroupMep::living() const {
  return collectives_->living();
}

uint64_t ProcessGroupMep::epoch() const {
  uint64_t epoch = 0;
  check(mep_comm_epoch(collectives_->handle(), &epoch), "look who is there");
  return epoch;
}

void ProcessGroupMep::set_active_ranks(const at::Tensor& mirror) {
  active_ = std::make_shared<ActiveRanks>(mirror, size_);
  active_->show(living());
}

at::Tensor ProcessGroupMep::active_ranks() const {
  TORCH_CHECK(active_ != nullptr, "mep: the group was made without a tensor of active ranks");
  return active_->mirror();
}

}  // namespace mep_torch

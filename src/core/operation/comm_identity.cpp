#include "core/operation/comm_identity.hpp"

#include <utility>

#include "base/status.hpp"

namespace mep {

CommIdentity::CommIdentity(std::shared_ptr<World> world, std::string name, uint64_t id,
                           std::vector<uint32_t> slots)
    : world_(std::move(world)),
      id_(id),
      name_(std::move(name)),
      slots_(std::move(slots)),
      timeout_ms_(world_->config().timeout_ms),
      flight_(world_->recorder(), id_, name_.get(), slots_) {
  for (uint32_t rank = 0; rank < slots_.size(); ++rank) {
    if (slots_[rank] == world_->self_slot()) rank_ = rank;
    member_slots_.add(slots_[rank]);
  }
}

mep_result_t CommIdentity::check_world() const {
  const mep_result_t terminal = world_->terminal_result();
  if (terminal == MEP_SUCCESS) [[likely]]
    return MEP_SUCCESS;
  return world_->fail_as_ended();
}

}  // namespace mep

// A comm's members at one epoch. Never changes once it is published.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/membership/membership.hpp"
#include "core/operation/rank_bits.hpp"
#include "core/world/world.hpp"

namespace mep {

struct CommView {
  uint64_t epoch = 1;
  uint64_t world_epoch = 1;
  std::vector<uint32_t> live;  // ranks, rising
  RankBits live_bits;
  RankBits left_bits;                  // absent ones that left in order, as far as this rank knows
  std::vector<uint64_t> incarnations;  // by rank, 0: absent
  bool is_live(uint32_t rank) const { return has_rank(live_bits, rank); }

  // The view of a comm's first epoch.
  static std::shared_ptr<const CommView> first(const CommMembers& members, uint64_t epoch);
  // That follows on this one by a change of the comm whose ranks have these slots. `admits`: see
  // WorldParticipant::install(); else who came by it stays absent in all that follow.
  std::shared_ptr<const CommView> after(const membership::InstallView& change, uint64_t new_epoch,
                                        const std::vector<uint32_t>& slots, bool admits) const;
};

}  // namespace mep

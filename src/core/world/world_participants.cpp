#include "core/world/world_participants.hpp"

#include <algorithm>

namespace mep {

WorldParticipant* WorldParticipants::find(uint64_t comm) const {
  const auto it = by_comm_.find(comm);
  return it == by_comm_.end() ? nullptr : it->second;
}

bool WorldParticipants::is_outgrown(const WorldParticipant& comm) const {
  const auto is_larger = [&comm](const WorldParticipant& other) {
    return other.spans_world() && other.member_slots().count() > comm.member_slots().count();
  };
  return comm.spans_world() &&
         std::any_of(by_comm_.begin(), by_comm_.end(),
                     [&](const auto& entry) { return is_larger(*entry.second); });
}

bool WorldParticipants::quiesced() const {
  return std::all_of(by_comm_.begin(), by_comm_.end(),
                     [](const auto& entry) { return entry.second->quiesced(); });
}

void WorldParticipants::drop_held(std::vector<membership::ChannelState>* channels) const {
  std::erase_if(*channels, [this](const membership::ChannelState& state) {
    WorldParticipant* comm = find(state.comm);
    return comm == nullptr || comm->holds(state.channel, state.done);
  });
}

// Members that have given up a comm say so by a view change, which may come before this rank has begun it. An
// id is used once, so what is kept too long does no harm; what is forgotten costs the time that it may take.
void WorldParticipants::note_refused(const membership::Proposal& committed) {
  constexpr size_t kMost = 256;
  const auto note = [this](uint64_t comm) {
    if (find(comm) == nullptr && !is_refused(comm)) refused_.push_back(comm);
  };
  for (const uint64_t comm : committed.revoked) note(comm);
  for (const membership::Settlement& settled : committed.settled) note(settled.comm);
  while (refused_.size() > kMost) refused_.pop_front();
}

bool WorldParticipants::is_refused(uint64_t comm) const {
  return std::find(refused_.begin(), refused_.end(), comm) != refused_.end();
}

}  // namespace mep

#include "core/world/closed_channels.hpp"

#include <iterator>
#include <utility>

namespace mep {

uint64_t ClosedChannels::add(std::vector<membership::ChannelState> channels,
                             const membership::SlotSet& awaited) {
  if (channels.empty() || awaited.empty()) return 0;
  closed_[++last_number_] = {std::move(channels), awaited};
  return last_number_;
}

void ClosedChannels::held(uint32_t slot, uint64_t number) {
  const auto found = closed_.find(number);
  if (found == closed_.end()) return;
  found->second.awaited.remove(slot);
  if (found->second.awaited.empty()) closed_.erase(found);
}

void ClosedChannels::keep(const membership::SlotSet& members) {
  for (auto entry = closed_.begin(); entry != closed_.end();) {
    entry->second.awaited &= members;
    entry = entry->second.awaited.empty() ? closed_.erase(entry) : std::next(entry);
  }
}

void ClosedChannels::append_to(std::vector<membership::ChannelState>* channels) const {
  for (const auto& [number, closed] : closed_) {
    channels->insert(channels->end(), closed.channels.begin(), closed.channels.end());
  }
}

}  // namespace mep

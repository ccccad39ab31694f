#include "core/comm/view_participant.hpp"

#include <algorithm>

namespace mep {

// All or nothing: what cannot be made is destroyed, and would be called.
void ViewParticipants::add(ViewParticipant* client) {
  std::vector<membership::ChannelState> channels;
  client->describe(&channels);
  std::unordered_map<uint64_t, ViewParticipant*> added;
  for (const membership::ChannelState& state : channels) added[state.channel] = client;
  const std::lock_guard lock(mutex_);
  by_channel_.reserve(by_channel_.size() + added.size());
  clients_.push_back(client);
  by_channel_.merge(added);  // moves what is there and has its place
}

std::vector<membership::ChannelState> ViewParticipants::remove(ViewParticipant* client) {
  {
    const std::lock_guard lock(mutex_);
    std::erase(clients_, client);
    std::erase_if(by_channel_, [client](const auto& each) { return each.second == client; });
  }
  std::vector<membership::ChannelState> channels;
  client->describe(&channels);
  return channels;
}

bool ViewParticipants::any(size_t own) const {
  const std::lock_guard lock(mutex_);
  return clients_.size() > own;
}

bool ViewParticipants::holds(uint64_t channel, uint64_t seq) const {
  const std::lock_guard lock(mutex_);
  const auto client = by_channel_.find(channel);
  return client == by_channel_.end() || client->second->holds(channel, seq);
}

bool ViewParticipants::quiesced() const {
  const std::lock_guard lock(mutex_);
  return std::all_of(clients_.begin(), clients_.end(),
                     [](const ViewParticipant* client) { return client->quiesced(); });
}

const ViewParticipant* ViewParticipants::find_unattached(const std::string& name) const {
  const auto it = std::find_if(unattached_.begin(), unattached_.end(),
                               [&](const auto& object) { return object->name() == name; });
  return it == unattached_.end() ? nullptr : it->get();
}

std::unique_ptr<ViewParticipant> ViewParticipants::take_unattached(const std::string& name) {
  const auto it = std::find_if(unattached_.begin(), unattached_.end(),
                               [&](const auto& object) { return object->name() == name; });
  if (it == unattached_.end()) return nullptr;
  std::unique_ptr<ViewParticipant> object = std::move(*it);
  unattached_.erase(it);
  return object;
}

}  // namespace mep

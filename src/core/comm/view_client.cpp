#include "core/comm/view_client.hpp"

#include <algorithm>

namespace mep {

void ViewClients::add(ViewClient* client) {
  std::vector<membership::ChannelState> channels;
  client->describe(&channels);
  const std::lock_guard lock(mutex_);
  clients_.push_back(client);
  for (const membership::ChannelState& state : channels) by_channel_[state.channel] = client;
}

std::vector<membership::ChannelState> ViewClients::remove(ViewClient* client) {
  {
    const std::lock_guard lock(mutex_);
    std::erase(clients_, client);
    std::erase_if(by_channel_, [client](const auto& each) { return each.second == client; });
  }
  std::vector<membership::ChannelState> channels;
  client->describe(&channels);
  return channels;
}

bool ViewClients::any(size_t own) const {
  const std::lock_guard lock(mutex_);
  return clients_.size() > own;
}

bool ViewClients::holds(uint64_t channel, uint64_t seq) const {
  const std::lock_guard lock(mutex_);
  const auto client = by_channel_.find(channel);
  return client == by_channel_.end() || client->second->holds(channel, seq);
}

bool ViewClients::quiesced() const {
  const std::lock_guard lock(mutex_);
  return std::all_of(clients_.begin(), clients_.end(),
                     [](const ViewClient* client) { return client->quiesced(); });
}

std::unique_ptr<ViewClient> ViewClients::take_dormant(const std::string& name) {
  const auto it = std::find_if(dormant_.begin(), dormant_.end(),
                               [&](const auto& object) { return object->name() == name; });
  if (it == dormant_.end()) return nullptr;
  std::unique_ptr<ViewClient> object = std::move(*it);
  dormant_.erase(it);
  return object;
}

}  // namespace mep

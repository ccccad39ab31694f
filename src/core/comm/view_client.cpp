#include "core/comm/view_client.hpp"

#include <algorithm>

namespace mep {

// All or nothing: what cannot be made is destroyed, and would be called.
void ViewClients::add(ViewClient* client) {
  std::vector<membership::ChannelState> channels;
  client->describe(&channels);
  std::unordered_map<uint64_t, ViewClient*> added;
  for (const membership::ChannelState& state : channels) added[state.channel] = client;
  const std::lock_guard lock(mutex_);
  by_channel_.reserve(by_channel_.size() + added.size());
  clients_.push_back(client);
  by_channel_.merge(added);  // moves what is there and has its place
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

const ViewClient* ViewClients::find_dormant(const std::string& name) const {
  const auto it = std::find_if(dormant_.begin(), dormant_.end(),
                               [&](const auto& object) { return object->name() == name; });
  return it == dormant_.end() ? nullptr : it->get();
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

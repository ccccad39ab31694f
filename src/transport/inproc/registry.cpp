#include "transport/inproc/registry.hpp"

#include <utility>

#include "base/fork_hold.hpp"

namespace mep {

std::shared_ptr<PutGate> RankGates::of(uint64_t incarnation) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<PutGate>& gate = gates_[incarnation];
  if (gate == nullptr) gate = std::make_shared<PutGate>();
  return gate;
}

InprocRegistry& InprocRegistry::instance() {
  // Never destroyed: transports may be older than this and end later.
  const ForkHold hold;
  static auto* registry = new InprocRegistry();
  return *registry;
}

uint64_t InprocRegistry::add(Entry entry) {
  const ForkHold hold;
  const std::lock_guard lock(mutex_);
  const uint64_t token = next_token_++;
  entries_.emplace(token, std::move(entry));
  return token;
}

void InprocRegistry::remove(uint64_t token) {
  const ForkHold hold;
  const std::lock_guard lock(mutex_);
  entries_.erase(token);
}

bool InprocRegistry::find(uint64_t token, std::shared_ptr<Window>* window,
                          std::shared_ptr<RankGates>* gates) {
  const ForkHold hold;
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(token);
  if (entry == entries_.end()) return false;
  *window = entry->second.window.lock();
  *gates = entry->second.gates;
  return *window != nullptr;
}

size_t InprocRegistry::size() {
  const ForkHold hold;
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace mep

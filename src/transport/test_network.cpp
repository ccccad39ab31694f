#include "transport/test_network.hpp"

#include <map>
#include <mutex>
#include <utility>

namespace mep {
namespace {

struct State {
  std::mutex mutex;
  std::vector<uint32_t> hosts;
  uint64_t puts = 0;
  uint64_t signals = 0;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> bytes;  // by hosts
  bool holds = false;
  std::vector<std::function<void()>> held;
};

State& state() {
  static State instance;
  return instance;
}

uint32_t host_in(const State& network, uint32_t slot) {
  return slot < network.hosts.size() ? network.hosts[slot] : 0;
}

void clear(State* network) {
  network->puts = network->signals = 0;
  network->bytes.clear();
}

}  // namespace

std::atomic<bool> test_network_enabled{false};

void TestNetwork::enable(std::vector<uint32_t> hosts) {
  State& network = state();
  const std::lock_guard lock(network.mutex);
  network.hosts = std::move(hosts);
  clear(&network);
  test_network_enabled.store(true, std::memory_order_relaxed);
}

void TestNetwork::disable() {
  test_network_enabled.store(false, std::memory_order_relaxed);
}

uint32_t TestNetwork::host_of(uint32_t slot) {
  State& network = state();
  const std::lock_guard lock(network.mutex);
  return host_in(network, slot);
}

void TestNetwork::clear_counts() {
  const std::lock_guard lock(state().mutex);
  clear(&state());
}

uint64_t TestNetwork::puts() {
  const std::lock_guard lock(state().mutex);
  return state().puts;
}

uint64_t TestNetwork::signals() {
  const std::lock_guard lock(state().mutex);
  return state().signals;
}

uint64_t TestNetwork::bytes(uint32_t from_host, uint32_t to_host) {
  const std::lock_guard lock(state().mutex);
  const auto it = state().bytes.find({from_host, to_host});
  return it == state().bytes.end() ? 0 : it->second;
}

void TestNetwork::hold() {
  const std::lock_guard lock(state().mutex);
  state().holds = true;
}

size_t TestNetwork::held() {
  const std::lock_guard lock(state().mutex);
  return state().held.size();
}

void TestNetwork::release() {
  State& network = state();
  std::vector<std::function<void()>> held;
  {
    const std::lock_guard lock(network.mutex);
    network.holds = false;
    held.swap(network.held);
  }
  for (const auto& deliver : held) deliver();
}

void TestNetwork::note_put(uint32_t from, uint32_t to, size_t bytes) {
  State& network = state();
  const std::lock_guard lock(network.mutex);
  const uint32_t from_host = host_in(network, from);
  const uint32_t to_host = host_in(network, to);
  if (from_host == to_host) return;
  ++network.puts;
  network.bytes[{from_host, to_host}] += bytes;
}

bool TestNetwork::keep_signal(uint32_t from, uint32_t to, std::function<void()> deliver) {
  State& network = state();
  const std::lock_guard lock(network.mutex);
  if (host_in(network, from) == host_in(network, to)) return false;
  ++network.signals;
  if (!network.holds) return false;
  network.held.push_back(std::move(deliver));
  return true;
}

}  // namespace mep

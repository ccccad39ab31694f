// For tests of several hosts within one process: which slots count as ranks of which host, how many
// transfers go between hosts, and a hold on them. While it is off, which is always outside of tests,
// a put costs one relaxed load more.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace mep {

// Relaxed: it changes only while there is no world.
extern std::atomic<bool> test_network_enabled;

class TestNetwork {
 public:
  // Before the world is made, and after it is gone. `hosts` by slot; later slots are on host 0.
  static void enable(std::vector<uint32_t> hosts);
  static void disable();
  static bool enabled() { return test_network_enabled.load(std::memory_order_relaxed); }
  static uint32_t host_of(uint32_t slot);

  // Between hosts, since enable() or the last clear_counts().
  static void clear_counts();
  static uint64_t puts();
  static uint64_t signals();
  // The bytes of puts from one host to another.
  static uint64_t bytes(uint32_t from_host, uint32_t to_host);

  // From now on signals between hosts are kept back, until release() delivers them in their order.
  static void hold();
  static size_t held();
  static void release();

  // For transports. True: the signal is kept back, `deliver` will be called for it.
  static void note_put(uint32_t from, uint32_t to, size_t bytes);
  static bool keep_signal(uint32_t from, uint32_t to, std::function<void()> deliver);
};

}  // namespace mep

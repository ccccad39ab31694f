// Comms of this rank with operations that are pending and no call inside: whoever waits, on whichever comm, looks at
// them too, since a peer may need them before it comes to what the call waits for. With a progress thread there are
// none; it looks at them itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "core/world/progress_thread.hpp"

namespace mep {

class PendingComms {
 public:
  // Relaxed: a hint. A thread sees what it has left pending itself.
  bool any() const { return count_.load(std::memory_order_relaxed) != 0; }
  // The same without the comm that the caller is inside of, where a look would be turned away.
  bool any_but(const ProgressClient* own) const {
    return count_.load(std::memory_order_relaxed) > (own->is_listed_ ? 1u : 0u);
  }
  // By the call that is inside the comm, at its end. Needs no memory. The flag is the comm's own: it changes only
  // while its gate is held, by a call or by a look.
  void add(ProgressClient* client) {
    if (!client->is_listed_) list(client);
  }
  // When it returns no look at the comm goes on.
  void remove(ProgressClient* client);
  // A look at each that nobody is inside of; never waits.
  void step();

 private:
  void list(ProgressClient* client);

  std::atomic<uint32_t> count_{0};
  std::mutex mutex_;  // guards the list, and is held over looks
  ProgressClient* first_ = nullptr;
};

}  // namespace mep

#include "transport/put_gate.hpp"

#include <ctime>

namespace mep {

bool PutGate::close(const Deadline& deadline) {
  // Acquire, here and below: what the passes that are over wrote is visible to the caller.
  uint32_t seen = state_.fetch_or(kClosed, std::memory_order_acq_rel);
  while ((seen & ~kClosed) != 0) {
    if (deadline.expired()) return false;
    constexpr timespec kPause{0, 50000};
    nanosleep(&kPause, nullptr);
    seen = state_.load(std::memory_order_acquire);
  }
  return true;
}

}  // namespace mep

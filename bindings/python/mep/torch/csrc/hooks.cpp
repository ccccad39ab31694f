#include "hooks.hpp"

#include <algorithm>

namespace mep_torch {

void ExtraTime::add(std::chrono::milliseconds time) {
  const std::lock_guard lock(sum_->mutex);
  sum_->all += std::max(time, std::chrono::milliseconds(0));
}

std::chrono::milliseconds ExtraTime::give(Share* share) const {
  const std::lock_guard lock(sum_->mutex);
  const std::chrono::milliseconds own = sum_->all - sum_->shared;
  if (own.count() > 0) {
    sum_->shared = sum_->all;
    // The deleter takes the time back, whichever way the work ends.
    *share = Share(static_cast<void*>(sum_.get()), [sum = sum_, own](void*) {
      const std::lock_guard end(sum->mutex);
      sum->all -= own;
      sum->shared -= own;
    });
  }
  return sum_->all;
}

uint64_t new_completion_key() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace mep_torch

#include "core/world/pending_comms.hpp"

namespace mep {

void PendingComms::list(ProgressClient* client) {
  const std::lock_guard lock(mutex_);
  client->is_listed_ = true;
  client->next_listed_ = first_;
  first_ = client;
  count_.fetch_add(1, std::memory_order_relaxed);
}

void PendingComms::remove(ProgressClient* client) {
  const std::lock_guard lock(mutex_);
  for (ProgressClient** place = &first_; *place != nullptr; place = &(*place)->next_listed_) {
    if (*place != client) continue;
    *place = client->next_listed_;
    client->is_listed_ = false;
    count_.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
}

void PendingComms::step() {
  // Another thread that waits is looking.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  for (ProgressClient** place = &first_; *place != nullptr;) {
    ProgressClient* const client = *place;
    if (!client->try_look()) {
      place = &client->next_listed_;
      continue;
    }
    const bool is_pending = client->look().pending;
    if (is_pending) {
      place = &client->next_listed_;
    } else {
      *place = client->next_listed_;
      client->is_listed_ = false;
      count_.fetch_sub(1, std::memory_order_relaxed);
    }
    client->leave_look();
  }
}

}  // namespace mep

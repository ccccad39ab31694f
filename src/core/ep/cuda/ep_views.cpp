#include "core/ep/cuda/ep_views.hpp"

#include <chrono>

#include "base/status.hpp"

namespace mep {

EpViews::View EpViews::latest() const {
  const std::lock_guard lock(mutex_);
  return latest_;
}

mep_result_t EpViews::take_number(uint32_t buffer, uint64_t epoch, const Deadline& deadline,
                                  View* now) {
  *now = {};
  std::unique_lock lock(mutex_);
  while (is_frozen_ && comm_.world().terminal_result() == MEP_SUCCESS) {
    const int left_ms = deadline.left_ms(100);
    if (left_ms == 0) return fail(MEP_ERR_TIMEOUT, "no decision on a view change has come");
    thawed_.wait_for(lock, std::chrono::milliseconds(left_ms));
  }
  Channel& channel = channels_[buffer];
  // Others have made this call in the view before.
  const bool is_behind = channel.made < channel.called;
  if (is_behind || latest_.view->epoch == epoch) {
    ++channel.made;
  } else {
    *now = latest_;
  }
  return MEP_SUCCESS;
}

void EpViews::describe(std::vector<membership::ChannelState>* channels) const {
  const std::lock_guard lock(mutex_);
  for (const Channel& channel : channels_) {
    channels->push_back({comm_.id(), channel.id, channel.made, channel.made});
  }
}

void EpViews::freeze(std::vector<membership::ChannelState>* channels) {
  {
    const std::lock_guard lock(mutex_);
    is_frozen_ = in_step();
  }
  describe(channels);
}

void EpViews::install(const std::shared_ptr<const CommChange>& change,
                      const membership::Proposal* committed) {
  const std::lock_guard lock(mutex_);
  is_frozen_ = false;
  thawed_.notify_all();
  if (change == nullptr) return;  // the epoch goes on
  for (Channel& channel : channels_) {
    const auto* decision = committed->decision(comm_.id(), channel.id);
    if (decision == nullptr) continue;
    channel.called = decision->called;
    if (change->joined) channel.made = decision->called;
  }
  latest_.view = change->view;
  if (!change->is_reported) return;
  latest_.reported = change->view->epoch;
  latest_.result = change->result;
  latest_.text = change->text;
}

}  // namespace mep

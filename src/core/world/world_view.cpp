#include "core/world/world_view.hpp"

#include <utility>

namespace mep {

membership::View WorldView::snapshot() const {
  const std::lock_guard lock(view_mutex_);
  return *view_;
}

void WorldView::set_callback(mep_view_callback_t callback, void* user) {
  const std::lock_guard lock(change_mutex_);
  callback_ = callback;
  callback_user_ = user;
}

void WorldView::publish(std::shared_ptr<const membership::View> view) {
  const std::lock_guard lock(view_mutex_);
  view_ = std::move(view);
}

void WorldView::note_change(uint64_t world_epoch, int32_t live) {
  const std::lock_guard lock(change_mutex_);
  if (callback_ != nullptr) callback_(callback_user_, world_epoch, live);
}

}  // namespace mep

// A world's views as user threads see them: the one that is installed, and how the change to it went.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "core/membership/membership.hpp"
#include "core/world/view_change_times.hpp"
#include "mep.h"

namespace mep {

class WorldView {
 public:
  membership::View snapshot() const;
  ViewChangeTimes last_change() const;
  void set_callback(mep_view_callback_t callback, void* user);

  // --- The control thread ---
  void publish(std::shared_ptr<const membership::View> view);
  // A change is over, `live` members are left: calls the user back.
  void note_change(const ViewChangeTimes& times, int32_t live);

 private:
  mutable std::mutex view_mutex_;  // guards the field below
  std::shared_ptr<const membership::View> view_;

  mutable std::mutex change_mutex_;  // guards the fields below; held while the user is called back
  ViewChangeTimes last_change_;
  mep_view_callback_t callback_ = nullptr;
  void* callback_user_ = nullptr;
};

}  // namespace mep

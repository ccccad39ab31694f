// A world's view as user threads see it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "core/membership/membership.hpp"
#include "mep.h"

namespace mep {

class WorldView {
 public:
  membership::View snapshot() const;
  void set_callback(mep_view_callback_t callback, void* user);

  // --- The control thread ---
  void publish(std::shared_ptr<const membership::View> view);
  // A change is over, `live` members are left: calls the user back.
  void note_change(uint64_t world_epoch, int32_t live);

 private:
  mutable std::mutex view_mutex_;  // guards the field below
  std::shared_ptr<const membership::View> view_;

  mutable std::mutex change_mutex_;  // guards the fields below; held while the user is called back
  mep_view_callback_t callback_ = nullptr;
  void* callback_user_ = nullptr;
};

}  // namespace mep

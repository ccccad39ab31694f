// Worlds without mapped memory: a bit of a test's config.flags that is none of the library's.
#pragma once

#include <stdlib.h>

#include "mep.h"

namespace mep_test {

inline constexpr uint32_t kPutOnly = 1u << 31;

// For a start: takes the bit out of `config`, and MEP_MAP is 0 for as long as this lives.
class MapScope {
 public:
  explicit MapScope(mep_comm_config_t* config) : put_only_((config->flags & kPutOnly) != 0) {
    config->flags &= ~kPutOnly;
    if (put_only_) setenv("MEP_MAP", "0", 1);
  }
  ~MapScope() {
    if (put_only_) unsetenv("MEP_MAP");
  }
  MapScope(const MapScope&) = delete;
  MapScope& operator=(const MapScope&) = delete;

 private:
  const bool put_only_;
};

}  // namespace mep_test

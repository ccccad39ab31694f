// When a start that takes long says whom it waits for: after five seconds, then every thirty.
#pragma once

#include <cstdint>

#include "base/clock.hpp"

namespace mep {

class WaitNotice {
 public:
  uint64_t at_ns() const { return next_.at_ns(); }
  // True once for each time.
  bool due() {
    if (!next_.expired()) return false;
    next_ = Deadline::after_ms(kAgainMs);
    return true;
  }
  unsigned seconds() const { return static_cast<unsigned>((now_ns() - begin_ns_) / 1'000'000'000); }

 private:
  static constexpr uint64_t kFirstMs = 5000;
  static constexpr uint64_t kAgainMs = 30000;
  uint64_t begin_ns_ = now_ns();
  Deadline next_ = Deadline::after_ms(kFirstMs);
};

}  // namespace mep

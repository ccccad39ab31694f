#include "core/operation/posting_gate.hpp"

#include <sched.h>

#include "base/clock.hpp"
#include "base/log.hpp"

namespace mep {

void PostingGate::await_empty(const char* comm) const {
  const Deadline limit = Deadline::after_ms(10'000);
  // Sequentially consistent: see PostingScope.
  while (inside_.load(std::memory_order_seq_cst) != 0) {
    if (limit.expired()) {
      log(LogLevel::kError, "comm %s: a thread is stuck in a copy", comm);
      return;
    }
    sched_yield();
  }
}

}  // namespace mep

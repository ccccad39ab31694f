// The text for people when a queue fails, thrown as PerfError.
#pragma once

#include <string>

#include "base/status.hpp"
#include "error.hpp"
#include "transport/gpu_queue/send_queue.hpp"

namespace mep::perf {

// For calls of the objects that this program has of the library: their texts are not those of mep_last_error().
inline void require_queue(mep_result_t result, const std::string& what) {
  if (result >= 0) return;
  throw PerfError(what + ": " + last_error_text());
}

// `what` was being measured; `posted` and `done` are requests of this run; `limit_s` is how long it was waited for.
std::string failure_text(const std::string& what, gpu_queue::Status status,
                         const gpu_queue::Queue& queue, uint64_t posted, uint64_t done,
                         double limit_s);

}  // namespace mep::perf

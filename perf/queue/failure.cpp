#include "queue/failure.hpp"

#include <cstdio>

#include "transport/gpu_queue/request_check.hpp"

namespace mep::perf {
namespace {

std::string number_of(double value) {
  char text[32];
  (void)std::snprintf(text, sizeof text, "%g", value);
  return text;
}

}  // namespace

std::string failure_text(const std::string& what, gpu_queue::Status status,
                         const gpu_queue::Queue& queue, uint64_t posted, uint64_t done,
                         double limit_s) {
  const std::string counts = std::to_string(done) + " of " + std::to_string(posted) +
                             (posted == 1 ? " request" : " requests") + " completed";
  if (status == gpu_queue::Status::kFailed) {
    const uint64_t error = gpu_queue::SystemMemory::load(&queue.error);
    return what + ": the NIC reports " + text_of(gpu_queue::unpack_error(error)) + "; " + counts;
  }
  const char* hint = done == 0        ? ": does the NIC see the doorbell?"
                     : done == posted ? ": a word did not arrive at the other end"
                                      : ": is -i too large?";
  return what + ": no end within " + number_of(limit_s) + " s; " + counts + hint;
}

}  // namespace mep::perf

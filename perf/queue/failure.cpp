#include "queue/failure.hpp"

#include <cstdio>

namespace mep::perf {
namespace {

// MLX5_CQE_SYNDROME_...
const char* meaning_of(uint8_t syndrome) {
  switch (syndrome) {
    case 0x01:
      return "wrong length";
    case 0x02:
      return "wrong request";
    case 0x04:
      return "no access to the local memory";
    case 0x05:
      return "flushed: the queue was stopped, or the error of an earlier request was overwritten";
    case 0x12:
      return "the other end takes no such request";
    case 0x13:
      return "no access to the memory of the other end";
    case 0x14:
      return "the other end failed";
    case 0x15:
      return "the other end does not answer";
    default:
      return "no known syndrome";
  }
}

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
    const gpu_queue::QueueError error =
        gpu_queue::unpack_error(gpu_queue::SystemMemory::load(&queue.error));
    char text[200];
    (void)std::snprintf(text, sizeof text,
                        "the NIC reports an error at request %u: syndrome 0x%02x (%s), vendor's "
                        "syndrome 0x%02x",
                        static_cast<unsigned>(error.wqe_counter),
                        static_cast<unsigned>(error.syndrome), meaning_of(error.syndrome),
                        static_cast<unsigned>(error.vendor));
    return what + ": " + text + "; " + counts;
  }
  const char* hint = done == 0        ? ": does the NIC see the doorbell?"
                     : done == posted ? ": a word did not arrive at the other end"
                                      : ": is -i too large?";
  return what + ": no end within " + number_of(limit_s) + " s; " + counts + hint;
}

}  // namespace mep::perf

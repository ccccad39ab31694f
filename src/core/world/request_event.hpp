// Wakes who polls the descriptor of a nonblocking operation.
//
// Peers ring a rank's doorbell, a futex in its world window, and that can only be slept on. One thread
// does so while there are descriptors, and makes each of them readable whenever the doorbell was rung, and
// once when its operation's time is over. Which operation a ring is for it does not know: it says that
// a look is worth while. The thread starts with the first descriptor.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/clock.hpp"
#include "base/unique_fd.hpp"
#include "mep.h"
#include "transport/doorbell.hpp"

namespace mep {

class RequestEvent {
 public:
  explicit RequestEvent(Doorbell* doorbell) : doorbell_(doorbell) {}
  ~RequestEvent();
  RequestEvent(const RequestEvent&) = delete;
  RequestEvent& operator=(const RequestEvent&) = delete;

  // A descriptor of its own for an operation that ends by that deadline; it is readable at once.
  [[nodiscard]] mep_result_t add(const Deadline& deadline, UniqueFd* event);
  // Before the descriptor is closed.
  void remove(const UniqueFd& event);

 private:
  void loop();
  uint64_t ring_all();

  Doorbell* const doorbell_;
  std::mutex mutex_;  // guards the fields below
  std::condition_variable changed_;
  std::map<int, Deadline> events_;  // never() once its deadline was told
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace mep

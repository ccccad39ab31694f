// The host's half of a StageMailbox: a thread that takes requests in order, has them served, and answers.
// It makes no CUDA call, so it runs while kernels wait for it. What serves a request must end by itself,
// as operations of a comm do.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "kernels/cuda/coll/stage_mailbox.hpp"
#include "mep.h"

namespace mep {

class StageServer {
 public:
  // Fills the answer but for its result, which it returns.
  using Serve =
      std::function<mep_result_t(const device::StageRequest& request, device::StageAnswer* answer)>;

  StageServer() = default;
  // No operation runs or will: later requests end by `closed`.
  ~StageServer();
  StageServer(const StageServer&) = delete;
  StageServer& operator=(const StageServer&) = delete;

  // `mailbox` is zeroed and outlives this. `what` names the operations in texts.
  [[nodiscard]] mep_result_t open(device::StageMailbox* mailbox, std::string what, Serve serve);
  void close();

  // How long kernels wait for one operation: longer than the host's may take.
  void set_bound_ms(uint64_t ms);
  // A request is open, as far as is known here.
  bool busy() const;
  // By what serves a request: a failure that is not how the request ends. The text is the thread's last error.
  void note_failure(mep_result_t result);
  // First failure since the last call.
  mep_result_t take_failure();

 private:
  void run();
  void answer(uint64_t number);

  device::StageMailbox* mailbox_ = nullptr;
  std::string what_;
  Serve serve_;
  std::atomic<bool> stop_{false};
  std::thread thread_;

  std::mutex failure_mutex_;  // guards the fields below
  mep_result_t failure_ = MEP_SUCCESS;
  std::string failure_text_;
  bool left_told_ = false;
};

}  // namespace mep

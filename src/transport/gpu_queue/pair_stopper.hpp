// Gives an adapter the commands that stop its queue pairs, in a thread of its own: callers wait no longer than they can,
// also where the adapter hangs.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "base/clock.hpp"
#include "mep.h"

namespace mep::gpu_queue::mlx5 {

class PairStopper {
 public:
  // One pair's. It lives until remove().
  struct Stop {
    std::function<mep_result_t()> command;  // of the thread; throws nothing
    std::optional<mep_result_t> result{};   // this and `next` are the stopper's
    Stop* next = nullptr;
  };

  PairStopper() = default;
  ~PairStopper();
  PairStopper(const PairStopper&) = delete;
  PairStopper& operator=(const PairStopper&) = delete;

  // Once.
  [[nodiscard]] mep_result_t start();
  // Any thread, once for each Stop. The command's result; MEP_ERR_TIMEOUT at the deadline, and at once while an earlier
  // command is overdue. The thread gives the command in any case, when the adapter works again.
  [[nodiscard]] mep_result_t run(Stop* stop, const Deadline& deadline);
  // Nobody is in run() with it. Waits for a command that has begun, which may take as long as the firmware takes.
  void remove(const Stop* stop);

 private:
  void loop();

  std::thread thread_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  Stop* asked_ = nullptr;    // the first of those whose commands have not begun
  Stop* running_ = nullptr;  // null: no command has begun
  bool is_overdue_ = false;  // a deadline was over before a command was
  bool ends_ = false;
};

}  // namespace mep::gpu_queue::mlx5

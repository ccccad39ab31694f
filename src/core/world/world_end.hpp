// How a world ends for this rank: by its own leaving, or by something that all its calls answer from then on.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "base/clock.hpp"
#include "mep.h"

namespace mep {

class WorldEnd {
 public:
  // How the world of a joiner ends that has to begin again.
  static constexpr mep_result_t kMissedRank = MEP_ERR_PEER_FAILED;

  // MEP_SUCCESS while the world works; else what every call answers from now on. Relaxed: callers
  // that see it late wait on a frozen channel and look again.
  mep_result_t result() const { return result_.load(std::memory_order_relaxed); }
  // For a call that the world's end cut short.
  mep_result_t fail_as_ended() const;
  // Until LEFT was said, or the world has ended otherwise.
  void await_left(const Deadline& deadline);

  // Any thread. The first result stays.
  void set(mep_result_t result);
  // The control thread.
  void note_left();

 private:
  std::atomic<mep_result_t> result_{MEP_SUCCESS};
  std::mutex mutex_;  // guards the field below
  std::condition_variable changed_;
  bool left_ = false;
};

}  // namespace mep

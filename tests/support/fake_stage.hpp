// An ordinary thread in the role of the kernel that exchanges with the host: the device's half of a
// StageMailbox, as src/kernels/cuda/coll/stage_device.cuh has it, in words of its own.
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>

#include "kernels/cuda/coll/stage_mailbox.hpp"
#include "mep.h"

namespace mep_test {

class FakeStageKernel {
 public:
  explicit FakeStageKernel(mep::device::StageMailbox* box) : box_(box) {}

  // Posts and waits, at most bound_ms; 0: the bound in the mailbox.
  mep::device::StageAnswer exchange(const mep::device::StageRequest& request,
                                    uint64_t bound_ms = 0) {
    if (ended_ != 0) return failed(ended_);
    box_->request = request;
    word(box_->posted).store(++number_, std::memory_order_release);
    const uint64_t begin = now();
    const uint64_t bound =
        bound_ms != 0 ? bound_ms * 1'000'000 : word(box_->bound_ns).load(std::memory_order_acquire);
    while (word(box_->answered).load(std::memory_order_acquire) != number_) {
      const uint64_t closed = word(box_->closed).load(std::memory_order_acquire);
      if (closed != 0) return failed(static_cast<mep_result_t>(closed));
      if (now() - begin < bound) {
        const timespec pause{0, 2'000};
        (void)nanosleep(&pause, nullptr);
        continue;
      }
      word(box_->left).store(number_, std::memory_order_release);
      ended_ = MEP_ERR_TIMEOUT;
      return failed(ended_);
    }
    return box_->answer;
  }

 private:
  static std::atomic_ref<uint64_t> word(uint64_t& at) { return std::atomic_ref<uint64_t>(at); }
  static uint64_t now() {
    timespec time{};
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
  }
  static mep::device::StageAnswer failed(mep_result_t result) {
    mep::device::StageAnswer answer{};
    answer.result = result;
    return answer;
  }

  mep::device::StageMailbox* box_;
  uint64_t number_ = 0;
  mep_result_t ended_ = 0;
};

}  // namespace mep_test

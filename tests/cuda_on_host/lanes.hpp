// Threads of a kernel on the host. A CTA is one thread of the process, and its lanes are fibers of that thread, which
// run in turn and give way where they wait: at a barrier, in __nanosleep(). So all CTAs of a kernel run side by side
// like those of a GPU, and what lanes of one CTA do is never torn.
//
// A kernel whose lanes wait for each other in a circle ends the process with a line that says so.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

namespace cuda_on_host {

constexpr uint32_t kWarpLanes = 32;
constexpr uint32_t kBarriers = 16;  // of a CTA, by number

// Lanes that arrive meet when enough have: then the turn changes.
struct Barrier {
  uint32_t arrived = 0;
  uint32_t turn = 0;
  bool all = true;  // of the votes of this turn
  bool any = false;
  bool was_all = true;  // of the turn before
  bool was_any = false;

  void arrive(bool vote, uint32_t needed) {
    all = all && vote;
    any = any || vote;
    if (++arrived >= needed) end_turn();
  }
  void end_turn() {
    arrived = 0;
    was_all = all;
    was_any = any;
    all = true;
    any = false;
    ++turn;
  }
};

class Cta;
extern thread_local Cta* current_cta;  // that runs on this thread

struct Lane {
  uint3 thread{};
  uint32_t number = 0;  // in the CTA
  void* stack_pointer = nullptr;
  const uint32_t* awaited = nullptr;  // the lane waits while *awaited is awaited_turn
  uint32_t awaited_turn = 0;
  bool polls = false;  // it gave way for others, and waits for nothing of this CTA
  bool has_ended = false;
};

struct WarpMeeting {
  uint32_t mask = 0;
  uint32_t arrived = 0;
  uint32_t turn = 0;
};

struct Warp {
  std::array<uint64_t, kWarpLanes> given{};
  std::vector<std::unique_ptr<WarpMeeting>> meetings;  // one for each mask that was used
  uint32_t live = 0;
};

struct Launch {
  std::function<void()> kernel;  // with its arguments
  dim3 ctas;
  dim3 threads;
  size_t shared_bytes = 0;
};

// A CTA that runs on the calling thread.
class Cta {
 public:
  explicit Cta(const Launch& launch);

  // All lanes to their end.
  void run(uint3 index);

  // --- For the lane that runs ---
  static Cta& current() { return *current_cta; }
  const Lane& lane() const { return *lane_; }
  uint3 index() const { return index_; }
  const Launch& launch() const { return launch_; }
  void* shared() { return shared_.data(); }
  void wait(uint32_t barrier, uint32_t threads, bool vote);
  void arrive(uint32_t barrier, uint32_t threads);
  const Barrier& barrier(uint32_t number) const { return barriers_[number]; }
  uint32_t live_lanes() const { return live_; }
  // Lets the other lanes run.
  void give_way();

  void meet_warp(uint32_t mask);
  // Each lane of the mask gives a value and sees those of the others until it calls again.
  template <typename Type>
  void exchange(uint32_t mask, Type value) {
    static_assert(sizeof(Type) <= sizeof(uint64_t));
    std::memcpy(&warp().given[lane_->number % kWarpLanes], &value, sizeof value);
    meet_warp(mask);
  }
  template <typename Type>
  Type given_by(uint32_t lane) {
    Type value;
    std::memcpy(&value, &warp().given[lane % kWarpLanes], sizeof value);
    return value;
  }

 private:
  friend void run_lane();

  Warp& warp() { return warps_[lane_->number / kWarpLanes]; }
  void prepare();
  void resume(Lane* lane);
  void suspend();
  void end_lane(Lane* lane);
  [[noreturn]] void report_circle() const;

  const Launch& launch_;
  uint3 index_{};
  std::vector<Lane> lanes_;
  std::vector<Warp> warps_;
  std::vector<uint4> shared_;
  std::array<Barrier, kBarriers> barriers_{};
  Lane* lane_ = nullptr;
  uint32_t live_ = 0;
  void* scheduler_ = nullptr;  // the stack pointer of run()
};

// Runs all CTAs of a launch and returns when they have ended.
void run_grid(const Launch& launch);

}  // namespace cuda_on_host

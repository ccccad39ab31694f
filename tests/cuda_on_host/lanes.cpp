#include "cuda_on_host/lanes.hpp"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#if !defined(__x86_64__)
#error "lanes.cpp switches the stacks of x86-64 only"
#endif

// Keeps what a call has to keep on this stack, leaves its pointer in *from, and goes on where `to` was left.
extern "C" void cuda_on_host_switch(void** from, void* to);
asm(R"(
.text
.globl cuda_on_host_switch
.hidden cuda_on_host_switch
.type cuda_on_host_switch, @function
cuda_on_host_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cuda_on_host_switch, .-cuda_on_host_switch
)");

namespace cuda_on_host {
namespace {

constexpr size_t kStackBytes = 256 << 10;  // of a lane; pages that no lane touched cost nothing
constexpr size_t kMostLanes = 1024;
constexpr uint32_t kSavedRegisters = 6;
constexpr uint32_t kMostThreads = 64;      // of a launch; more CTAs run one after another
constexpr uint32_t kPassesToSleep = 2000;  // in which all lanes polled

// The stacks of the lanes that this thread runs.
class Stacks {
 public:
  Stacks()
      : memory_(mmap(nullptr, kStackBytes * kMostLanes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (memory_ == MAP_FAILED) {
      std::fprintf(stderr, "cuda_on_host: no memory for the stacks of a CTA\n");
      std::abort();
    }
  }
  ~Stacks() { (void)munmap(memory_, kStackBytes * kMostLanes); }
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  void** top(uint32_t lane) const {
    return reinterpret_cast<void**>(static_cast<std::byte*>(memory_) + kStackBytes * (lane + 1));
  }

 private:
  void* memory_;
};

// Threads that wait for CTAs to run. They stay until the process ends.
class Workers {
 public:
  static Workers& all() {
    static auto* const workers = new Workers;  // never destroyed: threads wait in it
    return *workers;
  }
  void run(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    if (work_.size() > idle_) {
      std::thread([this] { serve(); }).detach();
    } else {
      changed_.notify_one();
    }
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      while (work_.empty()) {
        ++idle_;
        changed_.wait(lock);
        --idle_;
      }
      const std::function<void()> work = std::move(work_.back());
      work_.pop_back();
      lock.unlock();
      work();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::function<void()>> work_;
  size_t idle_ = 0;
};

}  // namespace

thread_local Cta* current_cta = nullptr;

// A lane's first and last function.
void run_lane() {
  Cta& cta = *current_cta;
  cta.launch_.kernel();
  cta.end_lane(cta.lane_);
  cta.suspend();
}

Cta::Cta(const Launch& launch)
    : launch_(launch),
      lanes_(size_t{launch.threads.x} * launch.threads.y * launch.threads.z),
      warps_((lanes_.size() + kWarpLanes - 1) / kWarpLanes),
      shared_(launch.shared_bytes / sizeof(uint4) + 1) {}

void Cta::prepare() {
  static thread_local const Stacks stacks;
  const dim3 threads = launch_.threads;
  live_ = static_cast<uint32_t>(lanes_.size());
  barriers_ = {};
  for (Warp& warp : warps_) warp.live = 0;
  for (uint32_t number = 0; number < live_; ++number) {
    Lane& lane = lanes_[number];
    lane = {};
    lane.number = number;
    lane.thread = {number % threads.x, number / threads.x % threads.y,
                   number / threads.x / threads.y};
    warps_[number / kWarpLanes].live |= 1U << number % kWarpLanes;
    // The first switch takes registers, the address to go to, and a return address that nobody uses.
    void** top = stacks.top(number);
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(&run_lane);
    for (uint32_t i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
    lane.stack_pointer = top;
  }
}

void Cta::run(uint3 index) {
  index_ = index;
  prepare();
  current_cta = this;
  uint32_t idle_passes = 0;
  while (live_ != 0) {
    bool has_moved = false;
    bool has_polled = false;
    for (Lane& lane : lanes_) {
      if (lane.has_ended) continue;
      if (lane.awaited != nullptr && *lane.awaited == lane.awaited_turn) continue;
      lane.awaited = nullptr;
      lane.polls = false;
      resume(&lane);
      (lane.polls ? has_polled : has_moved) = true;
    }
    if (has_moved) {
      idle_passes = 0;
    } else if (!has_polled) {
      report_circle();
    } else if (++idle_passes < kPassesToSleep) {
      (void)sched_yield();
    } else {
      (void)usleep(100);
    }
  }
  current_cta = nullptr;
}

void Cta::resume(Lane* lane) {
  lane_ = lane;
  cuda_on_host_switch(&scheduler_, lane->stack_pointer);
}

void Cta::suspend() {
  cuda_on_host_switch(&lane_->stack_pointer, scheduler_);
}

void Cta::give_way() {
  lane_->polls = true;
  suspend();
}

void Cta::wait(uint32_t number, uint32_t threads, bool vote) {
  Barrier& barrier = barriers_[number];
  lane_->awaited_turn = barrier.turn;
  barrier.arrive(vote, threads);
  if (barrier.turn != lane_->awaited_turn) return;
  lane_->awaited = &barrier.turn;
  suspend();
}

void Cta::arrive(uint32_t number, uint32_t threads) {
  barriers_[number].arrive(true, threads);
}

void Cta::meet_warp(uint32_t mask) {
  Warp& warp = this->warp();
  WarpMeeting* meeting = nullptr;
  for (const auto& each : warp.meetings) {
    if (each->mask == mask) meeting = each.get();
  }
  if (meeting == nullptr) {
    warp.meetings.push_back(std::make_unique<WarpMeeting>());
    meeting = warp.meetings.back().get();
    meeting->mask = mask;
  }
  meeting->arrived |= 1U << lane_->number % kWarpLanes;
  if ((meeting->arrived & warp.live) == (mask & warp.live)) {
    meeting->arrived = 0;
    ++meeting->turn;
    return;
  }
  lane_->awaited_turn = meeting->turn;
  lane_->awaited = &meeting->turn;
  suspend();
}

// The others wait for it no more.
void Cta::end_lane(Lane* lane) {
  lane->has_ended = true;
  --live_;
  Warp& warp = this->warp();
  warp.live &= ~(1U << lane->number % kWarpLanes);
  for (const auto& meeting : warp.meetings) {
    const uint32_t arrived = meeting->arrived & warp.live;
    if (arrived == 0 || arrived != (meeting->mask & warp.live)) continue;
    meeting->arrived = 0;
    ++meeting->turn;
  }
  if (barriers_[0].arrived != 0 && barriers_[0].arrived >= live_) barriers_[0].end_turn();
}

void Cta::report_circle() const {
  std::fprintf(stderr, "cuda_on_host: CTA %u of %u: its %u lanes wait for each other:", index_.x,
               launch_.ctas.x, live_);
  for (uint32_t number = 0; number < kBarriers; ++number) {
    if (barriers_[number].arrived == 0) continue;
    std::fprintf(stderr, " %u at barrier %u", barriers_[number].arrived, number);
  }
  for (size_t number = 0; number < warps_.size(); ++number) {
    for (const auto& meeting : warps_[number].meetings) {
      if (meeting->arrived == 0) continue;
      std::fprintf(stderr, " lanes %08x of warp %zu for %08x", meeting->arrived, number,
                   meeting->mask);
    }
  }
  std::fprintf(stderr, "\n");
  std::abort();
}

void run_grid(const Launch& launch) {
  const uint32_t total = launch.ctas.x * launch.ctas.y * launch.ctas.z;
  std::atomic<uint32_t> next{0};
  const auto run_ctas = [&] {
    Cta cta(launch);
    // Relaxed: it deals numbers; the launch was there before the thread was woken.
    for (uint32_t i = next.fetch_add(1, std::memory_order_relaxed); i < total;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      cta.run({i % launch.ctas.x, i / launch.ctas.x % launch.ctas.y,
               i / launch.ctas.x / launch.ctas.y});
    }
  };
  const uint32_t others = std::min(total, kMostThreads) - 1;
  std::mutex mutex;
  std::condition_variable ended;
  uint32_t running = others;
  for (uint32_t i = 0; i < others; ++i) {
    Workers::all().run([&] {
      run_ctas();
      const std::lock_guard lock(mutex);
      if (--running == 0) ended.notify_one();
    });
  }
  run_ctas();
  std::unique_lock lock(mutex);
  ended.wait(lock, [&] { return running == 0; });
}

}  // namespace cuda_on_host

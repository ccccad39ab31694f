// A function on a stack of its own that runs until it yields. Fibers of one thread; a switch makes no system call.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <memory>

namespace mep_test {

class Fiber {
 public:
  explicit Fiber(std::function<void()> body)
      : body_(std::move(body)), stack_(new unsigned char[kStackBytes]) {
    getcontext(&start_);
    start_.uc_stack.ss_sp = stack_.get();
    start_.uc_stack.ss_size = kStackBytes;
    start_.uc_link = nullptr;
    makecontext(&start_, &Fiber::enter, 0);
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  bool ended() const { return ended_; }

  // Until the body yields or ends. A fiber that is destroyed before it has ended just stops.
  void resume() {
    running_ = this;
    if (_setjmp(outside_) == 0) {
      if (!started_) {
        started_ = true;
        setcontext(&start_);
      }
      _longjmp(inside_, 1);
    }
  }
  static void yield() {
    Fiber* self = running_;
    if (_setjmp(self->inside_) == 0) _longjmp(self->outside_, 1);
  }

 private:
  static constexpr size_t kStackBytes = size_t{64} << 10;
  static void enter() {
    running_->body_();
    running_->ended_ = true;
    _longjmp(running_->outside_, 1);
  }

  static inline Fiber* running_ = nullptr;
  std::function<void()> body_;
  std::unique_ptr<unsigned char[]> stack_;
  ucontext_t start_;
  jmp_buf inside_;
  jmp_buf outside_;
  bool started_ = false;
  bool ended_ = false;
};

}  // namespace mep_test

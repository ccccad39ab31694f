// The thread that ends works for which somebody has asked a future, without a call of the program.
//
// MEP's progress thread carries operations on; this one sleeps in poll() until one of them has ended, and
// runs what waits for the future. It starts with the first future.
#pragma once

#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <c10/util/intrusive_ptr.h>

namespace mep_torch {

class MepWork;

class Completer {
 public:
  Completer();
  ~Completer();
  Completer(const Completer&) = delete;
  Completer& operator=(const Completer&) = delete;

  void watch(c10::intrusive_ptr<MepWork> work);
  // Joins the thread; what it watched is ended by whoever waits for it.
  void stop();

 private:
  void loop();
  void wake() const;

  const int wake_fd_;
  std::mutex mutex_;  // guards the fields below
  std::vector<c10::intrusive_ptr<MepWork>> arrived_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace mep_torch

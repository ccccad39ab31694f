// The threads that end works without a call of the program: at once those for which somebody has asked a future, and
// within kLongestSleepMs those of communicators on patrol, whose ends hooks are told.
//
// MEP's progress thread carries operations on. One of these threads sleeps in poll() until an operation has ended; it then
// leaves that place to another one and runs what waits for the future, which may itself wait for operations. The first
// starts with the first future, a further one when all others are busy so.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <c10/util/intrusive_ptr.h>

namespace mep_torch {

class Communicator;
class MepWork;

class Completer {
 public:
  Completer();
  ~Completer();
  Completer(const Completer&) = delete;
  Completer& operator=(const Completer&) = delete;

  void watch(c10::intrusive_ptr<MepWork> work);
  // Sweeps the communicator now and then, until nothing is pending on it.
  void patrol(std::shared_ptr<Communicator> comm);
  // Joins the threads; what they watched is ended by whoever waits for it.
  void stop();

 private:
  using Works = std::vector<c10::intrusive_ptr<MepWork>>;

  void loop();
  // Works that have ended, at least one unless the threads stop. The lock is released while this sleeps.
  Works await_ended(std::unique_lock<std::mutex>* lock);
  void wake() const;

  // With the mutex held: gives the threads something new to do.
  void rouse();

  const int wake_fd_;
  Works watched_;                                         // of the thread that polls
  std::vector<std::shared_ptr<Communicator>> patrolled_;  // likewise
  std::mutex mutex_;                                      // guards the fields below
  std::condition_variable turn_;
  Works arrived_;
  std::vector<std::shared_ptr<Communicator>> to_patrol_;
  bool stopping_ = false;
  bool is_polled_ = false;
  size_t idle_ = 0;  // threads that wait for their turn
  std::vector<std::thread> threads_;
};

}  // namespace mep_torch

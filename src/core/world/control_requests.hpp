// Requests of threads to the control thread, in order. A thread that waits for its request brings the place for it
// along, so that waiting needs no memory; a request that nobody waits for is kept.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

#include "base/function_ref.hpp"

namespace mep {

class ControlRequests {
 public:
  ControlRequests() = default;
  ~ControlRequests() { close(); }
  ControlRequests(const ControlRequests&) = delete;
  ControlRequests& operator=(const ControlRequests&) = delete;

  // --- Any thread. `ring` wakes the control thread; it is called under the lock. ---

  // Dropped if nobody takes requests any more.
  void post(std::function<void()> request, FunctionRef<void()> ring);
  // Waits for its end, or for close(). False: it did not run, or threw.
  bool call(FunctionRef<void()> request, FunctionRef<void()> ring);

  // --- The control thread ---

  void open();
  // Runs what was asked before this call. It throws what a request throws; the thread then calls close().
  void run();
  // Drops what is left. From here on nothing is taken.
  void close();

 private:
  struct Request {
    Request* next = nullptr;
    std::function<void()> owned;                    // of a request that nobody waits for
    const FunctionRef<void()>* borrowed = nullptr;  // of the others
    bool ran = false;
    bool finished = false;  // under mutex_
  };

  bool push(Request* request, FunctionRef<void()> ring);
  Request* take_all(bool last);
  void finish(Request* request);

  std::mutex mutex_;  // guards the three below, and Request::finished
  Request* first_ = nullptr;
  Request* last_ = nullptr;
  bool open_ = false;
  std::condition_variable finished_;
  Request* running_ = nullptr;  // the control thread's: those of run(), from the present one on
};

}  // namespace mep

// Carries pending operations on while their program does something else (MEP_COMM_PROGRESS_THREAD).
//
// One thread for a world of this process. A call that leaves operations pending hands its comm over: the thread
// looks at it until nothing is pending there, or until a call comes in between, which sees to the operations itself
// and hands over what is left. It looks again and again while something moves, giving its core away in between;
// then it sleeps on the rank's doorbell, as every wait does, until a peer or a deadline asks for a look. With
// nothing pending it sleeps on a timer, and nobody rings.
//
// A call that begins an operation has looked itself, and its program often waits for the operation next. A thread that
// wakes up meanwhile takes the core of the waiting one, or makes it wait for the end of a look. So a call does not
// wake the sleeping thread: it sets the timer, and each further call on the same comm sets it back.
//
// Invariants
//   - A comm is pending here from the end of a call that left something pending until a look that found nothing
//     left, or found a call inside.
//   - A look never waits for a peer. The one thing that it may wait for, within a bound, is the windows of
//     joiners, which they have offered before they were let in.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

#include "base/unique_fd.hpp"
#include "core/world/wait.hpp"
#include "mep.h"
#include "transport/doorbell.hpp"

namespace mep {

// The outcome of a look.
struct Progress {
  static constexpr uint64_t kNoDeadline = std::numeric_limits<uint64_t>::max();
  bool pending = true;                 // something is left to look for
  bool advanced = false;               // so another look may be worth while at once
  uint64_t deadline_ns = kNoDeadline;  // the next look is due then at the latest
};

// A comm. All functions are called by the progress thread, or by a thread that waits on another comm
// (PendingComms).
class ProgressClient {
 public:
  virtual ~ProgressClient() = default;
  // False: a call is inside, which will begin the client anew if it leaves something pending.
  virtual bool enter_look() = 0;
  // The same, and nobody is told that this look was turned away.
  virtual bool try_look() = 0;
  // Does not throw.
  virtual Progress look() = 0;
  virtual void leave_look() = 0;

 private:
  friend class ProgressThread;
  friend class PendingComms;
  bool is_pending_ = false;                // under the thread's mutex
  bool is_listed_ = false;                 // see PendingComms
  ProgressClient* next_listed_ = nullptr;  // under its mutex
};

class ProgressThread {
 public:
  // `doorbell` and what `policy` points to outlive this object.
  ProgressThread(Doorbell* doorbell, const WaitPolicy& policy);
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  // --- The user's threads ---
  // Before begin(). The thread starts with the first client.
  [[nodiscard]] mep_result_t attach(ProgressClient* client);
  // Returns when no look at it goes on. Does nothing for a client that was not attached.
  void detach(ProgressClient* client);
  // Something is pending; by the call that is inside. Needs no memory.
  void begin(ProgressClient* client);

  // While one lives there is no look.
  class Pause {
   public:
    explicit Pause(ProgressThread* thread);  // null: there is none
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    ProgressThread* const thread_;
  };

 private:
  void loop();
  bool await_pending();
  void wake_in(uint64_t delay_ns);
  bool look_at_all();
  bool look_at(size_t index, Progress* progress);
  bool may_look() const { return !stopping_ && pauses_ == 0 && pending_ != 0; }

  Doorbell* const doorbell_;
  const WaitPolicy policy_;
  UniqueFd timer_;  // wakes the thread up while nothing is pending; opened before it starts
  uint64_t due_ns_ = Progress::kNoDeadline;  // the thread's own

  std::mutex mutex_;  // guards the fields below
  std::condition_variable looked_;
  std::vector<ProgressClient*> clients_;
  uint32_t pending_ = 0;  // clients
  uint32_t pauses_ = 0;
  const ProgressClient* looked_at_ = nullptr;
  bool has_begun_ = false;   // a client, since the last round of looks began
  bool is_waiting_ = false;  // on the doorbell, or about to
  bool stopping_ = false;
  uint64_t timer_due_ns_ = 0;
  std::thread thread_;
};

}  // namespace mep

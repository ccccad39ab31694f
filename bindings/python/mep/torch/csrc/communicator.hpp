// One mep_comm_t, who is inside of it, and the work on it that has not ended.
//
// MEP refuses a second thread inside a communicator. Threads of a program that use one process group wait
// for each other here instead: each call is made with the mutex held.
#pragma once

#include <mep.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/intrusive_ptr.h>

namespace mep_torch {

class MepWork;

// A thread sleeps at most so long until a descriptor is readable: a bound on what a lost event could cost.
constexpr int kLongestSleepMs = 100;

// Throws with MEP's text, if the result is an error: NotImplementedError for what is not built, else
// torch.distributed.DistBackendError.
void check(mep_result_t result, const char* what);
// Whether members failed or left: the communicator goes on without them.
bool is_loss(mep_result_t result);
// Whether the others went on without this rank, which may join them again.
bool is_exclusion(mep_result_t result);
// Whether it is a failure that calls for a look at what happened: no loss, which a group survives, and no end that the
// program gave the group itself.
bool is_breakdown(mep_result_t result);
// The same error, to be thrown by Work::wait.
std::exception_ptr error_of(mep_result_t result, const char* what);
// That the group is no more, which MEP was not asked about.
std::exception_ptr closed_error(const char* what);
// A timeout in the form of MEP: from 1 ms up.
uint32_t to_ms(std::chrono::milliseconds timeout);

// A mutex whose holder can see that it is wanted, and makes way.
class WantedMutex {
 public:
  void lock() {
    wanting_.fetch_add(1, std::memory_order_relaxed);
    mutex_.lock();
    wanting_.fetch_sub(1, std::memory_order_relaxed);
  }
  bool try_lock() {
    const bool owns = mutex_.try_lock();
    // The next try comes soon, or when something has ended.
    if (!owns) was_missed_.store(true, std::memory_order_relaxed);
    return owns;
  }
  // Unlike after try_lock(), the holder does not make way.
  bool try_lock_unnoticed() { return mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }
  // Relaxed: the mutex orders all. Held: whether another thread waits for it, or has tried to get it since this was asked.
  bool is_wanted() {
    return was_missed_.exchange(false, std::memory_order_relaxed) ||
           wanting_.load(std::memory_order_relaxed) != 0;
  }

 private:
  std::mutex mutex_;
  std::atomic<int> wanting_{0};
  std::atomic<bool> was_missed_{false};
};

class Communicator {
 public:
  using Pending = std::list<c10::intrusive_ptr<MepWork>>;

  // Without a handle until open().
  Communicator();
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Any thread, without the mutex: NULL before open() and after close().
  mep_comm_t handle() const { return handle_; }
  // Relaxed: says only that some operation has failed.
  bool has_failed() const { return has_failed_.load(std::memory_order_relaxed); }
  void note_failure() { has_failed_.store(true, std::memory_order_relaxed); }
  // Whether an operation has told, since open(), that the others went on without this rank.
  bool is_excluded() const { return is_excluded_.load(std::memory_order_relaxed); }
  void note_exclusion() { is_excluded_.store(true, std::memory_order_relaxed); }
  // A child of fork() must not touch what the parent's threads may have held.
  bool is_forked() const;
  // Ranks in the present view. Throws DistBackendError.
  std::vector<int> living() const;
  // The number of the world's view that its own follows from; 0 without a handle.
  uint64_t world_epoch() const;

  // --- With the mutex held ---
  WantedMutex& mutex() { return mutex_; }
  // Whether open() is still to come: operations concern this rank alone until then.
  bool is_awaited() const { return is_awaited_; }
  // The timeout of operations that begin from now on.
  void set_timeout(std::chrono::milliseconds timeout);
  Pending& pending() { return pending_; }
  // Another handle takes the place of the present one, which is returned. Nothing is pending.
  mep_comm_t replace(mep_comm_t handle);
  // Ends what has ended, in the order in which it began. Whom to announce to is appended to *ended.
  void sweep(std::vector<c10::intrusive_ptr<MepWork>>* ended);
  // Whether the caller is to give it to Completer::patrol(), which does not have it yet.
  bool starts_patrol() { return !std::exchange(is_patrolled_, true); }

  // --- Without it ---
  // sweep(), unless somebody holds the mutex. True: nothing is left, and the patrol is over.
  bool patrol(std::vector<c10::intrusive_ptr<MepWork>>* ended);
  // It belongs to this object from now on.
  void open(mep_comm_t handle);
  // Ends what is pending on all its members, with an error.
  void revoke() const;
  // Waits for what is pending, at most `patience`, gives up what is left, and destroys the communicator.
  // False: it is still in use, and goes with its world.
  bool close(std::chrono::milliseconds patience);
  // After close(): another open() is to come.
  void expect();

 private:
  mep_comm_t handle_ = nullptr;
  bool is_awaited_ = true;
  const pid_t owner_;
  std::atomic<bool> has_failed_{false};
  std::atomic<bool> is_excluded_{false};
  WantedMutex mutex_;
  Pending pending_;
  bool is_patrolled_ = false;
  uint32_t timeout_ms_ = 0;  // 0: not known
};

}  // namespace mep_torch

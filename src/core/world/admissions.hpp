// How a call waits for the view that answers it: a member's for the one that lets joiners in, a joiner's for
// the one that it is in.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "core/membership/membership.hpp"
#include "core/world/world_end.hpp"
#include "mep.h"

namespace mep {

class ControlThread;

// The view that answered a recover call.
struct Admission {
  std::vector<uint32_t> added;                   // slots that it let in
  std::shared_ptr<const membership::View> view;  // null: none has answered
};

class Admissions {
 public:
  Admissions(ControlThread& control, const WorldEnd& end, uint32_t self_slot)
      : control_(control), end_(end), self_slot_(self_slot) {}
  Admissions(const Admissions&) = delete;
  Admissions& operator=(const Admissions&) = delete;

  // The collective recover call: waits until the view that answers it. Meanwhile the thread calls prepare(), now and at least
  // every 100 ms; its first error is the result, once the call is answered.
  [[nodiscard]] mep_result_t recover(const membership::SlotSet& wanted, const Deadline& deadline,
                                     const std::function<mep_result_t()>& prepare,
                                     Admission* admission);
  // Why the last joiner for the slot did not come in, as far as this rank knows; or nothing.
  std::string refusal(uint32_t slot) const;
  // Joiners whose links to this rank are tested.
  uint32_t ready_joiners() const { return ready_joiners_.load(std::memory_order_relaxed); }

  // The start of this rank is over; the comm of the world and its backend are made.
  void begin();
  // This rank is a joiner; before the control thread starts.
  void begin_entering() { entering_ = joining_ = true; }
  // A joiner: says that it is ready and waits until it is in the view.
  [[nodiscard]] mep_result_t enter(const Deadline& deadline, Admission* admission);
  // For a joiner whose world ended before that: nobody evicts who was never in.
  [[nodiscard]] static mep_result_t fail_outside();
  // A joiner that is not in the view yet.
  bool entering() const { return entering_; }
  // A joiner that makes and meets what it was told of: others have offered their parts before they said that they are
  // ready, or have none.
  bool joining() const { return joining_; }
  void end_joining() { joining_ = false; }

  // --- The control thread ---
  // `joined`: this rank is in the view from now on.
  void answer(uint64_t seq, Admission admission, bool joined);
  // Why the last joiner for the slot did not come in.
  void note_refusal(uint32_t slot, const std::string& text);
  void note_ready_joiners(uint32_t count) {
    ready_joiners_.store(count, std::memory_order_relaxed);
  }

 private:
  ControlThread& control_;
  const WorldEnd& end_;
  const uint32_t self_slot_;
  bool entering_ = false;  // the user's thread's
  bool joining_ = false;   // likewise
  // Written by the control thread; relaxed: a hint for barriers that admit joiners.
  std::atomic<uint32_t> ready_joiners_{0};

  mutable std::mutex mutex_;  // guards the fields below
  std::condition_variable answered_;
  uint64_t recover_calls_ = 0;
  uint64_t recover_answered_ = 0;
  bool joined_ = false;
  Admission admission_;                       // by the view that answered
  std::map<uint32_t, std::string> refusals_;  // by slot
};

}  // namespace mep

// Named points at which a process can be made to die or to stop, or a thread to pause: MEP_FAILPOINT("name"). For tests
// and mep_chaos. They are always compiled in; while none is armed a point costs one relaxed load. Every
// MEP_TEST_DELAY_POINT is a failpoint too.
//
// Armed by the environment, MEP_FAILPOINT="NAME[:NTH]=ACTION[,..]", read when a world is made, or by
// failpoint_arm(). ACTION is kill (SIGKILL to the own process), stop (SIGSTOP) or pause (the thread sleeps for 300 ms); NTH
// counts passages from the arming, from 1. A point that has acted is disarmed.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "mep.h"

namespace mep {

// Relaxed everywhere: it says that a look at the table is worth while, and orders nothing.
extern std::atomic<bool> failpoints_armed;

void failpoint_passed(const char* name);

// Adds the entries of `text`. A name that no point has is refused with those that there are.
[[nodiscard]] mep_result_t failpoint_arm(const std::string& text);
void failpoint_disarm_all();
// Once for a process; later calls do nothing.
[[nodiscard]] mep_result_t failpoints_from_environment();

}  // namespace mep

#define MEP_FAILPOINT(name)                                                     \
  do {                                                                          \
    if (::mep::failpoints_armed.load(std::memory_order_relaxed)) [[unlikely]] { \
      ::mep::failpoint_passed(name);                                            \
    }                                                                           \
  } while (false)

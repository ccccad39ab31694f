// The doorbell with delays between its steps, in builds for tests; else the plain one.
#pragma once

#include "base/test_delay.hpp"
#include "transport/doorbell.hpp"

namespace mep {

#if defined(MEP_TEST_HOOKS)
struct DoorbellDelays {
  static void before(DoorbellStep /*step*/) { MEP_TEST_DELAY_POINT("doorbell"); }
};
#else
using DoorbellDelays = NoDelays;
#endif

using WaitSleep = BasicDoorbellSleep<DoorbellDelays>;

}  // namespace mep

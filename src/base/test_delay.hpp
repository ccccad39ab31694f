// Named points at which tests put delays: MEP_TEST_DELAY_POINT("name"). Only builds with
// MEP_TEST_HOOKS delay, and there only once a test has called test_delays_enable(). In all builds such
// a point is also a failpoint.
#pragma once

#include "base/failpoint.hpp"

#if defined(MEP_TEST_HOOKS)

#include <cstdint>

namespace mep {

// From now on one in `one_in` passages of a point is delayed, from a yield to a few hundred
// microseconds; 0: none. Every thread draws from a stream of its own.
void test_delays_enable(uint64_t seed, uint32_t one_in);
// How often any point was passed.
uint64_t test_delay_passages();
void test_delay_point(const char* name);

}  // namespace mep

#define MEP_TEST_DELAY_POINT(name) \
  do {                             \
    ::mep::test_delay_point(name); \
    MEP_FAILPOINT(name);           \
  } while (false)

#else

#define MEP_TEST_DELAY_POINT(name) MEP_FAILPOINT(name)

#endif

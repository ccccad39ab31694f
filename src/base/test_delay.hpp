// Named points at which tests put delays: MEP_TEST_DELAY_POINT("name"). Only builds with
// MEP_TEST_HOOKS have them, and there they do nothing until a test calls test_delays_enable().
#pragma once

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

#define MEP_TEST_DELAY_POINT(name) ::mep::test_delay_point(name)

#else

#define MEP_TEST_DELAY_POINT(name) static_cast<void>(0)

#endif

// Delays at the library's test points, in builds that have them (MEP_TEST_HOOKS).
#pragma once

#include <cstdint>

#include "base/test_delay.hpp"

namespace mep_test {

// One in `one_in` passages from now on, 0: none.
inline void enable_delays(uint64_t seed, uint32_t one_in) {
#if defined(MEP_TEST_HOOKS)
  mep::test_delays_enable(seed, one_in);
#else
  (void)seed;
  (void)one_in;
#endif
}

}  // namespace mep_test

// Small floating-point formats written out plainly, for the references of --check. Slow on purpose:
// no tricks that the library might share.
#pragma once

#include <cstdint>

namespace mep::perf {

struct FloatFormat {
  int exponent_bits;
  int mantissa_bits;
  double largest;     // finite value
  bool has_infinity;  // false: too large becomes `largest` (e4m3)
};

constexpr FloatFormat kFloat16 = {5, 10, 65504.0, true};
constexpr FloatFormat kBfloat16 = {8, 7, 0x1.fep127, true};
constexpr FloatFormat kE4m3 = {4, 3, 448.0, false};
constexpr FloatFormat kE5m2 = {5, 2, 57344.0, true};

// Round to nearest, ties to even. The value must be no NaN.
uint16_t encode_float(const FloatFormat& format, double value);
// The bits must be no NaN and no infinity.
double decode_float(const FloatFormat& format, uint16_t bits);

}  // namespace mep::perf

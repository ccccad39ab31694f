#include "minifloat.hpp"

#include <cmath>

namespace mep::perf {

uint16_t encode_float(const FloatFormat& format, double value) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const unsigned sign =
      std::signbit(value) ? 1u << (format.exponent_bits + format.mantissa_bits) : 0;
  const double size = std::fabs(value);
  if (size == 0) return static_cast<uint16_t>(sign);
  int exponent = 0;
  (void)std::frexp(size, &exponent);  // size in [2^(exponent-1), 2^exponent)
  int power = exponent - 1;
  if (power < 1 - bias) power = 1 - bias;  // subnormal: the spacing of the smallest normal numbers
  const double steps = std::nearbyint(std::ldexp(size, format.mantissa_bits - power));
  const double rounded = std::ldexp(steps, power - format.mantissa_bits);
  const unsigned infinity = ((1u << format.exponent_bits) - 1) << format.mantissa_bits;
  if (rounded > format.largest) {
    if (format.has_infinity) return static_cast<uint16_t>(sign | infinity);
    return encode_float(format, std::copysign(format.largest, value));
  }
  // A carry out of the mantissa lands in the exponent, which is the right number.
  const auto whole = static_cast<unsigned>(steps);
  const unsigned hidden = 1u << format.mantissa_bits;
  if (whole < hidden) return static_cast<uint16_t>(sign | whole);
  const auto field = static_cast<unsigned>(power + bias);
  return static_cast<uint16_t>(sign | ((field << format.mantissa_bits) + (whole - hidden)));
}

double decode_float(const FloatFormat& format, uint16_t bits) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const unsigned mantissa = bits & ((1u << format.mantissa_bits) - 1);
  const unsigned field = (bits >> format.mantissa_bits) & ((1u << format.exponent_bits) - 1);
  const bool is_negative = ((bits >> (format.exponent_bits + format.mantissa_bits)) & 1) != 0;
  const unsigned hidden = field == 0 ? 0 : 1u << format.mantissa_bits;
  const int power = (field == 0 ? 1 : static_cast<int>(field)) - bias - format.mantissa_bits;
  const double size = std::ldexp(static_cast<double>(hidden + mantissa), power);
  return is_negative ? -size : size;
}

}  // namespace mep::perf

// The results that collectives must give, computed plainly: one element at a time, in rank order. Shares no
// code with the library; even the table of reductions is written again.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "mep.h"
#include "support/random_numbers.hpp"
#include "support/type_reference.hpp"

namespace mep_test {

using Bytes = std::vector<uint8_t>;

using mep_reference::element_bytes;
using mep_reference::kAllTypes;
using mep_reference::mix;
using mep_reference::RandomStream;
inline constexpr mep_op_t kAllOps[] = {MEP_SUM, MEP_PROD, MEP_MIN, MEP_MAX,
                                       MEP_AVG, MEP_AND,  MEP_OR,  MEP_XOR};

inline bool is_float_type(mep_dtype_t dtype) {
  return mep_reference::is_float(dtype);
}

// The pairs that exist.
inline bool pair_exists(mep_dtype_t dtype, mep_op_t op) {
  const bool bitwise = op == MEP_AND || op == MEP_OR || op == MEP_XOR;
  if (dtype == MEP_BOOL) return bitwise || op == MEP_MIN || op == MEP_MAX;
  if (is_float_type(dtype)) return !bitwise;
  return op != MEP_AVG;
}

// A float of 8 or 16 bits.
struct SmallFloat : mep_reference::FloatFormat {
  uint32_t sign_bit() const { return 1u << (bits - 1); }
  uint32_t infinity_code() const { return sign_bit() - (1u << mantissa); }
  uint32_t largest_code() const { return infinities ? infinity_code() - 1 : sign_bit() - 2; }

  double decode(uint32_t code) const {
    const uint32_t magnitude = code & (sign_bit() - 1);
    const double sign = (code & sign_bit()) != 0 ? -1.0 : 1.0;
    if (infinities && magnitude == infinity_code()) {
      return sign * std::numeric_limits<double>::infinity();
    }
    if (magnitude > largest_code()) return std::numeric_limits<double>::quiet_NaN();
    const int exponent = static_cast<int>(magnitude >> mantissa);
    const double fraction = magnitude & ((1u << mantissa) - 1);
    if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - mantissa);
    return sign * std::ldexp(fraction + (1u << mantissa), exponent - bias - mantissa);
  }

  // To nearest, ties to even: in units of the last place, which a double holds exactly.
  uint32_t encode(double value) const {
    if (std::isnan(value)) return nan;
    const uint32_t sign = std::signbit(value) ? sign_bit() : 0;
    const double magnitude = std::fabs(value);
    if (magnitude == 0) return sign;
    const uint32_t beyond = infinities ? infinity_code() : largest_code();
    if (std::isinf(magnitude)) return sign | beyond;
    const int exponent = std::max(std::ilogb(magnitude), 1 - bias);
    const double units = std::nearbyint(std::ldexp(magnitude, mantissa - exponent));
    // A full mantissa that was rounded up carries into the exponent by itself.
    const double code = units + std::ldexp(static_cast<double>(exponent + bias - 1), mantissa);
    if (code > largest_code()) return sign | beyond;
    return sign | static_cast<uint32_t>(code);
  }
};

inline SmallFloat small_float(mep_dtype_t dtype) {
  return {mep_reference::float_format(dtype)};
}

template <class T>
T load(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
void store(uint8_t* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

template <class Float>
Float combine_floats(mep_op_t op, Float a, Float b) {
  if (op == MEP_SUM || op == MEP_AVG) return a + b;
  if (op == MEP_PROD) return a * b;
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<Float>::quiet_NaN();
  if (a == b) return (op == MEP_MIN) == std::signbit(a) ? a : b;  // -0 lies below +0
  return (op == MEP_MIN) == (a < b) ? a : b;
}

template <class Float>
void reduce_wide_floats(mep_op_t op, const std::vector<const uint8_t*>& inputs, size_t count,
                        uint64_t canonical_nan, uint8_t* out) {
  for (size_t i = 0; i < count; ++i) {
    Float sum = load<Float>(inputs[0] + i * sizeof(Float));
    for (size_t r = 1; r < inputs.size(); ++r) {
      sum = combine_floats(op, sum, load<Float>(inputs[r] + i * sizeof(Float)));
    }
    if (op == MEP_AVG) sum = sum / static_cast<Float>(inputs.size());
    if (std::isnan(sum)) {
      std::memcpy(out + i * sizeof(Float), &canonical_nan, sizeof(Float));  // little endian
    } else {
      store(out + i * sizeof(Float), sum);
    }
  }
}

inline void reduce_small_floats(mep_dtype_t dtype, mep_op_t op,
                                const std::vector<const uint8_t*>& inputs, size_t count,
                                uint8_t* out) {
  const SmallFloat format = small_float(dtype);
  const size_t bytes = element_bytes(dtype);
  std::vector<float> values(size_t{1} << format.bits);
  for (uint32_t code = 0; code < values.size(); ++code) {
    values[code] = static_cast<float>(format.decode(code));
  }
  const auto at = [&](size_t rank, size_t i) {
    return values[bytes == 1 ? inputs[rank][i] : load<uint16_t>(inputs[rank] + 2 * i)];
  };
  for (size_t i = 0; i < count; ++i) {
    float sum = at(0, i);
    for (size_t r = 1; r < inputs.size(); ++r) sum = combine_floats(op, sum, at(r, i));
    if (op == MEP_AVG) sum = sum / static_cast<float>(inputs.size());
    const uint32_t code = format.encode(static_cast<double>(sum));
    if (bytes == 1) out[i] = static_cast<uint8_t>(code);
    if (bytes == 2) store(out + 2 * i, static_cast<uint16_t>(code));
  }
}

template <class Int>
void reduce_ints(mep_dtype_t dtype, mep_op_t op, const std::vector<const uint8_t*>& inputs,
                 size_t count, uint8_t* out) {
  for (size_t i = 0; i < count; ++i) {
    Int sum = load<Int>(inputs[0] + i * sizeof(Int));
    for (size_t r = 1; r < inputs.size(); ++r) {
      sum = mep_reference::combine_integers<Int>(dtype, op, sum,
                                                 load<Int>(inputs[r] + i * sizeof(Int)));
    }
    store(out + i * sizeof(Int), sum);
  }
}

inline void reduce_bools(mep_op_t op, const std::vector<const uint8_t*>& inputs, size_t count,
                         uint8_t* out) {
  for (size_t i = 0; i < count; ++i) {
    bool sum = inputs[0][i] != 0;
    for (size_t r = 1; r < inputs.size(); ++r) {
      const bool next = inputs[r][i] != 0;
      if (op == MEP_AND || op == MEP_MIN) sum = sum && next;
      if (op == MEP_OR || op == MEP_MAX) sum = sum || next;
      if (op == MEP_XOR) sum = sum != next;
    }
    out[i] = sum ? 1 : 0;
  }
}

inline Bytes reference_reduce(mep_dtype_t dtype, mep_op_t op,
                              const std::vector<const uint8_t*>& inputs, size_t count) {
  Bytes result(count * element_bytes(dtype));
  uint8_t* out = result.data();
  mep_reference::with_integer(
      dtype, [&](auto zero) { reduce_ints<decltype(zero)>(dtype, op, inputs, count, out); });
  switch (dtype) {
    case MEP_FLOAT32:
      reduce_wide_floats<float>(op, inputs, count, 0x7fc00000u, out);
      break;
    case MEP_FLOAT64:
      reduce_wide_floats<double>(op, inputs, count, 0x7ff8000000000000u, out);
      break;
    case MEP_BOOL:
      reduce_bools(op, inputs, count, out);
      break;
    default:
      if (is_float_type(dtype)) reduce_small_floats(dtype, op, inputs, count, out);
      break;
  }
  return result;
}

// Input of one rank. Floats are mostly of moderate size, so that sums depend on order and rounding;
// about one in sixteen is any bit pattern: NaN, infinities, subnormals, zeros of both signs.
inline void fill_input(mep_dtype_t dtype, uint64_t seed, size_t count, uint8_t* to) {
  RandomStream random(seed);
  const size_t bytes = element_bytes(dtype);
  if (!is_float_type(dtype)) {
    for (size_t i = 0; i < count * bytes; i += 8) {
      const uint64_t bits = random.bits();
      std::memcpy(to + i, &bits, std::min<size_t>(8, count * bytes - i));
    }
    // Truth values are 0 and 1, and now and then another byte that is not 0.
    for (size_t i = 0; dtype == MEP_BOOL && i < count; ++i) to[i] = to[i] > 250 ? to[i] : to[i] & 1;
    return;
  }
  int mantissa = 52;
  int bias = 1023;
  if (dtype == MEP_FLOAT32) {
    mantissa = 23;
    bias = 127;
  } else if (dtype != MEP_FLOAT64) {
    mantissa = small_float(dtype).mantissa;
    bias = small_float(dtype).bias;
  }
  constexpr uint64_t kSpecialSigns = 3;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = random.bits();
    uint64_t code = bits;
    const uint64_t kind = bits >> 59 & 31;
    if (kind >= 2) {
      const auto exponent = static_cast<uint64_t>(bias - 3) + ((bits >> 53) % 7);
      code = (exponent << mantissa) | (bits & ((uint64_t{1} << mantissa) - 1));
      code |= (bits >> 58 & 1) << (bytes * 8 - 1);
    } else if (kind == 1 && (bits >> 40 & kSpecialSigns) == 0) {
      code = (bits >> 42 & 1) << (bytes * 8 - 1);  // a zero
    } else if (kind == 1 && (bits >> 40 & kSpecialSigns) == 1) {
      const uint64_t all_ones =
          (uint64_t{1} << (bytes * 8 - 1 - static_cast<size_t>(mantissa))) - 1;
      code = all_ones << mantissa | (bits >> 42 & 1)
                                        << (bytes * 8 - 1);  // infinity, where there is
    }
    std::memcpy(to + i * bytes, &code, bytes);
  }
}

}  // namespace mep_test

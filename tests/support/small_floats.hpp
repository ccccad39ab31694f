// Floats of 8 and 16 bits as tables of all their values, found by search: the oracle of conversions, and what the
// references of collectives and of expert parallelism read and write numbers with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "mep.h"
#include "support/type_reference.hpp"

namespace mep_reference {

template <class T>
T load(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
void store(void* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

class SmallFormat {
 public:
  // Without infinities the largest codes are values, and all ones is the only NaN.
  SmallFormat(int bits, int mantissa, int bias, bool has_infinity, uint32_t nan)
      : mantissa_(mantissa),
        bias_(bias),
        sign_(1u << (bits - 1)),
        infinity_(has_infinity),
        nan_(nan) {
    const uint32_t end = has_infinity ? sign_ - (1u << mantissa) : sign_ - 1;
    for (uint32_t code = 0; code < end; ++code) {
      const auto exponent = static_cast<int>(code >> mantissa);
      const uint32_t fraction = code & ((1u << mantissa) - 1);
      const uint32_t whole = exponent == 0 ? fraction : fraction + (1u << mantissa);
      values_.push_back(std::ldexp(whole, std::max(exponent, 1) - bias - mantissa));
    }
    // Rounding sees the value after the largest, which is infinity where there is one.
    next_ = 2 * values_.back() - values_[values_.size() - 2];
  }
  int mantissa() const { return mantissa_; }
  int bias() const { return bias_; }
  // Not negative and finite: codes below this, whose values rise.
  uint32_t finite_codes() const { return static_cast<uint32_t>(values_.size()); }
  double value(uint32_t code) const { return values_[code]; }

  double decode(uint32_t code) const {
    const uint32_t magnitude = code & (sign_ - 1);
    const double sign = (code & sign_) != 0 ? -1.0 : 1.0;
    if (magnitude < values_.size()) return std::copysign(values_[magnitude], sign);
    const bool is_infinite = infinity_ && magnitude == values_.size();
    return is_infinite ? sign * std::numeric_limits<double>::infinity()
                       : std::numeric_limits<double>::quiet_NaN();
  }

  double largest() const { return values_.back(); }

  // To nearest, ties to even; beyond the largest where there is no infinity: the largest.
  uint32_t encode(double x) const {
    if (std::isnan(x)) return nan_;
    const uint32_t sign = std::signbit(x) ? sign_ : 0;
    const double magnitude = std::fabs(x);
    const auto above = std::upper_bound(values_.begin(), values_.end(), magnitude);
    const auto low = static_cast<uint32_t>(above - values_.begin()) - 1;
    const bool is_last = above == values_.end();
    if (is_last && !infinity_) return sign | low;
    const double to_low = magnitude - values_[low];
    const double to_high = (is_last ? next_ : *above) - magnitude;
    if (to_low == to_high) return sign | (low + low % 2);
    return sign | (to_low < to_high ? low : low + 1);
  }

 private:
  int mantissa_;
  int bias_;
  uint32_t sign_;
  bool infinity_;
  uint32_t nan_;
  std::vector<double> values_;
  double next_ = 0;
};

// Null: the type is no float of 8 or 16 bits.
inline const SmallFormat* small_format(mep_dtype_t dtype) {
  static const SmallFormat f16(16, 10, 15, true, 0x7e00);
  static const SmallFormat bf16(16, 7, 127, true, 0x7fc0);
  static const SmallFormat e4m3(8, 3, 7, false, 0x7f);
  static const SmallFormat e5m2(8, 2, 15, true, 0x7f);
  switch (dtype) {
    case MEP_FLOAT16:
      return &f16;
    case MEP_BFLOAT16:
      return &bf16;
    case MEP_FLOAT8_E4M3:
      return &e4m3;
    case MEP_FLOAT8_E5M2:
      return &e5m2;
    default:
      return nullptr;
  }
}

// An element of a float type but float64, exactly.
inline float load_number(mep_dtype_t dtype, const void* from) {
  if (dtype == MEP_FLOAT32) return load<float>(from);
  const uint32_t code = element_bytes(dtype) == 1 ? load<uint8_t>(from) : load<uint16_t>(from);
  return static_cast<float>(small_format(dtype)->decode(code));
}
// Rounded once, NaN canonical.
inline void store_number(mep_dtype_t dtype, double value, void* to) {
  if (dtype == MEP_FLOAT64) {
    store(to, std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value);
  } else if (dtype == MEP_FLOAT32) {
    store(to,
          std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(value));
  } else if (element_bytes(dtype) == 1) {
    store(to, static_cast<uint8_t>(small_format(dtype)->encode(value)));
  } else {
    store(to, static_cast<uint16_t>(small_format(dtype)->encode(value)));
  }
}

}  // namespace mep_reference

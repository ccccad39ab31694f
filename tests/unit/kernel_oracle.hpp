// The results that the kernels must give, computed another way: small floats by searching the table of all
// their values in double, sums by plain loops over volatile. Shares no code with src/kernels.
#pragma once

#include <array>
#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include <sys/mman.h>

#include "base/cpu_features.hpp"
#include "kernels/host/kernel_table.hpp"
#include "mep.h"
#include "support/cmocka_cpp.hpp"
#include "support/random_numbers.hpp"
#include "support/type_reference.hpp"

namespace mep_test {

using mep_reference::mix;
using mep_reference::RandomStream;

inline uint64_t test_seed() {
  static const uint64_t seed = mep_reference::seed_of_run();
  return seed;
}

// A floating format of 8 or 16 bits, as the table of its non-negative finite values.
class SmallFormat {
 public:
  SmallFormat(int bits, int mantissa, int bias, bool has_infinity, uint32_t nan)
      : sign_(1u << (bits - 1)), infinity_(has_infinity), nan_(nan) {
    const uint32_t top = has_infinity ? (sign_ >> mantissa) - 1 : sign_ >> mantissa;
    for (uint32_t code = 0; code < sign_; ++code) {
      const uint32_t exponent = code >> mantissa;
      if (exponent >= top || (!has_infinity && code == sign_ - 1)) break;
      const double fraction = std::ldexp(code & ((1u << mantissa) - 1), -mantissa);
      values_.push_back(exponent == 0
                            ? std::ldexp(fraction, 1 - bias)
                            : std::ldexp(1 + fraction, static_cast<int>(exponent) - bias));
    }
    // Rounding sees the value after the largest, which infinite formats turn into infinity.
    next_ = 2 * values_.back() - values_[values_.size() - 2];
  }
  uint32_t nan() const { return nan_; }
  uint32_t finite_codes() const { return static_cast<uint32_t>(values_.size()); }
  double value(uint32_t code) const { return values_[code]; }

  double decode(uint32_t code) const {
    const uint32_t magnitude = code & (sign_ - 1);
    const double sign = (code & sign_) != 0 ? -1.0 : 1.0;
    if (magnitude < values_.size()) return std::copysign(values_[magnitude], sign);
    const bool is_infinite = infinity_ && magnitude == values_.size();
    return is_infinite ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }

  uint32_t encode(double x) const {
    if (std::isnan(x)) return nan_;
    const uint32_t sign = std::signbit(x) ? sign_ : 0;
    const double magnitude = std::fabs(x);
    const uint32_t last = finite_codes() - 1;
    if (magnitude >= values_[last]) {
      if (!infinity_) return sign | last;
      return sign | (magnitude - values_[last] < next_ - magnitude ? last : last + 1);
    }
    uint32_t low = 0;  // values_[low] <= magnitude < values_[low + 1]
    for (uint32_t high = last; high - low > 1;) {
      const uint32_t middle = (low + high) / 2;
      (values_[middle] <= magnitude ? low : high) = middle;
    }
    const double below = magnitude - values_[low];
    const double above = values_[low + 1] - magnitude;
    if (below == above) return sign | (low + low % 2);
    return sign | (below < above ? low : low + 1);
  }

 private:
  uint32_t sign_;
  bool infinity_;
  uint32_t nan_;
  std::vector<double> values_;
  double next_ = 0;
};

// Null: the type is no float of 8 or 16 bits.
inline const SmallFormat* small_format(mep_dtype_t dtype) {
  static const auto formats = [] {
    std::array<std::unique_ptr<const SmallFormat>, mep::kDtypeSlots> made;
    for (const mep_dtype_t each : mep_reference::kAllTypes) {
      const mep_reference::FloatFormat f = mep_reference::float_format(each);
      if (f.bits == 0) continue;
      made[each] = std::make_unique<SmallFormat>(f.bits, f.mantissa, f.bias, f.infinities, f.nan);
    }
    return made;
  }();
  return formats[dtype].get();
}

inline size_t size_of(mep_dtype_t dtype) {
  return mep_reference::element_bytes(dtype);
}
inline bool is_floating(mep_dtype_t dtype) {
  return mep_reference::is_float(dtype);
}

template <class T>
inline T load_as(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
inline void store_as(uint8_t* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// One element of f16, bf16, f32 or fp8 as float, exactly; and back with one rounding, NaN
// canonical.
inline float element_to_float(mep_dtype_t dtype, const uint8_t* from) {
  if (dtype == MEP_FLOAT32) return load_as<float>(from);
  const uint32_t code = size_of(dtype) == 1 ? *from : load_as<uint16_t>(from);
  return static_cast<float>(small_format(dtype)->decode(code));
}
inline void float_to_element(mep_dtype_t dtype, float value, uint8_t* to) {
  if (dtype == MEP_FLOAT32) {
    if (std::isnan(value)) store_as<uint32_t>(to, 0x7fc00000u);
    if (!std::isnan(value)) store_as(to, value);
    return;
  }
  const uint32_t code = small_format(dtype)->encode(value);
  if (size_of(dtype) == 1) *to = static_cast<uint8_t>(code);
  if (size_of(dtype) == 2) store_as(to, static_cast<uint16_t>(code));
}

// Moderate values mostly, with the special ones of the type mixed in.
inline void fill_float_element(mep_dtype_t dtype, RandomStream& random, uint8_t* to) {
  const size_t kind = random.below(16);
  if (dtype == MEP_FLOAT64) {
    const uint64_t special[] = {0,
                                1ull << 63,
                                0x7ff0ull << 48,
                                0xfff0ull << 48,
                                0x7ff8ull << 48,
                                0xfff123456789abcdull,
                                1,
                                0x7fefffffffffffffull};
    store_as(to, random.real(-100, 100));
    if (kind == 0) store_as(to, special[random.below(8)]);
    if (kind == 1) store_as(to, random.bits());
    return;
  }
  if (kind == 0 && dtype == MEP_FLOAT32) {
    const uint32_t special[] = {0,          1u << 31, 0x7f800000, 0xff800000, 0x7fc00000,
                                0xff812345, 1,        0x807fffff, 0x7f7fffff, 0x00800000};
    store_as(to, special[random.below(10)]);
  } else if (kind <= 1) {
    const uint64_t bits = random.bits();
    std::memcpy(to, &bits, size_of(dtype));
  } else if (kind == 2) {
    float_to_element(dtype, random.below(2) != 0 ? -0.0f : 0.0f, to);
  } else {
    float_to_element(dtype, static_cast<float>(random.real(-8, 8)), to);
  }
}

// Memory between two pages that fault: a block begins after the first or ends before the second.
class GuardedMemory {
 public:
  explicit GuardedMemory(size_t bytes) : bytes_((bytes + kPage - 1) / kPage * kPage) {
    void* map = mmap(nullptr, bytes_ + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) std::abort();
    base_ = static_cast<uint8_t*>(map);
    if (mprotect(base_ + kPage, bytes_, PROT_READ | PROT_WRITE) != 0) std::abort();
  }
  ~GuardedMemory() { munmap(base_, bytes_ + 2 * kPage); }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  uint8_t* at_start() { return base_ + kPage; }
  uint8_t* at_end(size_t bytes) { return base_ + kPage + bytes_ - bytes; }
  // Fills all with a pattern, so that intact_outside() can tell what a kernel wrote.
  void paint() { std::memset(at_start(), 0xa5, bytes_); }
  bool intact_outside(const uint8_t* block, size_t bytes) {
    for (const uint8_t* p = at_start(); p < at_start() + bytes_; ++p) {
      if ((p < block || p >= block + bytes) && *p != 0xa5) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kPage = 4096;
  size_t bytes_;
  uint8_t* base_ = nullptr;
};

struct Level {
  const char* name;
  const mep::KernelTable* kernels;
};

// Every SIMD level that this processor has; at least the portable one.
inline std::vector<Level> levels() {
  std::vector<Level> found;
  for (const mep::SimdLevel level :
       {mep::SimdLevel::kPortable, mep::SimdLevel::kAvx2, mep::SimdLevel::kAvx512}) {
    const mep::KernelTable* kernels = mep::kernels_for(level);
    if (kernels != nullptr) found.push_back({mep::simd_level_name(level), kernels});
  }
  return found;
}

__attribute__((format(printf, 4, 5))) inline void check_bytes(const uint8_t* expected,
                                                              const uint8_t* actual, size_t bytes,
                                                              const char* format, ...) {
  if (bytes == 0 || std::memcmp(expected, actual, bytes) == 0) return;
  size_t at = 0;
  while (expected[at] == actual[at]) ++at;
  char what[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  fail_msg("%s: byte %zu of %zu is 0x%02x, not 0x%02x", what, at, bytes, actual[at], expected[at]);
}

}  // namespace mep_test

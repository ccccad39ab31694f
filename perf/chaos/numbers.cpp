#include "numbers.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "support/type_reference.hpp"

namespace mep::programs {
namespace {

struct Format : mep_reference::FloatFormat {
  uint32_t sign() const { return 1u << (bits - 1); }
  // The code of infinity, or of the only NaN.
  uint32_t top() const { return infinities ? sign() - (1u << mantissa) : sign() - 1; }
};

Format format_of(mep_dtype_t dtype) {
  return {mep_reference::float_format(dtype)};
}

double value_of(const Format& format, uint32_t code) {
  const uint32_t magnitude = code & (format.sign() - 1);
  const double sign = (code & format.sign()) != 0 ? -1.0 : 1.0;
  if (magnitude == format.top()) {
    return format.infinities ? sign * std::numeric_limits<double>::infinity()
                             : std::numeric_limits<double>::quiet_NaN();
  }
  if (magnitude > format.top()) return std::numeric_limits<double>::quiet_NaN();
  const uint32_t exponent = magnitude >> format.mantissa;
  const uint32_t fraction = magnitude & ((1u << format.mantissa) - 1);
  const uint32_t whole = exponent == 0 ? fraction : fraction | 1u << format.mantissa;
  const int shift = static_cast<int>(exponent == 0 ? 1 : exponent) - format.bias - format.mantissa;
  // A power of two, whose exponent is that of a normal double here.
  const double power = std::bit_cast<double>(static_cast<uint64_t>(shift + 1023) << 52);
  return sign * static_cast<double>(whole) * power;
}

// By search among all codes: they are ordered as their values are. Beyond the largest value lies
// infinity, where there is one, else the largest value stays.
uint32_t code_of(const Format& format, double value) {
  const uint32_t sign = std::signbit(value) ? format.sign() : 0;
  const double magnitude = std::fabs(value);
  if (std::isnan(value)) return format.infinities ? format.top() + 1 : format.top();
  const uint32_t largest = format.top() - 1;
  uint32_t low = 0;
  uint32_t high = largest;
  while (low < high) {  // the largest code whose value is not above
    const uint32_t middle = (low + high + 1) / 2;
    if (value_of(format, middle) <= magnitude) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const double below = value_of(format, low);
  if (below == magnitude) return sign | low;
  const double step =
      low == largest ? below - value_of(format, low - 1) : value_of(format, low + 1) - below;
  const double half = below + step / 2;
  const bool up = magnitude > half || (magnitude == half && (low & 1) != 0);
  if (!up) return sign | low;
  if (low == largest && !format.infinities) return sign | largest;
  return sign | (low + 1);
}

template <typename T>
T load(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <typename T>
void store(T value, uint8_t* to) {
  std::memcpy(to, &value, sizeof value);
}

uint32_t load_code(const Format& format, const uint8_t* from) {
  return format.bits == 8 ? *from : load<uint16_t>(from);
}

void store_code(const Format& format, uint32_t code, uint8_t* to) {
  if (format.bits == 8) {
    *to = static_cast<uint8_t>(code);
  } else {
    store(static_cast<uint16_t>(code), to);
  }
}

template <typename Float>
Float joined(mep_op_t op, Float a, Float b) {
  // volatile: each operation is rounded by itself.
  volatile Float result = 0;
  switch (op) {
    case MEP_SUM:
    case MEP_AVG:
      result = a + b;
      return result;
    case MEP_PROD:
      result = a * b;
      return result;
    default:
      break;
  }
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<Float>::quiet_NaN();
  if (a == b) return std::signbit(a) == (op == MEP_MIN) ? a : b;  // -0 is less than +0
  return (a < b) == (op == MEP_MIN) ? a : b;
}

template <typename Float>
Float reduced_floats(mep_op_t op, size_t count, const Float* values) {
  Float result = values[0];
  for (size_t i = 1; i < count; ++i) result = joined(op, result, values[i]);
  if (op != MEP_AVG) return result;
  const volatile Float mean = result / static_cast<Float>(count);
  return mean;
}

template <typename Int>
void reduce_ints(mep_dtype_t dtype, mep_op_t op, const uint8_t* const* inputs, size_t count,
                 uint8_t* to) {
  Int result = load<Int>(inputs[0]);
  for (size_t i = 1; i < count; ++i) {
    result = mep_reference::combine_integers<Int>(dtype, op, result, load<Int>(inputs[i]));
  }
  store(result, to);
}

uint8_t reduced_bools(mep_op_t op, const uint8_t* const* inputs, size_t count) {
  uint32_t trues = 0;
  for (size_t i = 0; i < count; ++i) trues += *inputs[i] != 0 ? 1 : 0;
  switch (op) {
    case MEP_AND:
    case MEP_MIN:
      return trues == count ? 1 : 0;
    case MEP_XOR:
      return static_cast<uint8_t>(trues & 1);
    default:
      return trues != 0 ? 1 : 0;
  }
}

constexpr size_t kMaxInputs = 64;

// Exponents around 1, so that order and rounding show; some zeros, infinities and NaNs.
uint64_t float_bits(uint64_t random, uint32_t width, uint32_t mantissa, uint32_t bias,
                    uint64_t special) {
  const uint64_t sign = (random >> 63) << (width - 1);
  const uint64_t fraction = random & ((uint64_t{1} << mantissa) - 1);
  const uint64_t kind = random >> 56 & 0x7f;
  if (kind == 0) return sign;
  if (kind == 1) return sign | special;
  if (kind == 2) return sign | fraction;  // subnormal
  const uint64_t exponent = bias - 3 + (random >> 52 & 7);
  return sign | exponent << mantissa | fraction;
}

}  // namespace

size_t bytes_of(mep_dtype_t dtype) {
  return mep_reference::element_bytes(dtype);
}

bool is_float(mep_dtype_t dtype) {
  return mep_reference::is_float(dtype);
}

bool is_pair(mep_dtype_t dtype, mep_op_t op) {
  if (op >= MEP_AND) return !is_float(dtype);
  if (dtype == MEP_BOOL) return op == MEP_MIN || op == MEP_MAX;
  return op != MEP_AVG || is_float(dtype);
}

void make_element(mep_dtype_t dtype, uint64_t key, uint64_t index, uint8_t* to) {
  const uint64_t random = scrambled(key + index * 0x9e3779b97f4a7c15u);
  uint64_t bits = random;
  switch (dtype) {
    case MEP_BOOL:
      bits = random >> 60 == 15 ? random & 0xff : random & 1;
      break;
    case MEP_FLOAT32:
      bits = float_bits(random, 32, 23, 127, 0x7f800000u);
      break;
    case MEP_FLOAT64:
      bits = float_bits(random, 64, 52, 1023, uint64_t{0x7ff} << 52);
      break;
    default:
      if (is_float(dtype)) {
        const Format format = format_of(dtype);
        bits = float_bits(random, static_cast<uint32_t>(format.bits),
                          static_cast<uint32_t>(format.mantissa),
                          static_cast<uint32_t>(format.bias), format.top());
      }
      break;
  }
  std::memcpy(to, &bits, bytes_of(dtype));
}

void make_elements(mep_dtype_t dtype, uint64_t key, size_t count, uint8_t* to) {
  const size_t bytes = bytes_of(dtype);
  for (size_t i = 0; i < count; ++i) make_element(dtype, key, i, to + i * bytes);
}

void reduce_element(mep_dtype_t dtype, mep_op_t op, const uint8_t* const* inputs,
                    size_t inputs_count, uint8_t* to) {
  mep_reference::with_integer(
      dtype, [&](auto zero) { reduce_ints<decltype(zero)>(dtype, op, inputs, inputs_count, to); });
  switch (dtype) {
    case MEP_BOOL:
      *to = reduced_bools(op, inputs, inputs_count);
      return;
    case MEP_FLOAT64: {
      double values[kMaxInputs] = {};
      for (size_t i = 0; i < inputs_count; ++i) values[i] = load<double>(inputs[i]);
      return store(reduced_floats(op, inputs_count, values), to);
    }
    default: {
      if (!is_float(dtype)) return;
      float values[kMaxInputs] = {};
      for (size_t i = 0; i < inputs_count; ++i) values[i] = load_number(dtype, inputs[i]);
      return store_number(dtype, reduced_floats(op, inputs_count, values), to);
    }
  }
}

void store_number(mep_dtype_t dtype, float value, uint8_t* to) {
  if (dtype == MEP_FLOAT32) return store(value, to);
  const Format format = format_of(dtype);
  store_code(format, code_of(format, static_cast<double>(value)), to);
}

float load_number(mep_dtype_t dtype, const uint8_t* from) {
  if (dtype == MEP_FLOAT32) return load<float>(from);
  const Format format = format_of(dtype);
  return static_cast<float>(value_of(format, load_code(format, from)));
}

bool same_element(mep_dtype_t dtype, const uint8_t* a, const uint8_t* b) {
  if (std::memcmp(a, b, bytes_of(dtype)) == 0) return true;
  if (!is_float(dtype)) return false;
  if (dtype == MEP_FLOAT64) return std::isnan(load<double>(a)) && std::isnan(load<double>(b));
  return std::isnan(load_number(dtype, a)) && std::isnan(load_number(dtype, b));
}

uint64_t digest_of(const void* bytes, size_t count) {
  const auto* from = static_cast<const uint8_t*>(bytes);
  uint64_t digest = scrambled(count);
  for (size_t i = 0; i < count; i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, from + i, count - i < sizeof word ? count - i : sizeof word);
    digest = (digest ^ word) * 0xff51afd7ed558ccdu;
    digest ^= digest >> 29;
  }
  return digest;
}

}  // namespace mep::programs

// Small floating-point types, one value at a time; the vector kernels have the same results. For
// code with a value or two: rows go through convert_to_f32 and convert_from_f32.
// They need the default floating-point mode. Internal linkage throughout, and no std:: functions:
// the including file's instruction set must not leak to other files.
#pragma once

#include <cstdint>

namespace mep {

static constexpr uint32_t kCanonicalNanF32 = 0x7fc00000u;

// A format with kMantissa mantissa bits and exponent bias kBias in kBits bits, sign first.
// kInfinity: an all-ones exponent is infinity or NaN; otherwise ("fn") only all ones is NaN, and
// larger values saturate. kNan is the canonical NaN.
template <int kBitCount, int kMantissaBits, int kExponentBias, bool kHasInfinity, uint32_t kNanCode>
struct SmallFloat {
  static constexpr int kBits = kBitCount;
  static constexpr int kMantissa = kMantissaBits;
  static constexpr int kBias = kExponentBias;
  static constexpr bool kInfinity = kHasInfinity;
  static constexpr uint32_t kNan = kNanCode;
  static constexpr uint32_t kMagnitude = (1u << (kBits - 1)) - 1;
  static constexpr uint32_t kInfinityCode = kMagnitude & ~((1u << kMantissa) - 1);
  static constexpr uint32_t kLargestCode = (kInfinity ? kInfinityCode : kMagnitude) - 1;
  static constexpr float kLargest = __builtin_bit_cast(
      float, (kLargestCode << (23 - kMantissa)) + (static_cast<uint32_t>(127 - kBias) << 23));
  // The power of two in the largest value.
  static constexpr uint32_t kTopExponent = (kLargestCode >> kMantissa) - kBias;
  static constexpr uint32_t kTopCode = kLargestCode & ~((1u << kMantissa) - 1);
  // Larger magnitudes are set to this float32 before rounding: the power of two whose code is
  // infinity, or the largest finite value.
  static constexpr uint32_t kClampF32 =
      kInfinity ? static_cast<uint32_t>(127 + kBias + 1) << 23
                : (static_cast<uint32_t>(127 + kBias + 2) << 23) - (2u << (23 - kMantissa));
  static constexpr uint32_t kMinNormalF32 = static_cast<uint32_t>(127 - kBias + 1) << 23;
  // Added to a magnitude, this many steps of exponent above it, the sum's last place is the last
  // place of the small format: the addition does the rounding, ties to even.
  static constexpr uint32_t kRoundingStep = static_cast<uint32_t>(23 - kMantissa) << 23;
  static constexpr uint32_t kCodeOffset = static_cast<uint32_t>(127 - kBias + 1) << kMantissa;
  static constexpr float kSubnormalUnit =
      __builtin_bit_cast(float, static_cast<uint32_t>(127 + 1 - kBias - kMantissa) << 23);
};
using F16Format = SmallFloat<16, 10, 15, true, 0x7e00>;
using E5M2Format = SmallFloat<8, 2, 15, true, 0x7f>;
using E4M3Format = SmallFloat<8, 3, 7, false, 0x7f>;
static_assert(E4M3Format::kClampF32 == 0x43e00000u, "448");
static_assert(E4M3Format::kLargest == 448 && E5M2Format::kLargest == 57344);

template <class Format>
static inline uint32_t small_float_encode(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return Format::kNan;
  const uint32_t sign = bits >> 31 << (Format::kBits - 1);
  const uint32_t clamped = magnitude < Format::kClampF32 ? magnitude : Format::kClampF32;
  const uint32_t at_least = clamped < Format::kMinNormalF32 ? Format::kMinNormalF32 : clamped;
  const uint32_t exponent = at_least & 0x7f800000u;
  const uint32_t magic = exponent + Format::kRoundingStep;
  const float rounded = __builtin_bit_cast(float, clamped) + __builtin_bit_cast(float, magic);
  const uint32_t code = __builtin_bit_cast(uint32_t, rounded) - magic +
                        (exponent >> (23 - Format::kMantissa)) - Format::kCodeOffset;
  return sign | code;
}

template <class Format>
static inline float small_float_decode(uint32_t code) {
  const uint32_t sign = code >> (Format::kBits - 1) << 31;
  const uint32_t magnitude = code & Format::kMagnitude;
  const bool is_nan =
      Format::kInfinity ? magnitude > Format::kInfinityCode : magnitude == Format::kMagnitude;
  if (is_nan) return __builtin_bit_cast(float, kCanonicalNanF32);
  uint32_t bits =
      (magnitude << (23 - Format::kMantissa)) + (static_cast<uint32_t>(127 - Format::kBias) << 23);
  if (magnitude < (1u << Format::kMantissa)) {
    bits = __builtin_bit_cast(uint32_t, static_cast<float>(magnitude) * Format::kSubnormalUnit);
  } else if (Format::kInfinity && magnitude == Format::kInfinityCode) {
    bits = 0x7f800000u;
  }
  return __builtin_bit_cast(float, sign | bits);
}

static inline uint16_t f32_to_f16(float value) {
  return static_cast<uint16_t>(small_float_encode<F16Format>(value));
}
static inline uint8_t f32_to_e4m3(float value) {
  return static_cast<uint8_t>(small_float_encode<E4M3Format>(value));
}
static inline uint8_t f32_to_e5m2(float value) {
  return static_cast<uint8_t>(small_float_encode<E5M2Format>(value));
}
static inline uint16_t f32_to_bf16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline float f16_to_f32(uint16_t code) {
  return small_float_decode<F16Format>(code);
}
static inline float e4m3_to_f32(uint8_t code) {
  return small_float_decode<E4M3Format>(code);
}
static inline float e5m2_to_f32(uint8_t code) {
  return small_float_decode<E5M2Format>(code);
}
static inline float bf16_to_f32(uint16_t code) {
  if ((code & 0x7fffu) > 0x7f80u) return __builtin_bit_cast(float, kCanonicalNanF32);
  return __builtin_bit_cast(float, static_cast<uint32_t>(code) << 16);
}

}  // namespace mep

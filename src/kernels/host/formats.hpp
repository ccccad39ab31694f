// How elements in memory become vectors to compute with, and back. A format F has
//   F::V            the vector computed with
//   F::kElement     bytes of an element in memory
//   F::kBytes       bytes of memory that fill one V
//   F::load(p), F::store(p, v)   exactly kBytes; store rounds once and writes canonical NaNs;
//                   store<true> goes past the caches and wants p aligned to kBytes
// Unnamed namespace for the reason given in simd.hpp.
#pragma once

#include "kernels/host/simd.hpp"

namespace mep {
namespace {

template <class Format>
inline __attribute__((always_inline)) I32 encode_lanes(F32 value) {
  // The steps of small_float_encode, on all lanes.
  const I32 bits = as<I32>(value);
  const I32 magnitude = bits & 0x7fffffff;
  constexpr int32_t kClamp = static_cast<int32_t>(Format::kClampF32);
  constexpr int32_t kMinNormal = static_cast<int32_t>(Format::kMinNormalF32);
  const I32 clamped = smaller(magnitude, splat<I32>(kClamp));
  const I32 at_least = larger(clamped, splat<I32>(kMinNormal));
  const I32 exponent = at_least & 0x7f800000;
  const I32 magic = exponent + static_cast<int32_t>(Format::kRoundingStep);
  const I32 rounded = as<I32>(as<F32>(clamped) + as<F32>(magic));
  const I32 code = rounded - magic + (exponent >> (23 - Format::kMantissa)) -
                   static_cast<int32_t>(Format::kCodeOffset);
  const I32 sign = as<I32>(as<U32>(bits) >> (32 - Format::kBits)) & (1 << (Format::kBits - 1));
  return magnitude > 0x7f800000 ? splat<I32>(static_cast<int32_t>(Format::kNan)) : (code | sign);
}

template <class Format>
inline __attribute__((always_inline)) F32 decode_lanes(I32 code) {
  constexpr int32_t kMagnitude = static_cast<int32_t>(Format::kMagnitude);
  constexpr int32_t kInfinityCode = static_cast<int32_t>(Format::kInfinityCode);
  const I32 magnitude = code & kMagnitude;
  const I32 sign = as<I32>(as<U32>(code) << (32 - Format::kBits)) & INT32_MIN;
  const I32 normal = (magnitude << (23 - Format::kMantissa)) + ((127 - Format::kBias) << 23);
  const F32 subnormal = __builtin_convertvector(magnitude, F32) * Format::kSubnormalUnit;
  I32 bits = magnitude < (1 << Format::kMantissa) ? as<I32>(subnormal) : normal;
  if constexpr (Format::kInfinity)
    bits = magnitude == kInfinityCode ? splat<I32>(0x7f800000) : bits;
  constexpr int32_t kFirstNan = Format::kInfinity ? kInfinityCode + 1 : kMagnitude;
  const I32 nan = splat<I32>(static_cast<int32_t>(kCanonicalNanF32));
  return as<F32>(magnitude >= kFirstNan ? nan : (bits | sign));
}

inline F32 canonical_nan(F32 value) {
  return value != value ? as<F32>(splat<U32>(kCanonicalNanF32)) : value;
}
inline Vector<double> canonical_nan(Vector<double> value) {
  const Vector<int64_t> nan = splat<Vector<int64_t>>(int64_t{0x7ff8000000000000});
  return value != value ? as<Vector<double>>(nan) : value;
}

#if !defined(MEP_SIMD_AVX512) && !defined(MEP_SIMD_AVX2)
inline F32 load_f16(const uint8_t* from) {
  return decode_lanes<F16Format>(widen_16(from));
}
template <bool kStream>
inline void store_f16(uint8_t* to, F32 lanes) {
  narrow_16<kStream>(to, encode_lanes<F16Format>(lanes));
}
#endif

template <class T>
struct IntegerFormat {
  using V = Vector<T>;
  static constexpr size_t kElement = sizeof(T);
  static constexpr size_t kBytes = kVectorBytes;
  static V load(const uint8_t* from) { return load_vector<V>(from); }
  template <bool kStream = false>
  static void store(uint8_t* to, V vector) {
    put<kStream>(to, vector);
  }
};

template <class T>
struct NativeFloatFormat {
  using V = Vector<T>;
  static constexpr size_t kElement = sizeof(T);
  static constexpr size_t kBytes = kVectorBytes;
  static V load(const uint8_t* from) { return load_vector<V>(from); }
  template <bool kStream = false>
  static void store(uint8_t* to, V vector) {
    put<kStream>(to, canonical_nan(vector));
  }
};

struct BoolFormat {
  using V = Vector<uint8_t>;
  static constexpr size_t kElement = 1;
  static constexpr size_t kBytes = kVectorBytes;
  static V load(const uint8_t* from) {
    const V vector = load_vector<V>(from);
    return vector != 0 ? splat<V>(uint8_t{1}) : V{};
  }
  template <bool kStream = false>
  static void store(uint8_t* to, V vector) {
    put<kStream>(to, vector);
  }
};

struct Bfloat16Format {
  using V = F32;
  static constexpr size_t kElement = 2;
  static constexpr size_t kBytes = 2 * kLanes;
  static V load(const uint8_t* from) { return as<V>(widen_16(from) << 16); }
  template <bool kStream = false>
  static void store(uint8_t* to, V vector) {
    const U32 bits = as<U32>(vector);
    const U32 rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    narrow_16<kStream>(to, vector != vector ? splat<I32>(0x7fc0) : as<I32>(rounded));
  }
};

struct Float16Format {
  using V = F32;
  static constexpr size_t kElement = 2;
  static constexpr size_t kBytes = 2 * kLanes;
  static V load(const uint8_t* from) { return load_f16(from); }
  template <bool kStream = false>
  static void store(uint8_t* to, V vector) {
    store_f16<kStream>(to, canonical_nan(vector));
  }
};

template <class Format>
struct Float8Format {
  using Small = Format;
  using V = F32;
  static constexpr size_t kElement = 1;
  static constexpr size_t kBytes = kLanes;
  static V load(const uint8_t* from) { return decode_lanes<Format>(widen_8(from)); }
  template <bool kStream = false>
  static void store(uint8_t* to, V vector) {
    narrow_8<kStream>(to, encode_lanes<Format>(vector));
  }
};
using Float32Format = NativeFloatFormat<float>;

// Tails of fewer than F::kBytes bytes. Lanes beyond the end are 0 and are not stored.
template <class F>
inline typename F::V load_partial(const uint8_t* from, size_t bytes) {
  alignas(kVectorBytes) uint8_t buffer[kVectorBytes];
  load_tail(buffer, from, bytes);
  return F::load(buffer);
}

template <class F>
inline void store_partial(uint8_t* to, typename F::V vector, size_t bytes) {
  alignas(kVectorBytes) uint8_t buffer[kVectorBytes];
  F::store(buffer, vector);
  store_tail(to, buffer, bytes);
}

}  // namespace
}  // namespace mep

// Reductions of 16 bytes at a time, the same bits as src/kernels/host: 16-bit and 8-bit floats in
// float32 with one rounding at the end, integers wrap, NaN is kept by min and max and written as the
// type's canonical NaN, -0 < +0. To be compiled with -fmad=false.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/instructions.cuh"
#include "mep.h"

namespace mep::device {

struct Float16 {
  using Stored = uint16_t;
  using Value = float;
  static __device__ Value load(Stored code) { return __half2float(__ushort_as_half(code)); }
  static __device__ Stored store(Value value) {
    return value != value ? 0x7e00 : __half_as_ushort(__float2half_rn(value));
  }
};
struct Bfloat16 {
  using Stored = uint16_t;
  using Value = float;
  static __device__ Value load(Stored code) { return __uint_as_float(uint32_t{code} << 16); }
  static __device__ Stored store(Value value) {
    const uint32_t bits = __float_as_uint(value);
    return value != value ? 0x7fc0 : static_cast<Stored>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
};
template <__nv_fp8_interpretation_t kKind, __nv_saturation_t kSaturation>
struct Float8 {
  using Stored = uint8_t;
  using Value = float;
  static __device__ Value load(Stored code) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, kKind)));
  }
  static __device__ Stored store(Value value) {
    return value != value ? 0x7f : __nv_cvt_float_to_fp8(value, kSaturation, kKind);
  }
};
using Float8E4M3 = Float8<__NV_E4M3, __NV_SATFINITE>;
using Float8E5M2 = Float8<__NV_E5M2, __NV_NOSAT>;
struct Float32 {
  using Stored = uint32_t;
  using Value = float;
  static __device__ Value load(Stored bits) { return __uint_as_float(bits); }
  static __device__ Stored store(Value value) {
    return value != value ? 0x7fc00000u : __float_as_uint(value);
  }
};
struct Float64 {
  using Stored = uint64_t;
  using Value = double;
  static __device__ Value load(Stored bits) {
    return __longlong_as_double(static_cast<long long>(bits));
  }
  static __device__ Stored store(Value value) {
    return value != value ? 0x7ff8000000000000u : static_cast<Stored>(__double_as_longlong(value));
  }
};
template <typename Integer>
struct Whole {
  using Stored = std::make_unsigned_t<Integer>;
  using Value = Integer;
  static __device__ Value load(Stored bits) { return static_cast<Value>(bits); }
  static __device__ Stored store(Value value) { return static_cast<Stored>(value); }
};
struct Truth {
  using Stored = uint8_t;
  using Value = uint8_t;
  static __device__ Value load(Stored byte) { return byte != 0 ? 1 : 0; }
  static __device__ Stored store(Value value) { return value; }
};

__device__ inline uint64_t bits_of(double value) {
  return static_cast<uint64_t>(__double_as_longlong(value));
}
__device__ inline double value_of(uint64_t bits) {
  return __longlong_as_double(static_cast<long long>(bits));
}

// NaN where one of the two is, and -0 < +0.
template <typename Value>
__device__ inline Value smaller(Value a, Value b) {
  if constexpr (std::is_same_v<Value, float>) {
    return min_or_nan(a, b);
  } else if constexpr (std::is_same_v<Value, double>) {
    if (a != a) return a;
    if (b != b) return b;
    if (a == b) return value_of(bits_of(a) | bits_of(b));  // of -0 and +0: -0
    return a < b ? a : b;
  } else {
    return b < a ? b : a;
  }
}
template <typename Value>
__device__ inline Value larger(Value a, Value b) {
  if constexpr (std::is_same_v<Value, float>) {
    return max_or_nan(a, b);
  } else if constexpr (std::is_same_v<Value, double>) {
    if (a != a) return a;
    if (b != b) return b;
    if (a == b) return value_of(bits_of(a) & bits_of(b));
    return a > b ? a : b;
  } else {
    return a < b ? b : a;
  }
}

// One operator on one type. The operators are few and the types many, so the choice is made once for
// 16 bytes and not for every value.
template <mep_op_t kOp, typename Value>
__device__ inline Value combine(Value a, Value b) {
  if constexpr (kOp == MEP_MIN) return smaller(a, b);
  if constexpr (kOp == MEP_MAX) return larger(a, b);
  if constexpr (std::is_same_v<Value, float>) {
    return kOp == MEP_PROD ? __fmul_rn(a, b) : __fadd_rn(a, b);
  } else if constexpr (std::is_same_v<Value, double>) {
    return kOp == MEP_PROD ? __dmul_rn(a, b) : __dadd_rn(a, b);
  } else {
    // On an unsigned type that is not widened to int: nothing overflows into undefined behaviour.
    using Wide = std::conditional_t<sizeof(Value) == 8, uint64_t, uint32_t>;
    const auto wide_a = static_cast<Wide>(a), wide_b = static_cast<Wide>(b);
    if constexpr (kOp == MEP_PROD) return static_cast<Value>(wide_a * wide_b);
    if constexpr (kOp == MEP_AND) return static_cast<Value>(wide_a & wide_b);
    if constexpr (kOp == MEP_OR) return static_cast<Value>(wide_a | wide_b);
    if constexpr (kOp == MEP_XOR) return static_cast<Value>(wide_a ^ wide_b);
    return static_cast<Value>(wide_a + wide_b);
  }
}

template <typename Type>
struct Pack {
  static constexpr int kValues = 16 / static_cast<int>(sizeof(typename Type::Stored));
  typename Type::Value values[kValues];

  static __device__ Pack load(const uint4& bytes) {
    typename Type::Stored stored[kValues];
    __builtin_memcpy(stored, &bytes, 16);
    Pack pack;
#pragma unroll
    for (int i = 0; i < kValues; ++i) pack.values[i] = Type::load(stored[i]);
    return pack;
  }
  template <mep_op_t kOp>
  __device__ void add_by(const Pack& other) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] = combine<kOp>(values[i], other.values[i]);
  }
  // MEP_MIN, MEP_MAX, else a sum.
  __device__ void add_common(mep_op_t op, const Pack& other) {
    if (op == MEP_MIN) return add_by<MEP_MIN>(other);
    if (op == MEP_MAX) return add_by<MEP_MAX>(other);
    add_by<MEP_SUM>(other);
  }
  __device__ void add(mep_op_t op, const uint4& bytes) {
    const Pack other = load(bytes);
    if (op == MEP_PROD) return add_by<MEP_PROD>(other);
    if (op == MEP_MIN) return add_by<MEP_MIN>(other);
    if (op == MEP_MAX) return add_by<MEP_MAX>(other);
    if constexpr (!std::is_floating_point_v<typename Type::Value>) {
      if (op == MEP_AND) return add_by<MEP_AND>(other);
      if (op == MEP_OR) return add_by<MEP_OR>(other);
      if (op == MEP_XOR) return add_by<MEP_XOR>(other);
    }
    add_by<MEP_SUM>(other);
  }
  // Floats are multiplied by a power of two, which is exact where dividing is.
  __device__ uint4 store_scaled(float scale) const {
    return store_each([scale](typename Type::Value value) {
      if constexpr (std::is_same_v<typename Type::Value, float>) return __fmul_rn(value, scale);
      if constexpr (std::is_same_v<typename Type::Value, double>) {
        return __dmul_rn(value, static_cast<double>(scale));
      }
      return value;
    });
  }
  __device__ uint4 store(mep_op_t op, uint32_t contributors) const {
    return store_each([op, contributors](typename Type::Value value) {
      if constexpr (std::is_same_v<typename Type::Value, float>) {
        if (op == MEP_AVG) value = __fdiv_rn(value, static_cast<float>(contributors));
      } else if constexpr (std::is_same_v<typename Type::Value, double>) {
        if (op == MEP_AVG) value = __ddiv_rn(value, static_cast<double>(contributors));
      }
      return value;
    });
  }

 private:
  template <typename Change>
  __device__ uint4 store_each(Change&& change) const {
    typename Type::Stored stored[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i) stored[i] = Type::store(change(values[i]));
    uint4 bytes;
    __builtin_memcpy(&bytes, stored, 16);
    return bytes;
  }
};

}  // namespace mep::device

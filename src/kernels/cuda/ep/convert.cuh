// Values of rows, 16 bytes or eight values at a time, with the bits that kernels/host has: nothing is
// fused, ties go to even, denormals are kept, and every NaN that is written is the type's positive
// canonical one.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/cuda/ep/common.cuh"

namespace mep::device {

struct Bfloat16 {
  static constexpr uint32_t kBytes = 2;
  static constexpr uint32_t kLanes = 8;  // of 16 bytes
  static __device__ void unpack(const uint4& bits, float* values) {
    const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[2 * i] = __uint_as_float(words[i] << 16);
      values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
  static __device__ uint32_t encode(float value) {
    const uint32_t bits = __float_as_uint(value);
    return value != value ? 0x7fc0u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  }
  static __device__ uint4 pack(const float* v) {
    return {encode(v[0]) | encode(v[1]) << 16, encode(v[2]) | encode(v[3]) << 16,
            encode(v[4]) | encode(v[5]) << 16, encode(v[6]) | encode(v[7]) << 16};
  }
};

struct Float16 {
  static constexpr uint32_t kBytes = 2;
  static constexpr uint32_t kLanes = 8;
  static __device__ void unpack(const uint4& bits, float* values) {
    const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[2 * i] = __half2float(__ushort_as_half(static_cast<unsigned short>(words[i])));
      values[2 * i + 1] =
          __half2float(__ushort_as_half(static_cast<unsigned short>(words[i] >> 16)));
    }
  }
  static __device__ uint32_t encode(float value) {
    return value != value ? 0x7e00u : __half_as_ushort(__float2half_rn(value));
  }
  static __device__ uint4 pack(const float* v) {
    return {encode(v[0]) | encode(v[1]) << 16, encode(v[2]) | encode(v[3]) << 16,
            encode(v[4]) | encode(v[5]) << 16, encode(v[6]) | encode(v[7]) << 16};
  }
};

struct Float32 {
  static constexpr uint32_t kBytes = 4;
  static constexpr uint32_t kLanes = 4;
  static __device__ void unpack(const uint4& bits, float* values) {
    values[0] = __uint_as_float(bits.x);
    values[1] = __uint_as_float(bits.y);
    values[2] = __uint_as_float(bits.z);
    values[3] = __uint_as_float(bits.w);
  }
  static __device__ uint32_t encode(float value) {
    return value != value ? 0x7fc00000u : __float_as_uint(value);
  }
  static __device__ uint4 pack(const float* v) {
    return {encode(v[0]), encode(v[1]), encode(v[2]), encode(v[3])};
  }
};

// --- Quantising -------------------------------------------------------------------------------------

// The values of the wire, by the names that row_formats.def has: the largest, and the power of two in it.
struct E4m3 {
  static constexpr float kLargest = 448;
  static constexpr uint32_t kTopExponent = 8;
  static constexpr uint32_t kTopCode = 0x78;
  static __device__ uint32_t encode_two(float low, float high) {
    return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
  }
};

// A codec gives the factor for x and stores the scale of the group.
template <class To>
struct FloatScale {
  using Values = To;
  static constexpr uint32_t kBytes = 4;
  static __device__ float put(float maximum, uint32_t* scale) {
    *scale = __float_as_uint(__fmul_rn(maximum, 1.0f / To::kLargest));
    return __fdiv_rn(To::kLargest, maximum);
  }
  // kLargest * scale is finite for every finite maximum.
  static __device__ uint2 cap(uint2 q, uint32_t) { return q; }
  static __device__ void store(std::byte* to, uint32_t scale) {
    *reinterpret_cast<uint32_t*>(to) = scale;
  }
};

template <class To>
struct Ue8m0Scale {
  using Values = To;
  static constexpr uint32_t kBytes = 1;
  static __device__ float put(float maximum, uint32_t* scale) {
    const uint32_t bits = __float_as_uint(__fmul_rn(maximum, 1.0f / To::kLargest));
    const uint32_t biased = (bits >> 23) + ((bits & 0x7fffffu) != 0 ? 1 : 0);
    *scale = bits >= 0x7f800000u ? 255 : biased;
    return __uint_as_float(*scale < 254 ? (254 - *scale) << 23 : 0x00800000u >> (*scale - 253));
  }
  // With the largest scale of finite values, 2^120 for e4m3, the code of 256 is more than float32 holds: what
  // was rounded up to it becomes 240.
  static __device__ uint32_t cap_four(uint32_t q) {
    return q - (__vcmpeq4(q & 0x7f7f7f7fu, To::kTopCode * 0x01010101u) & 0x01010101u);
  }
  static __device__ uint2 cap(uint2 q, uint32_t scale) {
    constexpr uint32_t kLargestScale = 255 - To::kTopExponent;
    return scale == kLargestScale ? make_uint2(cap_four(q.x), cap_four(q.y)) : q;
  }
  static __device__ void store(std::byte* to, uint32_t scale) {
    *reinterpret_cast<uint8_t*>(to) = static_cast<uint8_t>(scale);
  }
};

// Eight values times the factor, each product rounded.
template <class To>
__device__ inline uint2 quantize_eight(const float* x, float factor) {
  float v[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = __fmul_rn(x[i], factor);
  return {To::encode_two(v[0], v[1]) | To::encode_two(v[2], v[3]) << 16,
          To::encode_two(v[4], v[5]) | To::encode_two(v[6], v[7]) << 16};
}

}  // namespace mep::device

// Rows of one SIMD level: conversion, quantising, combining, copying.
// Unnamed namespace for the reason given in simd.hpp.
#pragma once

#include "kernels/host/formats.hpp"
#include "kernels/host/kernels.hpp"

namespace mep {
namespace {

// Stores past the caches pay only in whole lines, and each has to be aligned. Where the output does
// not begin with a line, plain stores are used.
inline bool can_stream(const uint8_t* to) {
  return reinterpret_cast<uintptr_t>(to) % kCacheLine == 0;
}

template <class From, class To>
void convert(const void* in, void* out, size_t count) {
  const uint8_t* from = static_cast<const uint8_t*>(in);
  uint8_t* to = static_cast<uint8_t*>(out);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    To::store(to + i * To::kElement, From::load(from + i * From::kElement));
  }
  if (i == count) return;
  const size_t rest = count - i;
  const F32 last = load_partial<From>(from + i * From::kElement, rest * From::kElement);
  store_partial<To>(to + i * To::kElement, last, rest * To::kElement);
}

template <class From>
void to_f32(const void* in, float* out, size_t count) {
  convert<From, Float32Format>(in, out, count);
}

template <class To>
void from_f32(const float* in, void* out, size_t count) {
  convert<Float32Format, To>(in, out, count);
}

inline F32 absolute(F32 value) {
  return as<F32>(as<I32>(value) & 0x7fffffff);
}

// The larger lane of two; `best` where `value` is NaN.
inline F32 larger_number(F32 value, F32 best) {
  return value > best ? value : best;
}

// max(1e-4f, max|x|) of up to kGroup values.
template <class From, size_t kGroup>
inline float group_maximum(const uint8_t* from, size_t count) {
  constexpr size_t kVectors = kGroup / kLanes;
  F32 best = splat<F32>(1e-4f);
  if (count == kGroup) {
    MEP_UNROLL
    for (size_t v = 0; v < kVectors; ++v) {
      best = larger_number(absolute(From::load(from + v * From::kBytes)), best);
    }
    return largest_lane(best);
  }
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    best = larger_number(absolute(From::load(from + i * From::kElement)), best);
  }
  if (i < count) {
    const size_t bytes = (count - i) * From::kElement;
    best = larger_number(absolute(load_partial<From>(from + i * From::kElement, bytes)), best);
  }
  return largest_lane(best);
}

// To, of one byte, has the values of the wire.
template <class From, class To, size_t kGroup, bool kStream>
inline void quantize_group(const uint8_t* from, uint8_t* q, float factor, size_t count) {
  constexpr size_t kVectors = kGroup / kLanes;
  if (count == kGroup) {
    MEP_UNROLL
    for (size_t v = 0; v < kVectors; ++v) {
      To::template store<kStream>(q + v * kLanes, From::load(from + v * From::kBytes) * factor);
    }
    return;
  }
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    To::template store<kStream>(q + i, From::load(from + i * From::kElement) * factor);
  }
  if (i == count) return;
  const F32 last = load_partial<From>(from + i * From::kElement, (count - i) * From::kElement);
  store_partial<To>(q + i, last * factor, count - i);
}

// The values of the wire, by the names that row_formats.def has.
using E4m3 = Float8Format<E4M3Format>;

// A codec gives the factor for x and stores the scale of the group.
template <class To>
struct FloatScale {
  using Values = To;
  static constexpr float kLargest = To::Small::kLargest;
  static float put(void* scales, size_t group, float maximum) {
    static_cast<float*>(scales)[group] = maximum * (1.0f / kLargest);
    return kLargest / maximum;
  }
  // kLargest * scale is finite for every finite maximum.
  static void cap(uint8_t*, size_t, const void*, size_t) {}
};

template <class To>
struct Ue8m0Scale {
  using Values = To;
  using Small = typename To::Small;
  static float put(void* scales, size_t group, float maximum) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, maximum * (1.0f / Small::kLargest));
    const uint32_t biased = (bits >> 23) + ((bits & 0x7fffffu) != 0 ? 1 : 0);
    const uint32_t scale = bits >= 0x7f800000u ? 255 : biased;
    static_cast<uint8_t*>(scales)[group] = static_cast<uint8_t>(scale);
    // 2^-e; below the normal range, which only an infinite group reaches, as a denormal.
    const uint32_t factor = scale < 254 ? (254 - scale) << 23 : 0x00800000u >> (scale - 253);
    return __builtin_bit_cast(float, factor);
  }
  // With the largest scale of finite values, 2^120 for e4m3, the code of 256 is more than float32 holds: what
  // was rounded up to it becomes 240.
  static void cap(uint8_t* q, size_t count, const void* scales, size_t group) {
    constexpr uint8_t kLargestScale = 255 - Small::kTopExponent;
    if (static_cast<const uint8_t*>(scales)[group] != kLargestScale) return;
    for (size_t i = 0; i < count; ++i) q[i] -= (q[i] & 0x7f) == Small::kTopCode ? 1 : 0;
  }
};

template <class From, class Scale, size_t kGroup, bool kStream>
inline void quantize_groups(const uint8_t* from, size_t hidden, uint8_t* q, void* scales) {
  for (size_t group = 0, i = 0; i < hidden; ++group, i += kGroup) {
    const size_t count = hidden - i < kGroup ? hidden - i : kGroup;
    const uint8_t* values = from + i * From::kElement;
    const float factor = Scale::put(scales, group, group_maximum<From, kGroup>(values, count));
    quantize_group<From, typename Scale::Values, kGroup, kStream>(values, q + i, factor, count);
    Scale::cap(q + i, count, scales, group);
  }
}

template <class From, class Scale, size_t kGroup>
void quantize(const void* x, size_t hidden, uint8_t* q, void* scales, bool non_temporal) {
  const uint8_t* from = static_cast<const uint8_t*>(x);
  if (non_temporal && can_stream(q)) {
    quantize_groups<From, Scale, kGroup, true>(from, hidden, q, scales);
    fence_streamed();
  } else {
    quantize_groups<From, Scale, kGroup, false>(from, hidden, q, scales);
  }
}

// How far ahead of its use a row is asked for: rows lie apart, and the processor's own prefetch
// starts again in every row and page.
constexpr size_t kPrefetchBytes = 1024;

template <bool kWeighted>
inline F32 add_row(F32 total, F32 value, float weight) {
  if constexpr (kWeighted) return total + value * weight;
  return total + value;
}

// kVectors vectors of every row, `offset` bytes into each. kAhead: the rows go on for
// kPrefetchBytes.
template <class F, bool kWeighted, bool kStream, bool kAhead, size_t kVectors>
inline void combine_block(uint8_t* out, const void* const* rows, const float* weights,
                          size_t n_rows, size_t offset) {
  F32 total[kVectors] = {};
  for (size_t row = 0; row < n_rows; ++row) {
    const uint8_t* from = static_cast<const uint8_t*>(rows[row]) + offset;
    const float weight = kWeighted ? weights[row] : 1;
    if constexpr (kAhead) {
      MEP_UNROLL
      for (size_t line = 0; line < kVectors * F::kBytes; line += kCacheLine) {
        prefetch(from + kPrefetchBytes + line);
      }
    }
    MEP_UNROLL
    for (size_t v = 0; v < kVectors; ++v) {
      total[v] = add_row<kWeighted>(total[v], F::load(from + v * F::kBytes), weight);
    }
  }
  MEP_UNROLL
  for (size_t v = 0; v < kVectors; ++v)
    F::template store<kStream>(out + offset + v * F::kBytes, total[v]);
}

template <class F, bool kWeighted>
inline void combine_tail(uint8_t* out, const void* const* rows, const float* weights, size_t n_rows,
                         size_t offset, size_t bytes) {
  F32 total = {};
  for (size_t row = 0; row < n_rows; ++row) {
    const uint8_t* from = static_cast<const uint8_t*>(rows[row]) + offset;
    total = add_row<kWeighted>(total, load_partial<F>(from, bytes), kWeighted ? weights[row] : 1);
  }
  store_partial<F>(out + offset, total, bytes);
}

template <class F, bool kWeighted, bool kStream>
void combine_row(uint8_t* out, const void* const* rows, const float* weights, size_t n_rows,
                 size_t bytes) {
  constexpr size_t kBlockVectors = kCacheLine * 2 / F::kBytes < 4 ? 4 : kCacheLine * 2 / F::kBytes;
  constexpr size_t kBlock = kBlockVectors * F::kBytes;
  const size_t head = bytes < kPrefetchBytes ? bytes : kPrefetchBytes;
  for (size_t line = 0; line < head; line += kCacheLine) {
    for (size_t row = 0; row < n_rows; ++row) {
      prefetch(static_cast<const uint8_t*>(rows[row]) + line);
    }
  }
  size_t offset = 0;
  for (; offset + kBlock + kPrefetchBytes <= bytes; offset += kBlock) {
    combine_block<F, kWeighted, kStream, true, kBlockVectors>(out, rows, weights, n_rows, offset);
  }
  for (; offset + kBlock <= bytes; offset += kBlock) {
    combine_block<F, kWeighted, kStream, false, kBlockVectors>(out, rows, weights, n_rows, offset);
  }
  for (; offset + F::kBytes <= bytes; offset += F::kBytes) {
    combine_block<F, kWeighted, kStream, false, 1>(out, rows, weights, n_rows, offset);
  }
  if (offset < bytes) {
    combine_tail<F, kWeighted>(out, rows, weights, n_rows, offset, bytes - offset);
  }
  if constexpr (kStream) fence_streamed();
}

template <class F>
void combine(void* out, const void* const* rows, const float* weights, size_t n_rows, size_t hidden,
             bool non_temporal) {
  uint8_t* to = static_cast<uint8_t*>(out);
  const bool stream = non_temporal && can_stream(to);
  const size_t bytes = hidden * F::kElement;
  if (weights == nullptr && stream) {
    combine_row<F, false, true>(to, rows, weights, n_rows, bytes);
  } else if (weights == nullptr) {
    combine_row<F, false, false>(to, rows, weights, n_rows, bytes);
  } else if (stream) {
    combine_row<F, true, true>(to, rows, weights, n_rows, bytes);
  } else {
    combine_row<F, true, false>(to, rows, weights, n_rows, bytes);
  }
}

inline void copy_past_caches(void* destination, const void* source, size_t bytes) {
  uint8_t* to = static_cast<uint8_t*>(destination);
  const uint8_t* from = static_cast<const uint8_t*>(source);
  const size_t misaligned = reinterpret_cast<uintptr_t>(to) % kCacheLine;
  const size_t head = misaligned == 0 ? 0 : kCacheLine - misaligned;
  if (head != 0 && head < bytes) {
    __builtin_memcpy(to, from, head);
    to += head;
    from += head;
    bytes -= head;
  }
  while (bytes >= kCacheLine && can_stream(to)) {
    MEP_UNROLL
    for (size_t i = 0; i < kCacheLine; i += kVectorBytes) {
      put<true>(to + i, load_vector<U32>(from + i));
    }
    to += kCacheLine;
    from += kCacheLine;
    bytes -= kCacheLine;
  }
  if (bytes != 0) __builtin_memcpy(to, from, bytes);
  fence_streamed();
}

}  // namespace
}  // namespace mep

#include "moe_kernels.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

// The choice at program start runs before a sanitizer is ready, so builds with one have a single
// copy.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MEP_PERF_SINGLE_COPY 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define MEP_PERF_SINGLE_COPY 1
#endif
#endif
#if defined(__x86_64__) && !defined(MEP_PERF_SINGLE_COPY)
#define MEP_PERF_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define MEP_PERF_CLONES
#endif
// Without it the small functions would stay calls into code for the oldest CPU.
#define MEP_PERF_INLINE inline __attribute__((always_inline))

namespace mep::perf {
namespace {

// Each copy splits these into vectors that its instruction set has.
constexpr size_t kLanes = 16;
using Floats __attribute__((vector_size(64))) = float;
using Words __attribute__((vector_size(64))) = uint32_t;
using Halves __attribute__((vector_size(32))) = uint16_t;

MEP_PERF_INLINE float widen(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// No NaN comes here, so rounding is one addition.
MEP_PERF_INLINE uint16_t narrow(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// One of two values without a branch: a branch around float arithmetic would keep the loop scalar.
MEP_PERF_INLINE uint32_t choose(bool is_first, uint32_t first, uint32_t second) {
  const uint32_t mask = 0u - static_cast<uint32_t>(is_first);
  return (first & mask) | (second & ~mask);
}

MEP_PERF_INLINE float from_e4m3(uint8_t bits) {
  const uint32_t size = bits & 0x7fu;
  const uint32_t sign = (bits & 0x80u) << 24;
  const uint32_t normal = (size << 20) + (120u << 23);
  const auto subnormal =
      std::bit_cast<uint32_t>(static_cast<float>(static_cast<int>(size)) * 0x1p-9f);
  return std::bit_cast<float>(choose(size < 8, subnormal, normal) | sign);
}

// Saturating, round to nearest even.
MEP_PERF_INLINE uint8_t to_e4m3(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t size = bits & 0x7fffffffu;
  const uint32_t normal = ((size + 0x7ffff + ((size >> 20) & 1)) >> 20) - (120u << 3);
  // Adding 2^14 leaves the number in steps of 2^-9, the spacing of the subnormals.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(size) + 16384.0f) - (141u << 23);
  const uint32_t code = choose(size < (121u << 23), subnormal, normal);
  return static_cast<uint8_t>(sign | std::min(code, 0x7eu));
}

// The experts of a row that are on this rank.
struct LocalExperts {
  size_t count = 0;
  float factors[64];
  float weights[64];
};

MEP_PERF_INLINE void mix_block(const float* __restrict x, size_t count, const LocalExperts& experts,
                               uint16_t* __restrict y) {
  float sums[kScaleBlock] = {};
  for (size_t k = 0; k < experts.count; ++k) {
    const float factor = experts.factors[k];
    const float weight = experts.weights[k];
    for (size_t i = 0; i < count; ++i) sums[i] += weight * widen(narrow(x[i] * factor));
  }
  for (size_t i = 0; i < count; ++i) y[i] = narrow(sums[i]);
}

MEP_PERF_CLONES
void mix_row_bf16(const uint16_t* __restrict x, size_t hidden, const LocalExperts& experts,
                  uint16_t* __restrict y) {
  float values[kScaleBlock];
  for (size_t begin = 0; begin < hidden; begin += kScaleBlock) {
    const size_t count = std::min<size_t>(kScaleBlock, hidden - begin);
    for (size_t i = 0; i < count; ++i) values[i] = widen(x[begin + i]);
    mix_block(values, count, experts, y + begin);
  }
}

MEP_PERF_CLONES
void mix_row_fp8(const uint8_t* __restrict x, const float* scales, size_t hidden,
                 const LocalExperts& experts, uint16_t* __restrict y) {
  float values[kScaleBlock];
  for (size_t begin = 0; begin < hidden; begin += kScaleBlock) {
    const size_t count = std::min<size_t>(kScaleBlock, hidden - begin);
    const float scale = scales[begin / kScaleBlock];
    for (size_t i = 0; i < count; ++i) values[i] = from_e4m3(x[begin + i]) * scale;
    mix_block(values, count, experts, y + begin);
  }
}

}  // namespace

void run_local_experts(const MoeShape& shape, const void* x, const float* scales,
                       const int32_t* topk_idx, const float* topk_weights, uint16_t* y) {
  const int64_t first = static_cast<int64_t>(shape.rank) * shape.experts_per_rank;
  LocalExperts experts;
  for (uint32_t k = 0; k < shape.top_k; ++k) {
    if (topk_idx[k] < 0) continue;
    experts.factors[experts.count] = expert_factor(first + topk_idx[k]);
    experts.weights[experts.count++] = topk_weights[k];
  }
  if (shape.wire_is_fp8) {
    mix_row_fp8(static_cast<const uint8_t*>(x), scales, shape.hidden, experts, y);
  } else {
    mix_row_bf16(static_cast<const uint16_t*>(x), shape.hidden, experts, y);
  }
}

MEP_PERF_CLONES
void scale_rows_bf16(const uint16_t* __restrict x, size_t rows, size_t hidden, float factor,
                     uint16_t* __restrict y) {
  const size_t count = rows * hidden;
  for (size_t i = 0; i < count; ++i) y[i] = narrow(widen(x[i]) * factor);
}

MEP_PERF_CLONES
void scale_rows_fp8(const uint8_t* __restrict x, size_t x_stride, const uint8_t* __restrict scales,
                    size_t scales_stride, size_t rows, size_t hidden, float factor,
                    uint16_t* __restrict y) {
  for (size_t row = 0; row < rows; ++row) {
    const uint8_t* from = x + row * x_stride;
    uint16_t* to = y + row * hidden;
    for (size_t begin = 0; begin < hidden; begin += kScaleBlock) {
      const size_t count = std::min<size_t>(kScaleBlock, hidden - begin);
      float scale = 0;
      std::memcpy(&scale, scales + row * scales_stride + begin / kScaleBlock * sizeof scale,
                  sizeof scale);
      for (size_t i = 0; i < count; ++i) {
        to[begin + i] = narrow(from_e4m3(from[begin + i]) * scale * factor);
      }
    }
  }
}

// Two vectors of sums stay in registers while all rows are added: left to itself the compiler would
// load and store the sums for every row.
MEP_PERF_CLONES
void weighted_sum_bf16(const uint16_t* const* rows, const float* weights, size_t count,
                       size_t hidden, uint16_t* __restrict out) {
  size_t i = 0;
  for (; i + 2 * kLanes <= hidden; i += 2 * kLanes) {
    Floats low = {};
    Floats high = {};
    for (size_t k = 0; k < count; ++k) {
      Halves parts[2];
      std::memcpy(parts, rows[k] + i, sizeof parts);
      low += weights[k] * reinterpret_cast<Floats>(__builtin_convertvector(parts[0], Words) << 16);
      high += weights[k] * reinterpret_cast<Floats>(__builtin_convertvector(parts[1], Words) << 16);
    }
    const auto low_bits = reinterpret_cast<Words>(low);
    const auto high_bits = reinterpret_cast<Words>(high);
    const Halves parts[2] = {
        __builtin_convertvector((low_bits + 0x7fff + ((low_bits >> 16) & 1)) >> 16, Halves),
        __builtin_convertvector((high_bits + 0x7fff + ((high_bits >> 16) & 1)) >> 16, Halves)};
    std::memcpy(out + i, parts, sizeof parts);
  }
  for (; i < hidden; ++i) {
    float sum = 0;
    for (size_t k = 0; k < count; ++k) sum += weights[k] * widen(rows[k][i]);
    out[i] = narrow(sum);
  }
}

MEP_PERF_CLONES
void quantize_row(const uint16_t* __restrict x, size_t hidden, uint8_t* __restrict values,
                  float* __restrict scales) {
  for (size_t begin = 0; begin < hidden; begin += kScaleBlock) {
    const size_t count = std::min<size_t>(kScaleBlock, hidden - begin);
    // Sizes of floats order like their bits.
    uint32_t largest_bits = std::bit_cast<uint32_t>(1e-4f);
    for (size_t i = 0; i < count; ++i) {
      const uint32_t bits = static_cast<uint32_t>(x[begin + i] & 0x7fffu) << 16;
      largest_bits = std::max(largest_bits, bits);
    }
    const float largest = std::bit_cast<float>(largest_bits);
    const float factor = 448.0f / largest;
    for (size_t i = 0; i < count; ++i) {
      values[begin + i] = to_e4m3(widen(x[begin + i]) * factor);
    }
    scales[begin / kScaleBlock] = largest * (1.0f / 448.0f);
  }
}

MEP_PERF_CLONES
void add_bf16(const uint16_t* __restrict input, uint16_t* __restrict result, size_t count) {
  for (size_t i = 0; i < count; ++i) result[i] = narrow(widen(input[i]) + widen(result[i]));
}

}  // namespace mep::perf

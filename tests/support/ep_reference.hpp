// The arithmetic of expert parallelism, one value at a time: rows with scales, and sums of rows. Shares no code
// with the library.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "mep.h"
#include "support/small_floats.hpp"

namespace mep_reference {

// Values that share a scale.
inline size_t scale_group(uint32_t scale_type) {
  return scale_type == MEP_SCALE_UE8M0_32 ? 32 : 128;
}
inline size_t scale_count(uint32_t scale_type, size_t hidden) {
  return (hidden + scale_group(scale_type) - 1) / scale_group(scale_type);
}

// Whether rows of the type have scales.
inline bool has_scales(mep_dtype_t type) {
  return type == MEP_FLOAT8_E4M3;
}

// A row of `type` as codes of `wire` and scales, a float32 or a biased exponent for each group.
inline void quantize(mep_dtype_t type, const uint8_t* x, size_t hidden, mep_dtype_t wire,
                     uint32_t scale_type, uint8_t* codes, uint8_t* scales) {
  const SmallFormat& small = *small_format(wire);
  const auto most = static_cast<float>(small.largest());
  const bool is_exponent = scale_type != MEP_SCALE_FLOAT32;
  const size_t group = scale_group(scale_type);
  const auto value = [&](size_t i) { return load_number(type, x + i * element_bytes(type)); };
  for (size_t begin = 0; begin < hidden; begin += group) {
    const size_t end = std::min(hidden, begin + group);
    float largest = 1e-4f;
    for (size_t i = begin; i < end; ++i) {
      if (std::fabs(value(i)) > largest) largest = std::fabs(value(i));  // never NaN
    }
    const float scale = largest * (1.0f / most);
    volatile float factor = most / largest;
    int exponent = 0;
    if (is_exponent) {
      // The least whose power of two is not below the scale.
      const bool is_power = std::frexp(scale, &exponent) == 0.5f;
      exponent = std::isinf(scale) ? 128 : exponent - (is_power ? 1 : 0);
      factor = static_cast<float>(std::ldexp(1.0, -exponent));
      *scales++ = static_cast<uint8_t>(exponent + 127);
    } else {
      store(scales, scale);
      scales += sizeof scale;
    }
    for (size_t i = begin; i < end; ++i) {
      const volatile float scaled = value(i) * factor;
      codes[i] = static_cast<uint8_t>(small.encode(scaled));
      // Not rounded up to a value that float32 cannot hold.
      const double back = std::ldexp(std::fabs(small.decode(codes[i])), exponent);
      if (exponent < 128 && back > std::numeric_limits<float>::max()) --codes[i];
    }
  }
}

// Whether one of a token's K places is in [first, end).
inline bool goes_to(const int64_t* places, uint32_t top_k, int64_t first, int64_t end) {
  return std::any_of(places, places + top_k,
                     [&](int64_t place) { return place >= first && place < end; });
}
// The tokens with a place in [first, end), each once. places: [T][K].
inline std::vector<uint32_t> tokens_for(const std::vector<int64_t>& places, uint32_t top_k,
                                        int64_t first, int64_t end) {
  std::vector<uint32_t> tokens;
  for (uint32_t token = 0; size_t{token} * top_k < places.size(); ++token) {
    if (goes_to(&places[size_t{token} * top_k], top_k, first, end)) tokens.push_back(token);
  }
  return tokens;
}

// A sum of rows in float32, in the order in which they are added; products are rounded before.
class RowSum {
 public:
  RowSum(mep_dtype_t type, size_t hidden) : type_(type), sum_(hidden, 0.0f) {}
  void add(const void* row, float factor = 1) {
    const auto* from = static_cast<const uint8_t*>(row);
    for (float& sum : sum_) {
      const volatile float product = factor * load_number(type_, from);
      const volatile float total = sum + product;
      sum = total;
      from += element_bytes(type_);
    }
  }
  void store_to(void* row) const {
    auto* to = static_cast<uint8_t*>(row);
    for (const float sum : sum_) {
      store_number(type_, sum, to);
      to += element_bytes(type_);
    }
  }
  std::vector<uint8_t> row() const {
    std::vector<uint8_t> row(sum_.size() * element_bytes(type_));
    store_to(row.data());
    return row;
  }

 private:
  mep_dtype_t type_;
  std::vector<float> sum_;
};

}  // namespace mep_reference

// Dispatch and combine in plain loops on one host thread, for all ranks at once. Shares no
// code with the kernels or with the library's host side: small floating-point types are looked up in
// tables of all their values.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "mep.h"

namespace oracle {

// All non-negative finite values of a format, by code. They rise with the code.
struct Format {
  int bits;
  bool has_infinity;
  uint32_t nan_code;
  std::vector<double> values;
  Format(int total_bits, int mantissa, int bias, bool infinity, uint32_t nan)
      : bits(total_bits), has_infinity(infinity), nan_code(nan) {
    const uint32_t codes = 1u << (total_bits - 1);
    for (uint32_t code = 0; code < codes; ++code) {
      const uint32_t exponent = code >> mantissa;
      const uint32_t fraction = code & ((1u << mantissa) - 1);
      if (infinity && exponent + 1 == codes >> mantissa) break;
      if (!infinity && code == codes - 1) break;
      values.push_back(exponent == 0 ? std::ldexp(fraction, 1 - bias - mantissa)
                                     : std::ldexp(fraction + (1u << mantissa),
                                                  static_cast<int>(exponent) - bias - mantissa));
    }
  }
  uint32_t encode(float value) const {
    if (std::isnan(value)) return nan_code;
    const uint32_t sign = std::signbit(value) ? 1u << (bits - 1) : 0;
    const double magnitude = std::fabs(static_cast<double>(value));
    const double largest = values.back();
    const double step = largest - values[values.size() - 2];
    const auto last = static_cast<uint32_t>(values.size() - 1);
    if (magnitude >= largest) {
      const bool overflows = has_infinity && magnitude >= largest + step / 2;
      return sign | (overflows ? last + 1 : last);
    }
    const auto above = std::upper_bound(values.begin(), values.end(), magnitude);
    const auto high = static_cast<uint32_t>(above - values.begin());
    const uint32_t low = high - 1;
    const double to_low = magnitude - values[low];
    const double to_high = values[high] - magnitude;
    if (to_low != to_high) return sign | (to_low < to_high ? low : high);
    return sign | (low % 2 == 0 ? low : high);
  }
  float decode(uint32_t code) const {
    const uint32_t magnitude = code & ((1u << (bits - 1)) - 1);
    float value = NAN;
    if (magnitude < values.size()) value = static_cast<float>(values[magnitude]);
    if (has_infinity && magnitude == values.size()) value = INFINITY;
    return (code >> (bits - 1)) != 0 ? -value : value;
  }
};

inline const Format& format_of(uint32_t type) {
  static const Format e4m3(8, 3, 7, false, 0x7f);
  static const Format f16(16, 10, 15, true, 0x7e00);
  static const Format bf16(16, 7, 127, true, 0x7fc0);
  return type == MEP_FLOAT8_E4M3 ? e4m3 : type == MEP_FLOAT16 ? f16 : bf16;
}

inline float read_value(uint32_t type, const uint8_t* at) {
  if (type == MEP_FLOAT32) {
    float value = 0;
    std::memcpy(&value, at, 4);
    return value;
  }
  uint32_t code = 0;
  std::memcpy(&code, at, type == MEP_FLOAT8_E4M3 ? 1 : 2);
  return format_of(type).decode(code);
}

inline void write_value(uint32_t type, uint8_t* at, float value) {
  if (type == MEP_FLOAT32) {
    const uint32_t nan = 0x7fc00000;
    if (std::isnan(value)) {
      std::memcpy(at, &nan, 4);
    } else {
      std::memcpy(at, &value, 4);
    }
    return;
  }
  const uint32_t code = format_of(type).encode(value);
  std::memcpy(at, &code, type == MEP_FLOAT8_E4M3 ? 1 : 2);
}

// One row of `type` to e4m3; scales: float32 or biased exponents.
inline void quantize(uint32_t type, const uint8_t* x, size_t width, uint32_t hidden, bool ue8m0,
                     uint8_t* q, uint8_t* scales) {
  for (uint32_t group = 0; group * 128 < hidden; ++group) {
    const uint32_t end = std::min(hidden, group * 128 + 128);
    float a = 1e-4f;
    for (uint32_t i = group * 128; i < end; ++i) {
      const float magnitude = std::fabs(read_value(type, x + i * width));
      if (magnitude > a) a = magnitude;
    }
    const float scale = a * (1.0f / 448);
    float factor = 448 / a;
    if (!ue8m0) {
      std::memcpy(scales + group * 4, &scale, 4);
    } else {
      // The least e with 2^e >= scale.
      int e = 128;
      if (std::isfinite(scale)) {
        e = -127;
        while (std::ldexp(1.0, e) < scale) ++e;
      }
      scales[group] = static_cast<uint8_t>(e + 127);
      factor = static_cast<float>(std::ldexp(1.0, -e));
    }
    for (uint32_t i = group * 128; i < end; ++i) {
      const float scaled = read_value(type, x + i * width) * factor;
      q[i] = static_cast<uint8_t>(format_of(MEP_FLOAT8_E4M3).encode(scaled));
      if (!ue8m0 || !std::isfinite(scale)) continue;
      // Not rounded up to a value that float32 cannot hold.
      const double back = std::ldexp(double{format_of(MEP_FLOAT8_E4M3).decode(q[i])},
                                     static_cast<int>(scales[group]) - 127);
      if (std::fabs(back) > std::numeric_limits<float>::max()) --q[i];
    }
  }
}

struct Row {
  uint32_t source, token, k;
};

// The routing of all: rows of every expert of every rank in order, and the place of every entry.
struct Routing {
  std::vector<std::vector<Row>> rows;       // [places]
  std::vector<std::vector<int32_t>> place;  // [rank][token * K + k]: -1 none
  std::vector<std::vector<int64_t>> row;    // index in recv_x of its expert; -1: not sent
  std::vector<uint32_t> bad;                // [rank]
};

struct Problem {
  uint32_t ranks, max_tokens, hidden, top_k, experts, local_experts;
  bool slotted;
  std::vector<uint8_t> live;
  std::vector<uint32_t> tokens;                 // [rank]
  std::vector<std::vector<int64_t>> topk;       // [rank][T * K]
  std::vector<std::vector<uint32_t>> replicas;  // [expert] places; empty: none
};

inline Routing route(const Problem& p) {
  Routing out;
  const uint32_t places = p.ranks * p.local_experts;
  out.rows.resize(places);
  out.place.resize(p.ranks);
  out.row.resize(p.ranks);
  out.bad.assign(p.ranks, 0);
  for (uint32_t rank = 0; rank < p.ranks; ++rank) {
    const size_t entries = size_t{p.tokens[rank]} * p.top_k;
    out.place[rank].assign(entries, -1);
    out.row[rank].assign(entries, -1);
    if (!p.live[rank]) continue;
    std::vector<uint32_t> from_here(places, 0);
    for (uint32_t token = 0; token < p.tokens[rank]; ++token) {
      for (uint32_t k = 0; k < p.top_k; ++k) {
        const size_t at = size_t{token} * p.top_k + k;
        const int64_t expert = p.topk[rank][at];
        if (expert == -1) continue;
        const auto* row = p.topk[rank].data() + size_t{token} * p.top_k;
        if (expert < 0 || expert >= p.experts || std::find(row, row + k, expert) != row + k) {
          ++out.bad[rank];
          continue;
        }
        auto place = static_cast<uint32_t>(expert);
        if (!p.replicas.empty()) {
          const auto& choices = p.replicas[place];
          place = choices[(token + rank) % choices.size()];
        }
        out.place[rank][at] = static_cast<int32_t>(place);
        if (!p.live[place / p.local_experts]) continue;
        if (p.slotted) {
          out.row[rank][at] = int64_t{rank} * p.max_tokens + from_here[place]++;
        } else {
          out.row[rank][at] = static_cast<int64_t>(out.rows[place].size());
        }
        out.rows[place].push_back({rank, token, k});
      }
    }
  }
  return out;
}

}  // namespace oracle

// Input and output of the ranks of an EP object.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "mep.h"

namespace ep_device {

constexpr uint8_t kPoison = 0xa5;
constexpr uint32_t kTokens = 24;    // at most
constexpr uint32_t kHidden = 1152;  // a pushed term has two pieces
constexpr uint32_t kTopK = 4;
constexpr uint32_t kLocalExperts = 4;
constexpr uint32_t kAlignment = 4;  // of experts, high throughput
struct Shape {
  uint32_t ranks;
  bool fp8;
  bool slotted = false;
  bool with_map = false;  // half as many experts as places, two places for each
  bool throughput = false;
  bool expanded = false;  // high throughput
  bool opaque = false;    // rows of bytes, the first of them once more as side words
  uint32_t scale_type = MEP_SCALE_FLOAT32;
  uint32_t groups() const { return throughput ? 1 : kLocalExperts; }  // of rows
  uint32_t experts() const { return ranks * kLocalExperts / (with_map ? 2 : 1); }
  uint32_t range_groups() const { return expanded ? kLocalExperts : groups(); }
  uint32_t rows() const {
    if (!expanded) return groups() * ranks * kTokens;
    const uint32_t most = ranks * kTokens * std::min(kTopK, kLocalExperts);
    return (most + kLocalExperts * (kAlignment - 1) + kAlignment - 1) / kAlignment * kAlignment;
  }
  // High throughput: values that go with rows.
  uint32_t row_values() const {
    if (expanded) return rows();
    return throughput ? rows() * kTopK : 0;
  }
  uint32_t token_values() const { return throughput ? kTokens * kTopK : 0; }
  size_t wire_row() const { return kHidden * (fp8 ? 1 : 2); }
  bool has_scales() const { return fp8 || opaque; }
  // Bytes of a row's scales or side words.
  size_t scale_row() const {
    if (!has_scales()) return 0;
    return scale_type == MEP_SCALE_UE8M0_32 ? kHidden / 32 : kHidden / 128 * 4;
  }
  const char* rows_name() const {
    if (opaque) return "opaque rows";
    if (!fp8) return "bf16";
    return scale_type == MEP_SCALE_UE8M0_32 ? "mxfp8" : "fp8";
  }
};

// One rank's input.
struct Input {
  uint32_t tokens = 0;
  std::vector<uint16_t> x;  // bf16
  std::vector<uint16_t> replayed_x;
  std::vector<int64_t> experts;
  std::vector<float> weights;
};

// One rank's output; buffers begin poisoned.
struct Output {
  std::vector<uint8_t> recv_x, recv_scales, src_info, counts, ranges, out;
  std::vector<uint8_t> topk_idx, topk_weights, total, out_weights;
  explicit Output(const Shape& s)
      : recv_x(s.rows() * s.wire_row(), kPoison),
        recv_scales(s.rows() * s.scale_row(), kPoison),
        src_info(s.rows() * 4, kPoison),
        counts(kLocalExperts * 4, kPoison),
        ranges(s.range_groups() * s.ranks * 8, kPoison),
        out(kTokens * kHidden * 2, kPoison),
        topk_idx(s.expanded ? 0 : s.row_values() * 4, kPoison),
        topk_weights(s.row_values() * 4, kPoison),
        total(8, kPoison),
        out_weights(s.token_values() * 4, kPoison) {}
};

}  // namespace ep_device

#include "moe_check.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "minifloat.hpp"

namespace mep::perf {
namespace {

float bf16_value(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// Round to nearest, ties to even, of a number that is no NaN.
uint16_t bf16_bits(float value) {
  uint32_t wide = 0;
  std::memcpy(&wide, &value, sizeof wide);
  const uint32_t rest = wide & 0xffff;
  uint32_t kept = wide >> 16;
  if (rest > 0x8000 || (rest == 0x8000 && (kept & 1) != 0)) ++kept;
  return static_cast<uint16_t>(kept);
}

const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> made{};
    for (uint16_t bits = 0; bits < 256; ++bits) {
      made[bits] = static_cast<float>(decode_float(kE4m3, bits));
    }
    return made;
  }();
  return values;
}

// A row as it should cross the wire.
struct WireRow {
  std::vector<uint8_t> bytes;
  std::vector<float> scales;
};

WireRow wire_row(const MoeShape& shape, const uint16_t* x) {
  WireRow row;
  if (!shape.wire_is_fp8) {
    row.bytes.resize(shape.hidden * sizeof(uint16_t));
    std::memcpy(row.bytes.data(), x, row.bytes.size());
    return row;
  }
  row.bytes.resize(shape.hidden);
  for (uint32_t begin = 0; begin < shape.hidden; begin += kScaleBlock) {
    const uint32_t end = std::min(begin + kScaleBlock, shape.hidden);
    float largest = 1e-4f;
    for (uint32_t h = begin; h < end; ++h) largest = std::max(largest, std::fabs(bf16_value(x[h])));
    const float to_wire = 448.0f / largest;
    const float from_wire = largest * (1.0f / 448.0f);
    for (uint32_t h = begin; h < end; ++h) {
      const float scaled = bf16_value(x[h]) * to_wire;
      row.bytes[h] = static_cast<uint8_t>(encode_float(kE4m3, scaled));
    }
    row.scales.push_back(from_wire);
  }
  return row;
}

uint64_t count_row_errors(const WireRow& expected, const ReceivedRow& row) {
  uint64_t errors = 0;
  const auto* bytes = static_cast<const uint8_t*>(row.data);
  for (size_t i = 0; i < expected.bytes.size(); ++i)
    errors += bytes[i] != expected.bytes[i] ? 1 : 0;
  if (expected.scales.empty()) return errors;
  for (size_t i = 0; i < expected.scales.size(); ++i) {
    errors += row.scales[i] != expected.scales[i] ? 1 : 0;
  }
  return errors;
}

// All rows that `source` sent to this rank.
uint64_t count_source_errors(const MoeProblem& problem, const MoeSide& side, int source,
                             uint32_t round, uint32_t routed) {
  const MoeShape& shape = problem.shape();
  const auto [experts, weights] = problem.router().route(source, shape.tokens, routed);
  std::vector<std::vector<uint32_t>> tokens(shape.experts_per_rank);
  std::vector<std::vector<float>> row_weights(shape.experts_per_rank);
  std::vector<WireRow> rows(shape.tokens);
  std::vector<uint16_t> x(shape.hidden);
  for (uint32_t token = 0; token < shape.tokens; ++token) {
    for (uint32_t k = 0; k < shape.top_k; ++k) {
      const size_t at = static_cast<size_t>(token) * shape.top_k + k;
      const int64_t expert = experts[at];
      if (expert < 0 || expert / shape.experts_per_rank != shape.rank) continue;
      tokens[static_cast<size_t>(expert % shape.experts_per_rank)].push_back(token);
      row_weights[static_cast<size_t>(expert % shape.experts_per_rank)].push_back(weights[at]);
      if (!rows[token].bytes.empty()) continue;
      make_token(shape, source, token, round, x.data());
      rows[token] = wire_row(shape, x.data());
    }
  }
  uint64_t errors = 0;
  for (uint32_t expert = 0; expert < shape.experts_per_rank; ++expert) {
    if (side.received_count(expert, source) != tokens[expert].size()) {
      errors += 1 + tokens[expert].size();
      continue;
    }
    for (size_t i = 0; i < tokens[expert].size(); ++i) {
      const ReceivedRow row = side.received_row(expert, source, i);
      if (row.token >= 0 && row.token != tokens[expert][i]) ++errors;
      errors += count_row_errors(rows[tokens[expert][i]], row);
      if (shape.is_expanded) errors += *row.topk_weights != row_weights[expert][i] ? 1 : 0;
    }
  }
  return errors;
}

// High throughput: the token's experts and weights, of those that are on this rank.
uint64_t count_topk_errors(const MoeShape& shape, const int64_t* experts, const float* weights,
                           const ReceivedRow& row) {
  uint64_t errors = 0;
  for (uint32_t k = 0; k < shape.top_k; ++k) {
    const bool is_here = experts[k] >= 0 && experts[k] / shape.experts_per_rank == shape.rank;
    errors += row.topk_idx[k] != (is_here ? experts[k] % shape.experts_per_rank : -1) ? 1 : 0;
    errors += row.topk_weights[k] != (is_here ? weights[k] : 0) ? 1 : 0;
  }
  return errors;
}

// High throughput: a row for each token that has an expert here, in the order of tokens.
uint64_t count_throughput_errors(const MoeProblem& problem, const MoeSide& side, int source,
                                 uint32_t round, uint32_t routed) {
  const MoeShape& shape = problem.shape();
  const auto [experts, weights] = problem.router().route(source, shape.tokens, routed);
  std::vector<uint16_t> x(shape.hidden);
  uint64_t errors = 0;
  uint64_t rows = 0;
  for (uint32_t token = 0; token < shape.tokens; ++token) {
    const size_t first = static_cast<size_t>(token) * shape.top_k;
    bool is_sent = false;
    for (size_t at = first; at < first + shape.top_k; ++at) {
      is_sent = is_sent || (experts[at] >= 0 && experts[at] / shape.experts_per_rank == shape.rank);
    }
    if (!is_sent) continue;
    ++rows;
    if (rows > side.received_count(0, source)) continue;
    const ReceivedRow row = side.received_row(0, source, rows - 1);
    if (row.token >= 0 && row.token != token) ++errors;
    make_token(shape, source, token, round, x.data());
    errors += count_row_errors(wire_row(shape, x.data()), row);
    errors += count_topk_errors(shape, experts.data() + first, weights.data() + first, row);
  }
  return side.received_count(0, source) == rows ? errors : 1 + rows;
}

// The stand-in expert's output for a row.
void expert_output(const MoeShape& shape, const WireRow& row, float factor, std::vector<float>* y) {
  for (uint32_t h = 0; h < shape.hidden; ++h) {
    float value = 0;
    if (shape.wire_is_fp8) {
      value = e4m3_values()[row.bytes[h]] * row.scales[h / kScaleBlock];
    } else {
      uint16_t bits = 0;
      std::memcpy(&bits, &row.bytes[h * sizeof bits], sizeof bits);
      value = bf16_value(bits);
    }
    (*y)[h] = bf16_value(bf16_bits(value * factor));
  }
}

// High throughput: what the token's experts on `rank` make of its row, summed there.
bool rank_output(const MoeShape& shape, const WireRow& row, const int64_t* experts,
                 const float* weights, int64_t rank, std::vector<float>* sum) {
  std::vector<float> y(shape.hidden);
  bool is_sent = false;
  std::fill(sum->begin(), sum->end(), 0.0f);
  for (uint32_t k = 0; k < shape.top_k; ++k) {
    if (experts[k] < 0 || experts[k] / shape.experts_per_rank != rank) continue;
    is_sent = true;
    // Expanded, the weight is in the output.
    const float factor = expert_factor(experts[k]);
    expert_output(shape, row, shape.is_expanded ? weights[k] * factor : factor, &y);
    for (uint32_t h = 0; h < shape.hidden; ++h) {
      const float term = shape.is_expanded ? y[h] : weights[k] * y[h];
      (*sum)[h] = (*sum)[h] + term;
    }
  }
  for (float& value : *sum) value = bf16_value(bf16_bits(value));
  return is_sent;
}

uint64_t count_throughput_output_errors(const MoeProblem& problem) {
  const MoeShape& shape = problem.shape();
  std::vector<float> part(shape.hidden);
  std::vector<float> sum(shape.hidden);
  uint64_t errors = 0;
  for (uint32_t token = 0; token < shape.tokens; ++token) {
    const WireRow row = wire_row(shape, problem.x() + static_cast<size_t>(token) * shape.hidden);
    const size_t first = static_cast<size_t>(token) * shape.top_k;
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (int rank = 0; rank < shape.size; ++rank) {
      if (!rank_output(shape, row, problem.topk_idx().data() + first,
                       problem.topk_weights().data() + first, rank, &part)) {
        continue;
      }
      for (uint32_t h = 0; h < shape.hidden; ++h) sum[h] = sum[h] + part[h];
    }
    const uint16_t* out = problem.out() + static_cast<size_t>(token) * shape.hidden;
    for (uint32_t h = 0; h < shape.hidden; ++h) errors += out[h] != bf16_bits(sum[h]) ? 1 : 0;
  }
  return errors;
}

}  // namespace

uint64_t count_received_errors(const MoeProblem& problem, const MoeSide& side, uint32_t round,
                               uint32_t routed) {
  uint64_t errors = 0;
  for (int source = 0; source < problem.shape().size; ++source) {
    const bool by_token = problem.shape().is_high_throughput && !problem.shape().is_expanded;
    errors += by_token ? count_throughput_errors(problem, side, source, round, routed)
                       : count_source_errors(problem, side, source, round, routed);
  }
  return errors;
}

uint64_t count_output_errors(const MoeProblem& problem) {
  const MoeShape& shape = problem.shape();
  if (shape.is_high_throughput) return count_throughput_output_errors(problem);
  std::vector<float> y(shape.hidden);
  std::vector<float> sum(shape.hidden);
  uint64_t errors = 0;
  for (uint32_t token = 0; token < shape.tokens; ++token) {
    const WireRow row = wire_row(shape, problem.x() + static_cast<size_t>(token) * shape.hidden);
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (uint32_t k = 0; k < shape.top_k; ++k) {
      const size_t entry = static_cast<size_t>(token) * shape.top_k + k;
      if (problem.topk_idx()[entry] < 0) continue;
      expert_output(shape, row, expert_factor(problem.topk_idx()[entry]), &y);
      for (uint32_t h = 0; h < shape.hidden; ++h) {
        const float term = problem.topk_weights()[entry] * y[h];
        sum[h] = sum[h] + term;
      }
    }
    const uint16_t* out = problem.out() + static_cast<size_t>(token) * shape.hidden;
    for (uint32_t h = 0; h < shape.hidden; ++h) errors += out[h] != bf16_bits(sum[h]) ? 1 : 0;
  }
  return errors;
}

}  // namespace mep::perf

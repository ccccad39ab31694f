#include "moe_check.hpp"

#include <cstring>

#include "support/ep_reference.hpp"

namespace mep::perf {
namespace {

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
  row.scales.resize(shape.scales_per_row());
  mep_reference::quantize(MEP_BFLOAT16, reinterpret_cast<const uint8_t*>(x), shape.hidden,
                          MEP_FLOAT8_E4M3, MEP_SCALE_FLOAT32, row.bytes.data(),
                          reinterpret_cast<uint8_t*>(row.scales.data()));
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
  const int64_t own = int64_t{shape.rank} * shape.experts_per_rank;
  for (const uint32_t token :
       mep_reference::tokens_for(experts, shape.top_k, own, own + shape.experts_per_rank)) {
    const size_t first = static_cast<size_t>(token) * shape.top_k;
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
void expert_output(const MoeShape& shape, const WireRow& row, float factor,
                   std::vector<uint16_t>* y) {
  for (uint32_t h = 0; h < shape.hidden; ++h) {
    float value = 0;
    if (shape.wire_is_fp8) {
      value =
          mep_reference::load_number(MEP_FLOAT8_E4M3, &row.bytes[h]) * row.scales[h / kScaleBlock];
    } else {
      value = mep_reference::load_number(MEP_BFLOAT16, &row.bytes[h * sizeof(uint16_t)]);
    }
    mep_reference::store_number(MEP_BFLOAT16, value * factor, &(*y)[h]);
  }
}

// Adds what the token's experts on `rank`, or on all for -1, make of its row.
bool add_outputs(const MoeShape& shape, const WireRow& row, const int64_t* experts,
                 const float* weights, int64_t rank, mep_reference::RowSum* sum) {
  std::vector<uint16_t> y(shape.hidden);
  bool is_sent = false;
  for (uint32_t k = 0; k < shape.top_k; ++k) {
    if (experts[k] < 0 || (rank >= 0 && experts[k] / shape.experts_per_rank != rank)) continue;
    is_sent = true;
    // Expanded, the weight is in the output.
    const float factor = expert_factor(experts[k]);
    expert_output(shape, row, shape.is_expanded ? weights[k] * factor : factor, &y);
    sum->add(y.data(), shape.is_expanded ? 1 : weights[k]);
  }
  return is_sent;
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
  uint64_t errors = 0;
  for (uint32_t token = 0; token < shape.tokens; ++token) {
    const WireRow row = wire_row(shape, problem.x() + static_cast<size_t>(token) * shape.hidden);
    const size_t first = static_cast<size_t>(token) * shape.top_k;
    const int64_t* experts = problem.topk_idx().data() + first;
    const float* weights = problem.topk_weights().data() + first;
    mep_reference::RowSum sum(MEP_BFLOAT16, shape.hidden);
    if (!shape.is_high_throughput) {
      (void)add_outputs(shape, row, experts, weights, -1, &sum);
    }
    // High throughput: each rank's outputs are summed there.
    for (int rank = 0; rank < shape.size && shape.is_high_throughput; ++rank) {
      mep_reference::RowSum part(MEP_BFLOAT16, shape.hidden);
      if (add_outputs(shape, row, experts, weights, rank, &part)) sum.add(part.row().data());
    }
    std::vector<uint16_t> expected(shape.hidden);
    sum.store_to(expected.data());
    const uint16_t* out = problem.out() + static_cast<size_t>(token) * shape.hidden;
    for (uint32_t h = 0; h < shape.hidden; ++h) errors += out[h] != expected[h] ? 1 : 0;
  }
  return errors;
}

}  // namespace mep::perf

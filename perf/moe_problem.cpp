#include "moe_problem.hpp"

#include <cmath>
#include <cstring>
#include <set>

namespace mep::perf {
namespace {

uint64_t scramble(uint64_t value) {
  value = (value ^ (value >> 32)) * 0xd6e8feb86659fd93u;
  value = (value ^ (value >> 32)) * 0xd6e8feb86659fd93u;
  return value ^ (value >> 32);
}

}  // namespace

void make_token(const MoeShape& shape, int rank, uint32_t token, uint32_t round, uint16_t* x) {
  const uint64_t seed =
      scramble((static_cast<uint64_t>(round) << 48) ^ (static_cast<uint64_t>(token) << 16) ^
               static_cast<uint64_t>(static_cast<uint32_t>(rank)) ^ 0x5bd1e995u);
  uint64_t bits = 0;
  for (uint32_t h = 0; h < shape.hidden; ++h) {
    bits = h % 4 == 0 ? scramble(seed + h) : bits >> 16;
    // Any sign and mantissa; sizes between 2^-6 and 4, and every ninth value so small that it is a
    // subnormal or zero as e4m3.
    const uint64_t lowest = h % 9 == 0 ? 107 : 121;
    const auto exponent = static_cast<uint16_t>(lowest + (bits & 7));
    x[h] = static_cast<uint16_t>((bits & 0x8000) | exponent << 7 | ((bits >> 3) & 0x7f));
  }
}

void make_weights(const MoeShape& shape, uint32_t round, float* weights) {
  for (uint32_t token = 0; token < shape.tokens; ++token, weights += shape.top_k) {
    float total = 0;
    for (uint32_t k = 0; k < shape.top_k; ++k) {
      const uint64_t bits =
          scramble((static_cast<uint64_t>(token) << 8 | k) + static_cast<uint64_t>(round) * 7919);
      weights[k] = 0.1f + static_cast<float>(bits >> 40) * 0x1p-24f;
      total += weights[k];
    }
    for (uint32_t k = 0; k < shape.top_k; ++k) {
      // Odd tokens have round weights, whose sums often lie right between two bfloat16 numbers.
      weights[k] = token % 2 == 0 ? weights[k] / total : std::ceil(weights[k] * 8) / 32;
    }
  }
}

float expert_factor(int64_t expert) {
  return 0.5f + 0.125f * static_cast<float>(expert % 11);
}

MoeProblem::MoeProblem(const MoeShape& shape, const Routing& routing)
    : shape_(shape),
      router_(routing, shape.experts, shape.top_k),
      x_(static_cast<size_t>(shape.tokens) * shape.hidden * sizeof(uint16_t)),
      out_(static_cast<size_t>(shape.tokens) * shape.hidden * sizeof(uint16_t)) {
  load(0);
}

void MoeProblem::load_tokens(uint32_t round) {
  for (uint32_t token = 0; token < shape_.tokens; ++token) {
    make_token(shape_, shape_.rank, token, round,
               x_.as<uint16_t>() + static_cast<size_t>(token) * shape_.hidden);
  }
}

void MoeProblem::load(uint32_t round) {
  load_tokens(round);
  router_.route(shape_.rank, shape_.tokens, round, &topk_idx_);
  rows_ = count_rows();
  topk_weights_.resize(topk_idx_.size());
  make_weights(shape_, round, topk_weights_.data());
}

uint64_t MoeProblem::count_rows() const {
  uint64_t rows = 0;
  for (uint32_t token = 0; token < shape_.tokens; ++token) {
    std::set<int64_t> targets;  // experts, or ranks
    for (uint32_t k = 0; k < shape_.top_k; ++k) {
      const int64_t expert = topk_idx_[static_cast<size_t>(token) * shape_.top_k + k];
      if (expert < 0) continue;
      targets.insert(shape_.is_high_throughput ? expert / shape_.experts_per_rank : expert);
    }
    rows += targets.size();
  }
  return rows;
}

void MoeProblem::poison_output() {
  std::memset(out_.as<void>(), 0xa5,
              static_cast<size_t>(shape_.tokens) * shape_.hidden * sizeof(uint16_t));
}

}  // namespace mep::perf

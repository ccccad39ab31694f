#include "moe_problem.hpp"

#include <cstring>

#include "support/random_numbers.hpp"

namespace mep::perf {

using mep_reference::scrambled;

void make_token(const MoeShape& shape, int rank, uint32_t token, uint32_t round, uint16_t* x) {
  const uint64_t seed =
      scrambled((static_cast<uint64_t>(round) << 48) ^ (static_cast<uint64_t>(token) << 16) ^
                static_cast<uint64_t>(static_cast<uint32_t>(rank)) ^ 0x5bd1e995u);
  uint64_t bits = 0;
  for (uint32_t h = 0; h < shape.hidden; ++h) {
    bits = h % 4 == 0 ? scrambled(seed + h) : bits >> 16;
    // Any sign and mantissa; sizes between 2^-6 and 4, and every ninth value so small that it is a
    // subnormal or zero as e4m3.
    const uint64_t lowest = h % 9 == 0 ? 107 : 121;
    const auto exponent = static_cast<uint16_t>(lowest + (bits & 7));
    x[h] = static_cast<uint16_t>((bits & 0x8000) | exponent << 7 | ((bits >> 3) & 0x7f));
  }
}

float expert_factor(int64_t expert) {
  return 0.5f + 0.125f * static_cast<float>(expert % 11);
}

MoeProblem::MoeProblem(const MoeShape& shape, const Router& router)
    : shape_(shape),
      router_(router),
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
  choice_ = router_.route(shape_.rank, shape_.tokens, round);
}

std::vector<double> MoeProblem::count_rows() const {
  std::vector<double> rows(static_cast<size_t>(shape_.size), 0);
  std::vector<size_t> last_token(rows.size(), SIZE_MAX);
  for (size_t entry = 0; entry < choice_.experts.size(); ++entry) {
    if (choice_.experts[entry] < 0) continue;
    const auto target = static_cast<size_t>(choice_.experts[entry] / shape_.experts_per_rank);
    const size_t token = entry / shape_.top_k;
    // High throughput: one row, however many of the token's experts are there.
    if (shape_.is_high_throughput && last_token[target] == token) continue;
    last_token[target] = token;
    ++rows[target];
  }
  return rows;
}

void MoeProblem::poison_output() {
  std::memset(out_.as<void>(), 0xa5,
              static_cast<size_t>(shape_.tokens) * shape_.hidden * sizeof(uint16_t));
}

}  // namespace mep::perf

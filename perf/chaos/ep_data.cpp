#include "ep_data.hpp"

#include "numbers.hpp"
#include "support/ep_reference.hpp"

namespace mep::programs {
namespace {

enum Stream : uint64_t { kTokens = 1, kRouting, kWeights, kInput, kOutput };

bool has(uint64_t ranks, uint32_t rank) {
  return (ranks >> rank & 1) != 0;
}

}  // namespace

EpRound::EpRound(const Program& program, const EpShape& shape, const Members& members,
                 uint64_t live, uint32_t step, uint64_t stamp)
    : program_(program),
      shape_(shape),
      members_(members),
      live_(live),
      step_(step),
      stamp_(stamp) {}

uint64_t EpRound::key(uint64_t what, uint32_t rank, uint64_t more) const {
  const uint32_t slot = members_.slots[rank];
  return mix(program_.seed ^ stamp_ << 20, uint64_t{step_} << 32 | what,
             uint64_t{slot} << 32 | program_.generation(slot, step_), more);
}

uint32_t EpRound::experts() const {
  return static_cast<uint32_t>(members_.slots.size()) * shape_.local_experts;
}

size_t EpRound::rows_per_expert() const {
  return members_.slots.size() * shape_.max_tokens;
}

size_t EpRound::input_bytes() const {
  return shape_.hidden * element_bytes(shape_.input);
}

size_t EpRound::combine_bytes() const {
  return shape_.hidden * element_bytes(shape_.combine);
}

uint32_t EpRound::tokens(uint32_t rank) const {
  RandomStream random(key(kTokens, rank));
  if (random.percent(15)) return 0;
  return random.percent(25) ? shape_.max_tokens : random.between(0, shape_.max_tokens);
}

std::vector<int64_t> EpRound::routing(uint32_t rank) const {
  RandomStream random(key(kRouting, rank));
  std::vector<int64_t> result;
  const bool crowded = random.percent(20);
  for (uint32_t token = 0; token < tokens(rank); ++token) {
    std::vector<bool> taken(experts(), false);
    for (uint32_t k = 0; k < shape_.top_k; ++k) {
      const auto expert = static_cast<size_t>(random.below(crowded ? shape_.top_k : experts()));
      const auto owner = static_cast<uint32_t>(expert / shape_.local_experts);
      const bool none = random.percent(12) || taken[expert] || !has(live_, owner);
      if (!none) taken[expert] = true;
      result.push_back(none ? -1 : static_cast<int64_t>(expert));
    }
  }
  return result;
}

std::vector<float> EpRound::weights(uint32_t rank) const {
  RandomStream random(key(kWeights, rank));
  std::vector<float> result(size_t{tokens(rank)} * shape_.top_k);
  for (float& weight : result) {
    weight = static_cast<float>(static_cast<int64_t>(random.below(20001)) - 10000) * 1e-4f;
  }
  return result;
}

void EpRound::x_row(uint32_t rank, uint32_t token, uint8_t* to) const {
  const uint64_t row = key(kInput, rank, token);
  const size_t bytes = element_bytes(shape_.input);
  for (uint32_t i = 0; i < shape_.hidden; ++i) {
    const uint64_t bits = scrambled(row + i);
    mep_reference::store_number(shape_.input,
                                static_cast<float>(static_cast<int32_t>(bits % 255) - 127) / 8,
                                to + i * bytes);
  }
}

void EpRound::y_row(uint32_t expert_rank, uint32_t local, uint32_t rank, uint32_t token,
                    uint8_t* to) const {
  const uint64_t row =
      key(kOutput, rank, uint64_t{expert_rank} << 48 | uint64_t{local} << 32 | token);
  const size_t bytes = element_bytes(shape_.combine);
  for (uint32_t i = 0; i < shape_.hidden; ++i) {
    const uint64_t bits = scrambled(row + i);
    mep_reference::store_number(shape_.combine,
                                static_cast<float>(static_cast<int32_t>(bits % 255) - 127) / 16,
                                to + i * bytes);
  }
}

std::vector<Arrival> EpRound::arrivals(uint32_t local, uint64_t missing) const {
  const int64_t experts_in_group = shape_.high_throughput ? shape_.local_experts : 1;
  const int64_t first = int64_t{members_.rank} * shape_.local_experts + local;
  std::vector<Arrival> result;
  for (uint32_t rank = 0; rank < members_.slots.size(); ++rank) {
    if (has(missing, rank)) continue;
    for (const uint32_t token :
         mep_reference::tokens_for(routing(rank), shape_.top_k, first, first + experts_in_group)) {
      result.push_back({rank, token});
    }
  }
  return result;
}

bool EpRound::lacks(uint64_t missing) const {
  for (const int64_t expert : routing(members_.rank)) {
    if (expert >= 0 && has(missing, static_cast<uint32_t>(expert) / shape_.local_experts))
      return true;
  }
  return false;
}

void EpRound::combined_row(uint32_t token, uint64_t missing, uint8_t* to) const {
  const std::vector<int64_t> experts = routing(members_.rank);
  const std::vector<float> weight = weights(members_.rank);
  mep_reference::RowSum sum(shape_.combine, shape_.hidden);
  std::vector<uint8_t> row(combine_bytes());
  for (uint32_t owner = 0; owner < members_.slots.size() && shape_.high_throughput; ++owner) {
    const int64_t first = int64_t{owner} * shape_.local_experts;
    const bool is_sent = mep_reference::goes_to(&experts[size_t{token} * shape_.top_k],
                                                shape_.top_k, first, first + shape_.local_experts);
    if (!is_sent || has(missing, owner)) continue;
    y_row(owner, 0, members_.rank, token, row.data());
    sum.add(row.data());
  }
  for (uint32_t k = 0; k < shape_.top_k && !shape_.high_throughput; ++k) {
    const size_t at = size_t{token} * shape_.top_k + k;
    if (experts[at] < 0) continue;
    const auto expert = static_cast<uint32_t>(experts[at]);
    const uint32_t owner = expert / shape_.local_experts;
    if (has(missing, owner)) continue;
    y_row(owner, expert % shape_.local_experts, members_.rank, token, row.data());
    sum.add(row.data(), weight[at]);
  }
  sum.store_to(to);
}

}  // namespace mep::programs

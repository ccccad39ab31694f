// Random numbers come from a counter-based mix, not from the standard library's distributions, so a
// run is the same on every machine.
#include "routing.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "support/random_numbers.hpp"

namespace mep::perf {
namespace {

using mep_reference::scrambled;

// In (0, 1].
double unit(uint64_t bits) {
  return (static_cast<double>(bits >> 11) + 1) * 0x1p-53;
}

// Gaussian, mean 0 and variance 1.
double gaussian(uint64_t seed) {
  return std::sqrt(-2 * std::log(unit(scrambled(seed)))) *
         std::cos(2 * std::numbers::pi * unit(scrambled(~seed)));
}

// The indices of the `count` largest values, the largest first; of equal ones the first.
std::vector<uint32_t> largest(const std::vector<float>& values, uint32_t count) {
  std::vector<uint32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0u);
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&values](uint32_t a, uint32_t b) {
                      return values[a] != values[b] ? values[a] > values[b] : a < b;
                    });
  order.resize(count);
  return order;
}

// For a routing that says nothing of weights: the same on all ranks.
void make_weights(uint32_t token, uint32_t round, uint32_t top_k, float* weights) {
  float total = 0;
  for (uint32_t k = 0; k < top_k; ++k) {
    const uint64_t bits =
        scrambled((static_cast<uint64_t>(token) << 8 | k) + static_cast<uint64_t>(round) * 7919);
    weights[k] = 0.1f + static_cast<float>(bits >> 40) * 0x1p-24f;
    total += weights[k];
  }
  for (uint32_t k = 0; k < top_k; ++k) {
    // Odd tokens have round weights, whose sums often lie right between two bfloat16 numbers.
    weights[k] = token % 2 == 0 ? weights[k] / total : std::ceil(weights[k] * 8) / 32;
  }
}

}  // namespace

Router::Router(const Routing& routing, uint32_t experts, uint32_t top_k)
    : routing_(routing), experts_(experts), top_k_(top_k) {
  if (routing.kind == RoutingKind::kFile) trace_ = read_trace(routing.path, experts, top_k);
  if (routing.kind == RoutingKind::kDeepseekV3) {
    constexpr uint64_t kBiasSeed = 0xb1a5;
    for (uint32_t e = 0; e < experts; ++e) {
      bias_.push_back(static_cast<float>(0.05 * gaussian(scrambled(kBiasSeed) + e)));
    }
  }
  if (routing.kind != RoutingKind::kZipf) return;
  // Popularity is spread over the ids, so that the popular experts are not all on the first rank.
  std::vector<uint32_t> order(experts);
  std::iota(order.begin(), order.end(), 0u);
  for (uint32_t i = experts; i > 1; --i) std::swap(order[i - 1], order[scrambled(i) % i]);
  inverse_weight_.resize(experts);
  for (uint32_t i = 0; i < experts; ++i) {
    inverse_weight_[order[i]] = std::pow(i + 1.0, routing.exponent);
  }
}

void Router::route_uniform(uint64_t seed, int64_t* experts) const {
  for (uint32_t k = 0; k < top_k_; ++k) {
    int64_t chosen = 0;
    do {
      chosen = static_cast<int64_t>(scrambled(seed++) % experts_);
    } while (std::find(experts, experts + k, chosen) != experts + k);
    experts[k] = chosen;
  }
}

// Drawing without replacement by weight is taking the smallest of exponentially distributed times.
void Router::route_zipf(uint64_t seed, int64_t* experts) const {
  std::vector<std::pair<double, int64_t>> times(experts_);
  for (uint32_t e = 0; e < experts_; ++e) {
    times[e] = {-std::log(unit(scrambled(seed + e))) * inverse_weight_[e], e};
  }
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(top_k_);
  std::partial_sort(times.begin(), middle, times.end());
  for (uint32_t k = 0; k < top_k_; ++k) experts[k] = times[k].second;
}

void Router::route_deepseek_v3(uint64_t seed, int64_t* experts, float* weights) const {
  std::vector<float> scores(experts_);
  for (uint32_t e = 0; e < experts_; ++e) {
    scores[e] = static_cast<float>(1 / (1 + std::exp(-gaussian(seed + e))));
  }
  choose_in_groups(scores, bias_, top_k_, experts, weights);
}

void Router::route_trace(size_t token, int64_t* experts, float* weights) const {
  const size_t first = token % (trace_.experts.size() / top_k_) * top_k_;
  std::copy_n(trace_.experts.data() + first, top_k_, experts);
  if (!trace_.weights.empty()) std::copy_n(trace_.weights.data() + first, top_k_, weights);
}

Choice Router::route(int rank, uint32_t tokens, uint32_t round) const {
  Choice choice;
  choice.experts.resize(static_cast<size_t>(tokens) * top_k_);
  choice.weights.resize(choice.experts.size());
  for (uint32_t token = 0; token < tokens; ++token) {
    int64_t* experts = choice.experts.data() + static_cast<size_t>(token) * top_k_;
    float* weights = choice.weights.data() + static_cast<size_t>(token) * top_k_;
    make_weights(token, round, top_k_, weights);
    const uint64_t seed = scrambled(
        scrambled(scrambled(round) + static_cast<uint64_t>(static_cast<uint32_t>(rank))) + token);
    switch (routing_.kind) {
      case RoutingKind::kUniform:
        route_uniform(seed, experts);
        break;
      case RoutingKind::kZipf:
        route_zipf(seed, experts);
        break;
      case RoutingKind::kDeepseekV3:
        route_deepseek_v3(seed, experts, weights);
        break;
      case RoutingKind::kFile:
        route_trace(static_cast<size_t>(rank) * tokens + token + round, experts, weights);
        break;
    }
  }
  return choice;
}

void choose_in_groups(const std::vector<float>& scores, const std::vector<float>& bias,
                      uint32_t top_k, int64_t* experts, float* weights) {
  constexpr float kScale = 2.5f;
  const size_t group_size = scores.size() / kExpertGroups;
  std::vector<float> biased(scores.size());
  for (size_t e = 0; e < scores.size(); ++e) biased[e] = scores[e] + bias[e];
  std::vector<float> group_scores;
  for (size_t group = 0; group < kExpertGroups; ++group) {
    const auto begin = biased.begin() + static_cast<std::ptrdiff_t>(group * group_size);
    const std::vector<float> members(begin, begin + static_cast<std::ptrdiff_t>(group_size));
    const std::vector<uint32_t> two = largest(members, 2);
    group_scores.push_back(members[two[0]] + members[two[1]]);
  }
  std::vector<float> kept(scores.size(), -std::numeric_limits<float>::infinity());
  for (const uint32_t group : largest(group_scores, kKeptGroups)) {
    const auto begin = static_cast<std::ptrdiff_t>(group * group_size);
    std::copy_n(biased.begin() + begin, group_size, kept.begin() + begin);
  }
  const std::vector<uint32_t> chosen = largest(kept, top_k);
  float total = 0;
  for (const uint32_t expert : chosen) total += scores[expert];
  for (uint32_t k = 0; k < top_k; ++k) {
    experts[k] = chosen[k];
    weights[k] = scores[chosen[k]] / total * kScale;
  }
}

}  // namespace mep::perf

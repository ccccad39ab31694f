// The routings of mep_perf: the gate of DeepSeek-V3 beside a search through all sets of groups, the shares of zipf, the rows
// of a file by rank.
#include "routing.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <random>
#include <set>

#include "support/cmocka_cpp.hpp"
#include "support/temporary_folder.hpp"

using namespace mep::perf;

namespace {

Routing routing_of(RoutingKind kind, double exponent = 0, const std::string& path = "") {
  Routing routing;
  routing.kind = kind;
  routing.exponent = exponent;
  routing.path = path;
  return routing;
}

struct Gate {
  std::set<int64_t> experts;
  std::vector<double> weights;  // [expert], 0 where it is not chosen
};

// Takes the set of 4 groups out of 8 that has the largest sum.
Gate reference_gate(const std::vector<float>& scores, const std::vector<float>& bias,
                    uint32_t top_k) {
  const size_t per_group = scores.size() / 8;
  const auto biased = [&](size_t expert) { return scores[expert] + bias[expert]; };
  double best_sum = -1e9;
  unsigned best_set = 0;
  for (unsigned set = 0; set < 256; ++set) {
    double sum = 0;
    int groups = 0;
    for (size_t group = 0; group < 8; ++group) {
      if ((set >> group & 1) == 0) continue;
      ++groups;
      float pair = -1e9f;
      for (size_t a = group * per_group; a < (group + 1) * per_group; ++a) {
        for (size_t b = group * per_group; b < a; ++b) pair = std::max(pair, biased(a) + biased(b));
      }
      sum += pair;
    }
    if (groups != 4 || sum <= best_sum) continue;
    best_sum = sum;
    best_set = set;
  }
  Gate gate;
  double total = 0;
  while (gate.experts.size() < top_k) {
    int64_t best = -1;
    for (size_t e = 0; e < scores.size(); ++e) {
      const auto expert = static_cast<int64_t>(e);
      if ((best_set >> (e / per_group) & 1) == 0 || gate.experts.count(expert) != 0) continue;
      if (best < 0 || biased(e) > biased(static_cast<size_t>(best))) best = expert;
    }
    gate.experts.insert(best);
    total += scores[static_cast<size_t>(best)];
  }
  gate.weights.resize(scores.size());
  for (const int64_t e : gate.experts) {
    gate.weights[static_cast<size_t>(e)] = 2.5 * scores[static_cast<size_t>(e)] / total;
  }
  return gate;
}

void the_gate_is_that_of_deepseek_v3(void**) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> score(0.01f, 1.0f);
  std::uniform_real_distribution<float> shift(-0.3f, 0.3f);
  for (int round = 0; round < 300; ++round) {
    const uint32_t per_group = 2 + random() % 31;
    const uint32_t top_k = 1 + random() % std::min(4 * per_group, 12u);
    std::vector<float> scores(size_t{8} * per_group);
    std::vector<float> bias(scores.size());
    for (float& value : scores) value = score(random);
    for (float& value : bias) value = shift(random);
    const Gate expected = reference_gate(scores, bias, top_k);
    std::vector<int64_t> experts(top_k);
    std::vector<float> weights(top_k);
    choose_in_groups(scores, bias, top_k, experts.data(), weights.data());
    assert_true(std::set<int64_t>(experts.begin(), experts.end()) == expected.experts);
    for (uint32_t k = 0; k < top_k; ++k) {
      const double wanted = expected.weights[static_cast<size_t>(experts[k])];
      assert_true(std::fabs(weights[k] - wanted) < 1e-5);
    }
  }
}

// Rows of experts for `tokens` of one rank, checked for what all routings promise.
Choice checked_choice(const Router& router, uint32_t experts, uint32_t top_k, uint32_t tokens) {
  Choice choice = router.route(1, tokens, 0);
  assert_int_equal(choice.experts.size(), size_t{tokens} * top_k);
  assert_int_equal(choice.weights.size(), choice.experts.size());
  for (size_t first = 0; first < choice.experts.size(); first += top_k) {
    const auto begin = choice.experts.begin() + static_cast<ptrdiff_t>(first);
    const std::set<int64_t> row(begin, begin + top_k);
    assert_int_equal(row.size(), top_k);
    assert_true(*row.begin() >= 0 && *row.rbegin() < experts);
  }
  for (const float weight : choice.weights) assert_true(weight > 0 && weight <= 2.5f);
  const Choice again = router.route(1, tokens, 0);
  assert_true(again.experts == choice.experts && again.weights == choice.weights);
  assert_true(router.route(2, tokens, 0).experts != choice.experts);
  assert_true(router.route(1, tokens, 1).experts != choice.experts);
  return choice;
}

std::vector<double> shares(const std::vector<int64_t>& chosen, uint32_t experts) {
  std::vector<double> shares(experts, 0);
  for (const int64_t expert : chosen) {
    shares[static_cast<size_t>(expert)] += 1.0 / static_cast<double>(chosen.size());
  }
  return shares;
}

void tokens_of_deepseek_v3(void**) {
  constexpr uint32_t kExperts = 256;
  constexpr uint32_t kTopK = 8;
  const Router router(routing_of(RoutingKind::kDeepseekV3), kExperts, kTopK);
  const Choice choice = checked_choice(router, kExperts, kTopK, 2000);
  for (size_t first = 0; first < choice.experts.size(); first += kTopK) {
    std::set<int64_t> groups;
    double sum = 0;
    for (size_t at = first; at < first + kTopK; ++at) {
      groups.insert(choice.experts[at] / 32);
      sum += choice.weights[at];
    }
    assert_true(groups.size() <= 4);
    assert_true(std::fabs(sum - 2.5) < 1e-5);
  }
  // The bias makes some experts more popular than chance does; none is dead.
  const std::vector<double> share = shares(choice.experts, kExperts);
  assert_true(*std::max_element(share.begin(), share.end()) * kExperts > 1.7);
  assert_true(*std::min_element(share.begin(), share.end()) > 0);
}

void shares_of_zipf(void**) {
  constexpr uint32_t kExperts = 32;
  constexpr uint32_t kTopK = 4;
  constexpr uint32_t kTokens = 40000;
  for (const double exponent : {0.0, 0.7, 1.5}) {
    const Router router(routing_of(RoutingKind::kZipf, exponent), kExperts, kTopK);
    const Choice choice = checked_choice(router, kExperts, kTopK, kTokens);
    // The first one of a token is drawn from all.
    std::vector<int64_t> first;
    for (size_t at = 0; at < choice.experts.size(); at += kTopK)
      first.push_back(choice.experts[at]);
    std::vector<double> share = shares(first, kExperts);
    // The popular ones are not all with the first rank.
    if (exponent > 1) assert_true(share[0] + share[1] + share[2] + share[3] < 0.5);
    std::sort(share.rbegin(), share.rend());
    double total = 0;
    for (uint32_t i = 1; i <= kExperts; ++i) total += std::pow(i, -exponent);
    for (uint32_t i = 1; i <= 8; ++i) {
      const double expected = std::pow(i, -exponent) / total;
      assert_true(std::fabs(share[i - 1] - expected) < 0.1 * expected);
    }
  }
}

void rows_of_a_file(void**) {
  const mep_test::TemporaryFolder folder;
  const std::string path = folder.path() + "/rows.txt";
  std::ofstream(path) << "0 1\n2 3\n4 5\n6 -1\n7 0\n";
  const Router router(routing_of(RoutingKind::kFile, 0, path), 8, 2);
  const Choice first = router.route(0, 3, 0);
  assert_true(first.experts == std::vector<int64_t>({0, 1, 2, 3, 4, 5}));
  const Choice second = router.route(1, 3, 0);  // tokens 3, 4 and the first again
  assert_true(second.experts == std::vector<int64_t>({6, -1, 7, 0, 0, 1}));
  assert_true(second.weights[0] > 0 && second.weights[0] != second.weights[4]);
}

void weights_of_a_file(void** state) {
  const std::string traces = static_cast<const char*>(*state);
  const Router router(routing_of(RoutingKind::kFile, 0, traces + "/savez.npz"), 16, 3);
  const Choice choice = router.route(2, 2, 0);  // row 4, then row 0
  assert_true(choice.experts == std::vector<int64_t>({12, 13, 9, 1, 12, 7}));
  assert_true(choice.weights[2] == 0x1.886e18p-3f && choice.weights[3] == 0x1.04dca4p-1f);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const CMUnitTest tests[] = {
      cmocka_unit_test(the_gate_is_that_of_deepseek_v3),
      cmocka_unit_test(tokens_of_deepseek_v3),
      cmocka_unit_test(shares_of_zipf),
      cmocka_unit_test(rows_of_a_file),
      cmocka_unit_test_prestate(weights_of_a_file, argv[1]),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

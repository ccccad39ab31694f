// mep_dispatch_layout on hosts, against a count of pairs. It alone finds what of it is refused there. 0.1 s.
// labels: quick threads asan
#include <unistd.h>

#include <algorithm>

#include "support/ep_rounds.hpp"
#include "support/refused.hpp"

using namespace mep_test;

namespace {

// 5 experts of 3 ranks are dealt 2, 2, 1.
void counts(void**) {
  Report report;
  with_rank_threads(3, patient_config(0), report, [](int rank, mep_comm_t comm, Report& findings) {
    constexpr uint32_t kTokens = 70, kTopK = 3, kExperts = 5;
    std::vector<int64_t> wide(kTokens * kTopK, -1);
    RandomStream random(mix(7, static_cast<uint64_t>(rank)));
    for (size_t at = 0; at < wide.size(); at += kTopK) {
      const auto first = static_cast<int64_t>(random.below(kExperts));
      for (uint32_t k = 0; k < kTopK; ++k) {
        if (random.below(4) != 0) wide[at + k] = (first + k) % kExperts;
      }
    }
    const std::vector<int32_t> narrow(wide.begin(), wide.end());
    for (const bool is_narrow : {false, true}) {
      std::vector<int32_t> per_rank(3, 77), per_expert(kExperts, 77);
      std::vector<uint8_t> in_rank(kTokens * 3, 77);
      const void* index = is_narrow ? static_cast<const void*>(narrow.data()) : wide.data();
      const mep_dtype_t type = is_narrow ? MEP_INT32 : 0;
      COLL_OK(findings,
              mep_dispatch_layout(comm, index, type, kTokens, kTopK, kExperts, per_rank.data(),
                                  per_expert.data(), in_rank.data(), nullptr));
      for (int64_t expert = 0; expert < kExperts; ++expert) {
        const auto named = std::count(wide.begin(), wide.end(), expert);
        COLL_CHECK(findings, per_expert[static_cast<size_t>(expert)] == named);
      }
      for (uint32_t owner = 0; owner < 3; ++owner) {
        int32_t tokens = 0;
        for (uint32_t token = 0; token < kTokens; ++token) {
          const auto* mine = wide.data() + token * kTopK;
          const bool goes = std::any_of(mine, mine + kTopK, [&](int64_t expert) {
            return expert >= 0 && expert / 2 == owner;
          });
          tokens += goes ? 1 : 0;
          COLL_CHECK(findings, in_rank[token * 3 + owner] == (goes ? 1 : 0));
        }
        COLL_CHECK(findings, per_rank[owner] == tokens);
      }
      COLL_OK(findings, mep_dispatch_layout(comm, index, type, kTokens, kTopK, kExperts, nullptr,
                                            nullptr, nullptr, nullptr));
    }
    const auto count = [&](uint32_t top_k, uint32_t experts) {
      return mep_dispatch_layout(comm, wide.data(), MEP_INT64, 1, top_k, experts, nullptr, nullptr,
                                 nullptr, nullptr);
    };
    wide = {1, 7, 1};
    EXPECT_REFUSED(findings, MEP_ERR_INVALID_ARGUMENT, "token 0 names expert 7", count(3, 5));
    wide = {1, 2, 1};
    EXPECT_REFUSED(findings, MEP_ERR_INVALID_ARGUMENT, "token 0 names expert 1 twice", count(3, 5));
    EXPECT_REFUSED(findings, MEP_ERR_INVALID_ARGUMENT, "top_k is 65", count(65, 5));
    EXPECT_REFUSED(findings, MEP_ERR_INVALID_ARGUMENT, "num_experts is 0", count(3, 0));
  });
  report.require_clean();
}

}  // namespace

int main(int argc, char** argv) {
  setenv("MEP_LOG", "warn", 1);
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {cmocka_unit_test(counts)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

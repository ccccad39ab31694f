// labels: quick threads tsan asan
// A call that sends has given the caller its memory back when it returns, also where its rows still wait for the
// network: x of a dispatch and y of a combine are written again at once, and the other rank gets what was in them. The
// rows are more than sockets take, and the sender needs none of the other's.
#include <cstdlib>

#include "support/coll_ranks.hpp"
#include "support/ep_halves.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

constexpr uint32_t kHidden = 8192;  // a row of float32 is 32 KiB
constexpr uint32_t kTokens = 512;   // 16 MiB
constexpr int kSender = 0;
constexpr float kStale = -1;

float value_of(size_t row) {
  return static_cast<float>(row + 1);
}

std::vector<float> make_rows(size_t count) {
  std::vector<float> rows(count * kHidden);
  for (size_t row = 0; row < count; ++row) {
    std::fill_n(rows.begin() + static_cast<ptrdiff_t>(row * kHidden), kHidden, value_of(row));
  }
  return rows;
}

void check_rows(const float* rows, size_t count, const char* what, Report& report) {
  for (size_t row = 0; row < count; ++row) {
    for (const size_t at : {size_t{0}, size_t{kHidden} - 1}) {
      if (rows[row * kHidden + at] == value_of(row)) continue;
      report.add("%s: row %zu has %f", what, row, static_cast<double>(rows[row * kHidden + at]));
      return;
    }
  }
}

// The sender's tokens go to the other rank's expert, and its terms come back.
void exchange(bool halves, int rank, mep_ep_t ep, mep_ep_handle_t handle, Report& report) {
  const bool gives = rank == kSender;
  std::vector<float> x = make_rows(gives ? kTokens : 1);
  const std::vector<int64_t> experts(kTokens, 1 - rank);
  DispatchTokens tokens;
  DispatchRows rows;
  tokens.num_tokens = gives ? kTokens : 0;
  tokens.x = x.data();
  tokens.topk_idx = experts.data();
  COLL_OK(report, dispatch_halves(handle, &tokens, halves ? nullptr : &rows, nullptr));
  std::fill(x.begin(), x.end(), kStale);
  if (halves) COLL_OK(report, dispatch_halves(handle, nullptr, &rows, nullptr));
  mep_ep_view_t view;
  mep_ep_view_defaults(&view);
  COLL_OK(report, mep_ep_buffer_view(ep, 0, &view));
  if (!gives && !report.bad()) {
    check_rows(static_cast<const float*>(view.recv_x), kTokens, "dispatch", report);
  }

  std::vector<float> y = make_rows(gives ? 1 : kTokens);
  std::vector<float> out(gives ? size_t{kTokens} * kHidden : 0);
  CombineTerms terms;
  CombineSums sums;
  terms.y = y.data();
  sums.out = out.data();
  COLL_OK(report, combine_halves(handle, &terms, halves ? nullptr : &sums, nullptr));
  std::fill(y.begin(), y.end(), kStale);
  if (halves) COLL_OK(report, combine_halves(handle, nullptr, &sums, nullptr));
  if (gives && !report.bad()) check_rows(out.data(), kTokens, "combine", report);
}

void test_memory_is_free(void**) {
  setenv("MEP_TRANSPORTS", "tcp", 1);
  Report report;
  with_rank_threads(2, patient_config(0), report, [](int rank, mep_comm_t comm, Report& found) {
    mep_ep_config_t config;
    mep_ep_config_defaults(&config);
    config.max_tokens_per_rank = kTokens;
    config.hidden = kHidden;
    config.top_k = 1;
    config.num_experts = 2;
    config.experts_per_rank = 1;
    config.num_buffers = 1;
    config.input_type = MEP_FLOAT32;
    config.wire_type = MEP_FLOAT32;
    config.combine_type = MEP_FLOAT32;
    mep_ep_t ep = nullptr;
    mep_ep_handle_t handle = nullptr;
    COLL_OK(found, mep_ep_create(comm, &config, &ep));
    COLL_OK(found, mep_ep_handle_create(ep, 0, &handle));
    for (const bool halves : {false, true}) {
      if (!found.bad()) exchange(halves, rank, ep, handle, found);
    }
    COLL_OK(found, mep_ep_handle_destroy(handle));
    COLL_OK(found, mep_ep_destroy(ep));
  });
  unsetenv("MEP_TRANSPORTS");
  report.require_clean();
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(test_memory_is_free)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

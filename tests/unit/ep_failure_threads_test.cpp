// A rank ends its part by mep_comm_abort at a random point of a round; the others go on, and what each
// of their operations says of itself must be true.
// labels: quick threads tsan asan
#include "support/coll_sequence.hpp"
#include "support/ep_failing.hpp"
#include "support/ep_halves.hpp"

using namespace mep_test;

namespace {

void run_failures(uint32_t flags, mep_ep_loss_t on_loss, uint64_t first_seed) {
  fail_at_random_points<EpRound>(flags, on_loss, first_seed, failing_case);
}

void mapped(void**) {
  run_failures(0, MEP_EP_LOSS_FAILS, 31);
}
void mapped_partial(void**) {
  run_failures(0, MEP_EP_LOSS_PARTIAL, 32);
}
void by_put_alone(void**) {
  run_failures(kPutOnly, MEP_EP_LOSS_FAILS, 33);
}
void by_put_alone_partial(void**) {
  run_failures(kPutOnly, MEP_EP_LOSS_PARTIAL, 34);
}

// Rounds on one buffer, with experts of ranks 0 and 1 alone, until one call has reported the end of rank 2,
// and `kRoundsAfter` more. Returns how many calls reported something.
int reports_of_rounds(mep_ep_t ep, mep_ep_handle_t handle, Report& report) {
  std::vector<float> x(2 * 16, 1.0F);
  std::vector<float> out(2 * 16);
  const int64_t experts[] = {0, 1};
  DispatchTokens dispatch;
  DispatchRows received;
  dispatch.num_tokens = 2;
  dispatch.x = x.data();
  dispatch.topk_idx = experts;
  mep_ep_view_t view;
  mep_ep_view_defaults(&view);
  COLL_OK(report, mep_ep_buffer_view(ep, 0, &view));
  CombineTerms terms;
  CombineSums combine;
  terms.y = view.combine_input;
  combine.out = out.data();
  int reports = 0;
  for (uint64_t left = kRoundsAfter; left > 0 && reports <= 1;) {
    mep_result_t result = dispatch_halves(handle, &dispatch, &received, nullptr);
    if (result == MEP_SUCCESS) result = combine_halves(handle, &terms, &combine, nullptr);
    if (result == MEP_SUCCESS && reports > 0) --left;
    if (result == MEP_SUCCESS) continue;
    COLL_CHECK(report, result == MEP_ERR_PEER_FAILED);
    ++reports;
  }
  return reports;
}

// Also by an operation that ends while the change is still being installed.
void reported_once_without_a_collective(void**) {
  enable_delays(test_seed(), 2);
  for (size_t i = 0; i < slice(40, 1000); ++i) {
    Report report;
    with_rank_threads(3, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
      mep_ep_config_t config;
      mep_ep_config_defaults(&config);
      config.max_tokens_per_rank = 2;
      config.hidden = 16;
      config.top_k = 1;
      config.num_experts = 3;
      config.num_buffers = 1;
      config.input_type = MEP_FLOAT32;
      mep_ep_t ep = nullptr;
      COLL_OK(found, mep_ep_create(comm, &config, &ep));
      if (ep == nullptr) return;
      mep_ep_handle_t handle = nullptr;
      COLL_OK(found, mep_ep_handle_create(ep, 0, &handle));
      if (rank == 2) COLL_OK(found, mep_comm_abort(comm));
      if (rank < 2) COLL_CHECK(found, reports_of_rounds(ep, handle, found) == 1);
      COLL_OK(found, mep_ep_handle_destroy(handle));
      COLL_OK(found, mep_ep_destroy(ep));
    });
    if (report.bad())
      fail_msg("seed %llu, run %zu%s", static_cast<unsigned long long>(test_seed()), i,
               report.text().c_str());
  }
  enable_delays(0, 0);
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(mapped), cmocka_unit_test(mapped_partial), cmocka_unit_test(by_put_alone),
      cmocka_unit_test(by_put_alone_partial), cmocka_unit_test(reported_once_without_a_collective)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

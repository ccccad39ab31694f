// The expanded layout of high throughput on ranks as threads: each row once for each of its local experts, grouped, padded,
// and summed before it goes back, in odd shapes.
// It alone finds what the C structs say of this layout, and what is refused. 2 s.
// labels: gate threads tsan asan
#include "support/ep_expanded.hpp"
#include "support/ep_halves.hpp"

using namespace mep_test;

namespace {

// One dispatch or replay, and its combine.
void one_round(const ExpandedCase& c, int rank, ExpandedRound& buffer, uint64_t round,
               Report& report) {
  const bool own_memory = c.rows_later || round % 2 != 0;
  const bool early = c.rows_later && round == 0;
  const bool apart = early || round / 2 % 2 != 0;
  if (round == 0) buffer.begin(round, own_memory);
  if (round != 0) buffer.begin_replay(round, own_memory);
  if (apart) COLL_OK(report, early ? buffer.dispatch_early() : buffer.dispatch(Halves::kSend));
  Halves receiving = apart ? Halves::kReceive : Halves::kBoth;
  const uint64_t needed = c.received(rank, 0, {}).rows.size() * c.wire_bytes();
  if (own_memory && needed != 0) {
    COLL_CHECK(report, buffer.dispatch(receiving, needed - 1) == MEP_ERR_CAPACITY);
    receiving = Halves::kReceive;
  }
  COLL_OK(report, buffer.dispatch(receiving, needed));
  buffer.check_received();
  if (report.bad()) return;
  buffer.run_experts();
  if (apart) COLL_OK(report, buffer.combine(Halves::kSend));
  COLL_OK(report, buffer.combine(apart ? Halves::kReceive : Halves::kBoth));
  buffer.check_combined();
  COLL_OK(report, buffer.dispatch_again(100 + round));
  buffer.run_experts();
  COLL_OK(report, buffer.combine(Halves::kBoth));
  buffer.check_combined();
}

// A dispatch, and replays of it.
void run_case(const ExpandedCase& c, uint32_t flags) {
  require_on_rank_threads(c.ranks, flags, [&](int rank, mep_comm_t comm, Report& findings) {
    const mep_ep_config_t config = c.config();
    mep_ep_t ep = nullptr;
    COLL_OK(findings, mep_ep_create(comm, &config, &ep));
    if (ep == nullptr) return;
    {
      ExpandedRound buffer(c, rank, ep, 0, findings);
      for (uint64_t round = 0; round < 4 && !findings.bad(); ++round) {
        one_round(c, rank, buffer, round, findings);
      }
    }
    if (findings.bad()) findings.add("%s", c.describe().c_str());
    COLL_OK(findings, mep_ep_destroy(ep));
  });
}

void odd_shapes(void**) {
  constexpr mep_dtype_t kInputs[] = {MEP_BFLOAT16, MEP_BFLOAT16, MEP_FLOAT8_E4M3, MEP_FLOAT32};
  constexpr uint32_t kScales[] = {MEP_SCALE_FLOAT32, MEP_SCALE_UE8M0, MEP_SCALE_UE8M0_32};
  constexpr mep_dtype_t kWires[] = {MEP_BFLOAT16, MEP_FLOAT8_E4M3, MEP_FLOAT8_E4M3, MEP_FLOAT32};
  uint32_t number = 0;
  for (const auto routes :
       {ExpandedCase::kRandom, ExpandedCase::kNobody, ExpandedCase::kOneExpert}) {
    for (const uint32_t local_experts : {1u, 16u}) {
      for (const uint32_t top_k : {1u, 8u}) {
        for (const uint32_t alignment : {1u, 4u, 128u}) {
          ExpandedCase c;
          c.alignment = alignment;
          c.routes = routes;
          c.bias = true;
          c.seed = mix(test_seed(), number);
          c.ranks = local_experts == 1 ? 8 : 3;
          c.local_experts = local_experts;
          c.experts = static_cast<uint32_t>(c.ranks) * local_experts;
          c.top_k = top_k;
          c.max_tokens = 9;
          c.rows_later = number % 3 == 0;
          c.hidden = 160;  // a group of scales and a part of one
          c.input = kInputs[number % 4];
          c.wire = kWires[number % 4];
          c.combine = c.input == MEP_FLOAT32 ? MEP_FLOAT32 : MEP_BFLOAT16;
          c.scale_type = kScales[number / 4 % 3];
          run_case(c, number / 2 % 2 != 0 ? kPutOnly : 0);
          ++number;
        }
      }
    }
  }
}

void refusals(void**) {
  require_on_rank_threads(1, 0, [&](int, mep_comm_t comm, Report& report) {
    mep_ep_config_t config;
    mep_moe_defaults(&config, 4, 16, 2, 4);
    config.layout = MEP_EP_EXPANDED;
    mep_ep_size_t size;
    mep_ep_size_defaults(&size);
    config.expert_alignment = 0x7fffffff;  // by 4 experts
    COLL_CHECK(report, mep_ep_buffer_size(comm, &config, &size) == MEP_ERR_INVALID_ARGUMENT);
    config.expert_alignment = 128;
    COLL_OK(report, mep_ep_buffer_size(comm, &config, &size));
    // 4 tokens with 2 rows each and the padding, of recv_x and combine_input.
    COLL_CHECK(report, size.private_bytes > uint64_t{(8 + 4 * 127) / 128 * 128} * 2 * 32);
    mep_ep_t ep = nullptr;
    mep_ep_handle_t handle = nullptr;
    COLL_OK(report, mep_ep_create(comm, &config, &ep));
    COLL_OK(report, mep_ep_handle_create(ep, 0, &handle));
    mep_ep_view_t view;
    mep_ep_view_defaults(&view);
    COLL_OK(report, mep_ep_buffer_view(ep, 0, &view));
    std::vector<int32_t> indices(8);
    DispatchTokens send;
    DispatchRows receive;
    receive.recv_topk_idx = indices.data();
    COLL_CHECK(report,
               dispatch_halves(handle, &send, &receive, nullptr) == MEP_ERR_INVALID_ARGUMENT);
    COLL_CHECK(report, std::strstr(mep_last_error(), "recv_topk_idx is given") != nullptr);
    receive.recv_topk_idx = nullptr;
    receive.later = true;
    send.flags = MEP_DISPATCH_REPLAY;
    COLL_CHECK(report,
               dispatch_halves(handle, &send, &receive, nullptr) == MEP_ERR_INVALID_ARGUMENT);
    COLL_CHECK(report, std::strstr(mep_last_error(), "exchanges no counts") != nullptr);
    receive.later = false;
    send.flags |= MEP_DISPATCH_NO_ROWS;
    receive.statistics = indices.data();
    COLL_CHECK(report,
               dispatch_halves(handle, &send, &receive, nullptr) == MEP_ERR_INVALID_ARGUMENT);
    COLL_CHECK(report, std::strstr(mep_last_error(), "statistics is given") != nullptr);
    receive.statistics = nullptr;
    COLL_CHECK(report,
               dispatch_halves(handle, &send, nullptr, nullptr) == MEP_ERR_INVALID_ARGUMENT);
    COLL_CHECK(report, std::strstr(mep_last_error(), "belongs to mep_dispatch,") != nullptr);
    send.flags = 0;
    const uint16_t x[16] = {};
    const int64_t experts[2] = {1, 3};
    send.num_tokens = 1;
    send.x = x;
    send.topk_idx = experts;
    COLL_OK(report, dispatch_halves(handle, &send, &receive, nullptr));
    CombineTerms results;
    CombineSums sums;
    results.y = view.combine_input;
    // The last of the expanded rows of the library's memory.
    sums.out = static_cast<uint8_t*>(view.combine_input) + size_t{4 * 128 - 1} * 32;
    COLL_CHECK(report,
               combine_halves(handle, &results, &sums, nullptr) == MEP_ERR_INVALID_ARGUMENT);
    uint16_t out[16];
    sums.out = out;
    COLL_OK(report, combine_halves(handle, &results, &sums, nullptr));
    COLL_OK(report, mep_ep_handle_destroy(handle));
    COLL_OK(report, mep_ep_destroy(ep));
  });
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {cmocka_unit_test(odd_shapes), cmocka_unit_test(refusals)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

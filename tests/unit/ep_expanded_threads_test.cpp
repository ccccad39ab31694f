// The expanded layout of high throughput on ranks as threads: each row once for each of its local experts, grouped, padded,
// and summed before it goes back, in odd shapes.
// It alone finds what the C structs say of this layout, and what is refused. 2 s.
// labels: gate threads tsan asan
#include "support/ep_rounds.hpp"

using namespace mep_test;

namespace {

struct Shape {
  EpCase ep;
  uint32_t alignment;
  enum Routes : uint8_t { kRandom, kNobody, kOneExpert } routes;

  mep_ep_config_t config() const {
    mep_ep_config_t config = ep.config();
    config.mode = MEP_EP_HIGH_THROUGHPUT;
    config.receive_layout = MEP_EP_EXPANDED;
    config.expert_alignment = alignment;
    return config;
  }
  uint32_t tokens(int rank) const { return routes == kNobody ? 0 : ep.tokens(rank, 0); }
  std::vector<int64_t> routing(int rank) const {
    if (routes != kOneExpert) return ep.routing(rank, 0);
    std::vector<int64_t> route(size_t{tokens(rank)} * ep.top_k, -1);
    for (size_t at = 0; at < route.size(); at += ep.top_k) route[at] = ep.experts - 1;
    return route;
  }
};

// A row that pads has token -1.
struct ExpandedRow {
  int source = -1;
  uint32_t token = 0;
  uint32_t expert = 0;
  float weight = 0;
};

struct Expected {
  std::vector<ExpandedRow> rows;
  std::vector<int32_t> counts;
  std::vector<int64_t> ranges, trues;
};

Expected expected_rows(const Shape& s, int rank) {
  Expected found;
  const EpCase& ep = s.ep;
  for (uint32_t expert = 0; expert < ep.local_experts; ++expert) {
    const size_t begin = found.rows.size();
    const int64_t place = int64_t{rank} * ep.local_experts + expert;
    for (int source = 0; source < ep.ranks; ++source) {
      const size_t first = found.rows.size();
      const std::vector<int64_t> route = s.routing(source);
      const std::vector<float> weights = ep.weights(source, 0, false);
      for (uint32_t at = 0; at < s.tokens(source) * ep.top_k; ++at) {
        if (route[at] == place) {
          found.rows.push_back({source, at / ep.top_k, expert, weights[at]});
        }
      }
      found.ranges.push_back(static_cast<int64_t>(first << 32 | (found.rows.size() - first)));
    }
    found.trues.push_back(static_cast<int64_t>(found.rows.size() - begin));
    while ((found.rows.size() - begin) % s.alignment != 0) found.rows.emplace_back();
    found.counts.push_back(static_cast<int32_t>(found.rows.size() - begin));
  }
  return found;
}

// The rank of the token gets this: sums of each rank's experts, rounded, then of the ranks.
Bytes expected_sum(const Shape& s, int rank, uint64_t round, uint32_t token) {
  const EpCase& ep = s.ep;
  const std::vector<int64_t> route = s.routing(rank);
  const auto add = [&](std::vector<float>* sum, const uint8_t* row) {
    for (uint32_t i = 0; i < ep.hidden; ++i) {
      const volatile float total =
          (*sum)[i] + element_value(ep.combine, row + i * element_bytes(ep.combine));
      (*sum)[i] = total;
    }
  };
  const auto rounded = [&](const std::vector<float>& sum) {
    Bytes row(ep.combine_bytes());
    for (uint32_t i = 0; i < ep.hidden; ++i) {
      store_element(ep.combine, sum[i], row.data() + i * element_bytes(ep.combine));
    }
    return row;
  };
  std::vector<float> all(ep.hidden, 0.0f);
  for (int owner = 0; owner < ep.ranks; ++owner) {
    std::vector<float> there(ep.hidden, 0.0f);
    bool any = false;
    for (uint32_t k = 0; k < ep.top_k; ++k) {
      const int64_t place = route[size_t{token} * ep.top_k + k];
      if (place < 0 || static_cast<int>(place / ep.local_experts) != owner) continue;
      add(&there, ep.y_row(static_cast<uint32_t>(place), rank, round, token).data());
      any = true;
    }
    if (any) add(&all, rounded(there).data());
  }
  add(&all, ep.bias_row(round).data());
  return rounded(all);
}

// One dispatch or replay, and its combine.
void one_round(const Shape& s, int rank, mep_ep_t ep, mep_ep_handle_t handle, uint64_t round,
               Report& report) {
  const EpCase& c = s.ep;
  const bool own_memory = round % 2 != 0;
  const bool apart = round / 2 % 2 != 0;
  const uint32_t tokens = s.tokens(rank);
  Bytes x(tokens * c.input_bytes() + 1);
  Bytes x_scales(tokens * c.scale_bytes() + 1);
  for (uint32_t token = 0; token < tokens; ++token) {
    const Bytes row = c.x_row(rank, round, token);
    std::memcpy(x.data() + token * row.size(), row.data(), row.size());
    if (c.input != MEP_FLOAT8_E4M3) continue;
    const Bytes scales = c.x_scales_row(rank, round, token);
    std::memcpy(x_scales.data() + token * scales.size(), scales.data(), scales.size());
  }
  const std::vector<int64_t> route = s.routing(rank);
  const std::vector<float> weights = c.weights(rank, 0, false);
  mep_dispatch_send_t send;
  mep_dispatch_receive_t receive;
  mep_dispatch_send_defaults(&send);
  mep_dispatch_receive_defaults(&receive);
  send.num_tokens = tokens;
  send.x = x.data();
  send.x_scales = c.input == MEP_FLOAT8_E4M3 ? x_scales.data() : nullptr;
  send.flags = round != 0 ? MEP_DISPATCH_REPLAY : 0;
  send.topk_idx = route.data();
  send.topk_weights = weights.data();

  const Expected expected = expected_rows(s, rank);
  const size_t total = expected.rows.size();
  Poisoned own_x(total * c.wire_bytes() + 1);
  Poisoned own_scales(total * c.scale_bytes() + 1);
  Poisoned own_weights(total * sizeof(float));
  Poisoned own_info(total * sizeof(int32_t));
  int64_t got_total = -1;
  std::vector<int64_t> statistics(c.local_experts, 0);
  receive.recv_total = &got_total;
  receive.statistics = statistics.data();
  if (own_memory) {
    receive.recv_x = own_x.data();
    receive.recv_capacity = total * c.wire_bytes() + 1;
    receive.recv_scales = c.has_scales() ? own_scales.data() : nullptr;
    receive.recv_topk_weights = own_weights.as<float>();
    receive.src_info = own_info.as<int32_t>();
  }
  if (apart) COLL_OK(report, mep_dispatch(handle, &send, nullptr, nullptr));
  if (own_memory && total != 0) {
    receive.recv_capacity = total * c.wire_bytes() - 1;
    COLL_CHECK(report, mep_dispatch(handle, apart ? nullptr : &send, &receive, nullptr) ==
                           MEP_ERR_CAPACITY);
    receive.recv_capacity = total * c.wire_bytes();
    COLL_OK(report, mep_dispatch(handle, nullptr, &receive, nullptr));
  } else {
    COLL_OK(report, mep_dispatch(handle, apart ? nullptr : &send, &receive, nullptr));
  }

  mep_ep_view_t view;
  mep_ep_view_defaults(&view);
  COLL_OK(report, mep_ep_buffer_view(ep, 0, &view));
  COLL_CHECK(report, view.recv_topk_idx == nullptr);
  COLL_CHECK(report, got_total == static_cast<int64_t>(total));
  COLL_CHECK(report, statistics == expected.trues);
  if (report.bad()) return;
  COLL_CHECK(report, std::equal(expected.counts.begin(), expected.counts.end(), view.recv_count));
  COLL_CHECK(report, std::equal(expected.ranges.begin(), expected.ranges.end(), view.layout_range));
  const auto* rows = own_memory ? own_x.data() : static_cast<const uint8_t*>(view.recv_x);
  const auto* scales =
      own_memory ? own_scales.data() : static_cast<const uint8_t*>(view.recv_scales);
  const float* row_weights = own_memory ? own_weights.as<float>() : view.recv_topk_weights;
  const int32_t* info = own_memory ? own_info.as<int32_t>() : view.src_info;
  for (size_t i = 0; i < total && !report.bad(); ++i) {
    const ExpandedRow& row = expected.rows[i];
    const bool pads = row.source < 0;
    WireRow wire{Bytes(c.wire_bytes(), 0), Bytes(c.scale_bytes(), 0)};
    if (!pads) wire = c.wire_row(row.source, round, row.token);
    const bool same =
        std::memcmp(rows + i * c.wire_bytes(), wire.values.data(), c.wire_bytes()) == 0 &&
        (!c.has_scales() ||
         std::memcmp(scales + i * c.scale_bytes(), wire.scales.data(), c.scale_bytes()) == 0);
    COLL_CHECK(report, same);
    COLL_CHECK(report, info[i] == (pads ? -1 : static_cast<int32_t>(row.token)));
    COLL_CHECK(report, row_weights[i] == row.weight);
  }
  COLL_CHECK(report, own_x.guard_intact() && own_scales.guard_intact());
  COLL_CHECK(report, own_weights.guard_intact() && own_info.guard_intact());

  Bytes own_y(total * c.combine_bytes() + 1);
  std::vector<float> values(total + 1, 1e9f);  // that of a row that pads is not taken
  uint8_t* y = own_memory ? own_y.data() : static_cast<uint8_t*>(view.combine_input);
  for (size_t i = 0; i < total; ++i) {
    const ExpandedRow& row = expected.rows[i];
    std::memset(y + i * c.combine_bytes(), 0xff, c.combine_bytes());
    if (row.source < 0) continue;
    const auto place = static_cast<uint32_t>(rank) * c.local_experts + row.expert;
    const Bytes made = c.y_row(place, row.source, round, row.token);
    std::memcpy(y + i * c.combine_bytes(), made.data(), made.size());
    values[i] = row.weight + static_cast<float>(round);
  }
  Poisoned out(tokens * c.combine_bytes());
  Poisoned back(size_t{tokens} * c.top_k * sizeof(float));
  const Bytes bias = c.bias_row(round);
  mep_combine_send_t results;
  mep_combine_receive_t sums;
  mep_combine_send_defaults(&results);
  mep_combine_receive_defaults(&sums);
  results.y = y;
  results.topk_weights = values.data();
  sums.out = out.data();
  sums.bias = bias.data();
  sums.topk_weights = back.as<float>();
  if (apart) {
    COLL_OK(report, mep_combine(handle, &results, nullptr, nullptr));
    std::fill(own_y.begin(), own_y.end(), uint8_t{0xee});  // the caller's again
    std::fill(values.begin(), values.end(), -1.0f);
  }
  COLL_OK(report, mep_combine(handle, apart ? nullptr : &results, &sums, nullptr));
  for (uint32_t token = 0; token < tokens && !report.bad(); ++token) {
    const Bytes sum = expected_sum(s, rank, round, token);
    COLL_CHECK(report, std::memcmp(out.data() + token * sum.size(), sum.data(), sum.size()) == 0);
    for (size_t at = size_t{token} * c.top_k; at < size_t{token + 1} * c.top_k; ++at) {
      const float value = route[at] < 0 ? 0.0f : weights[at] + static_cast<float>(round);
      COLL_CHECK(report, back.as<float>()[at] == value);
    }
  }
  COLL_CHECK(report, out.guard_intact() && back.guard_intact());
}

// A dispatch, and replays of it.
void run_shape(const Shape& s, uint32_t flags) {
  Report report;
  with_rank_threads(s.ep.ranks, patient_config(flags), report,
                    [&](int rank, mep_comm_t comm, Report& findings) {
                      const mep_ep_config_t config = s.config();
                      mep_ep_t ep = nullptr;
                      mep_ep_handle_t handle = nullptr;
                      COLL_OK(findings, mep_ep_create(comm, &config, &ep));
                      COLL_OK(findings, mep_ep_handle_create(ep, 0, &handle));
                      for (uint64_t round = 0; round < 4 && !findings.bad(); ++round) {
                        one_round(s, rank, ep, handle, round, findings);
                      }
                      COLL_OK(findings, mep_ep_handle_destroy(handle));
                      COLL_OK(findings, mep_ep_destroy(ep));
                    });
  if (report.bad()) {
    report.add("%s alignment %u routes %d", s.ep.describe().c_str(), s.alignment, s.routes);
  }
  report.require_clean();
}

void odd_shapes(void**) {
  constexpr mep_dtype_t kInputs[] = {MEP_BFLOAT16, MEP_BFLOAT16, MEP_FLOAT8_E4M3, MEP_FLOAT32};
  constexpr mep_dtype_t kWires[] = {MEP_BFLOAT16, MEP_FLOAT8_E4M3, MEP_FLOAT8_E4M3, MEP_FLOAT32};
  uint32_t number = 0;
  for (const Shape::Routes routes : {Shape::kRandom, Shape::kNobody, Shape::kOneExpert}) {
    for (const uint32_t local_experts : {1u, 16u}) {
      for (const uint32_t top_k : {1u, 8u}) {
        for (const uint32_t alignment : {1u, 4u, 128u}) {
          Shape s{{}, alignment, routes};
          s.ep.seed = mix(test_seed(), number);
          s.ep.ranks = local_experts == 1 ? 8 : 3;
          s.ep.local_experts = local_experts;
          s.ep.experts = static_cast<uint32_t>(s.ep.ranks) * local_experts;
          s.ep.top_k = top_k;
          s.ep.max_tokens = 9;
          s.ep.hidden = 144;  // a group of scales and a part of one
          s.ep.input = kInputs[number % 4];
          s.ep.wire = kWires[number % 4];
          s.ep.combine = s.ep.input == MEP_FLOAT32 ? MEP_FLOAT32 : MEP_BFLOAT16;
          s.ep.scale_type = number / 4 % 2 != 0 ? MEP_SCALE_UE8M0 : MEP_SCALE_FLOAT32;
          run_shape(s, number / 2 % 2 != 0 ? MEP_COMM_PUT_ONLY : 0);
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
    config.mode = MEP_EP_HIGH_THROUGHPUT;
    config.receive_layout = MEP_EP_EXPANDED;
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
    mep_dispatch_send_t send;
    mep_dispatch_receive_t receive;
    mep_dispatch_send_defaults(&send);
    mep_dispatch_receive_defaults(&receive);
    receive.recv_topk_idx = indices.data();
    COLL_CHECK(report, mep_dispatch(handle, &send, &receive, nullptr) == MEP_ERR_INVALID_ARGUMENT);
    COLL_CHECK(report, std::strstr(mep_last_error(), "recv_topk_idx is given") != nullptr);
    receive.recv_topk_idx = nullptr;
    const uint16_t x[16] = {};
    const int64_t experts[2] = {1, 3};
    send.num_tokens = 1;
    send.x = x;
    send.topk_idx = experts;
    COLL_OK(report, mep_dispatch(handle, &send, &receive, nullptr));
    mep_combine_send_t results;
    mep_combine_receive_t sums;
    mep_combine_send_defaults(&results);
    mep_combine_receive_defaults(&sums);
    results.y = view.combine_input;
    // The last of the expanded rows of the library's memory.
    sums.out = static_cast<uint8_t*>(view.combine_input) + size_t{4 * 128 - 1} * 32;
    COLL_CHECK(report, mep_combine(handle, &results, &sums, nullptr) == MEP_ERR_INVALID_ARGUMENT);
    uint16_t out[16];
    sums.out = out;
    for (uint32_t* reserved : {&sums.reserved, &sums.reserved2}) {
      *reserved = 7;
      COLL_CHECK(report, mep_combine(handle, &results, &sums, nullptr) == MEP_ERR_INVALID_ARGUMENT);
      COLL_CHECK(report, std::strstr(mep_last_error(), "reserved") != nullptr);
      *reserved = 0;
    }
    COLL_OK(report, mep_combine(handle, &results, &sums, nullptr));
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

// Calls on EP objects that must be refused, each with its code and a text that says why, and that
// nothing is changed by them; and uses next to the wrap-around of their count.
// labels: small threads
#include "core/ep/ep_object.hpp"
#include "support/ep_rounds.hpp"

using namespace mep_test;

namespace {

mep_ep_config_t small_config() {
  mep_ep_config_t config;
  mep_ep_config_defaults(&config);
  config.max_tokens_per_rank = 4;
  config.hidden = 16;
  config.top_k = 2;
  config.num_experts = 8;
  return config;
}

// The refusal of `call`, and that its text has `part`.
#define EXPECT_REFUSED(report, code, part, call)                                                 \
  do {                                                                                           \
    const mep_result_t refused = (call);                                                         \
    if (refused != (code) || std::string(mep_last_error()).find(part) == std::string::npos) {    \
      (report).add("line %d: %s (%s), not %s with \"%s\"", __LINE__, mep_result_string(refused), \
                   mep_last_error(), mep_result_string(code), part);                             \
    }                                                                                            \
  } while (0)

void bad_configs(void**) {
  Report report;
  with_rank_threads(1, patient_config(0), report, [](int, mep_comm_t comm, Report& findings) {
    const struct {
      mep_result_t code;
      const char* part;
      std::function<void(mep_ep_config_t*)> spoil;
    } cases[] = {
        {MEP_ERR_INVALID_ARGUMENT, "struct_size", [](auto* c) { c->struct_size = 0; }},
        {MEP_ERR_INVALID_ARGUMENT, "flags", [](auto* c) { c->flags = 1; }},
        {MEP_ERR_UNSUPPORTED, "throughput", [](auto* c) { c->mode = MEP_EP_HIGH_THROUGHPUT; }},
        {MEP_ERR_INVALID_ARGUMENT, "mode", [](auto* c) { c->mode = 7; }},
        {MEP_ERR_INVALID_ARGUMENT, "max_tokens", [](auto* c) { c->max_tokens_per_rank = 0; }},
        {MEP_ERR_INVALID_ARGUMENT, "hidden", [](auto* c) { c->hidden = 0; }},
        {MEP_ERR_INVALID_ARGUMENT, "multiples of 16", [](auto* c) { c->hidden = 12; }},
        {MEP_ERR_INVALID_ARGUMENT, "multiples of 16",
         [](auto* c) {
           c->hidden = 24;
           c->wire_type = MEP_FLOAT8_E4M3;
         }},
        {MEP_ERR_INVALID_ARGUMENT, "top_k", [](auto* c) { c->top_k = 0; }},
        {MEP_ERR_INVALID_ARGUMENT, "top_k", [](auto* c) { c->top_k = 65; }},
        {MEP_ERR_INVALID_ARGUMENT, "num_experts", [](auto* c) { c->num_experts = 0; }},
        {MEP_ERR_INVALID_ARGUMENT, "do not fit", [](auto* c) { c->experts_per_rank = 7; }},
        {MEP_ERR_INVALID_ARGUMENT, "num_buffers", [](auto* c) { c->num_buffers = 9; }},
        {MEP_ERR_INVALID_ARGUMENT, "max_replicas", [](auto* c) { c->max_replicas = 9; }},
        {MEP_ERR_INVALID_ARGUMENT, "2^31", [](auto* c) { c->max_tokens_per_rank = 0xffffffff; }},
        {MEP_ERR_UNSUPPORTED, "input_type", [](auto* c) { c->input_type = MEP_FLOAT64; }},
        {MEP_ERR_UNSUPPORTED, "wire_type", [](auto* c) { c->wire_type = MEP_FLOAT32; }},
        {MEP_ERR_UNSUPPORTED, "combine_type", [](auto* c) { c->combine_type = MEP_FLOAT8_E4M3; }},
        {MEP_ERR_INVALID_ARGUMENT, "scale_type", [](auto* c) { c->scale_type = 2; }},
        {MEP_ERR_UNSUPPORTED, "scale_block", [](auto* c) { c->scale_block = 64; }},
        {MEP_ERR_UNSUPPORTED, "column-major",
         [](auto* c) { c->scale_layout = MEP_SCALE_COLUMN_MAJOR; }},
        {MEP_ERR_UNSUPPORTED, "EXPANDED", [](auto* c) { c->receive_layout = MEP_EP_EXPANDED; }},
        {MEP_ERR_INVALID_ARGUMENT, "receive_layout", [](auto* c) { c->receive_layout = 9; }},
        {MEP_ERR_UNSUPPORTED, "expert_alignment", [](auto* c) { c->expert_alignment = 8; }},
        {MEP_ERR_UNSUPPORTED, "num_sms", [](auto* c) { c->num_sms = 1; }},
    };
    for (const auto& each : cases) {
      mep_ep_config_t config = small_config();
      each.spoil(&config);
      mep_ep_t ep = reinterpret_cast<mep_ep_t>(1);
      EXPECT_REFUSED(findings, each.code, each.part, mep_ep_create(comm, &config, &ep));
      COLL_CHECK(findings, ep == nullptr);
      mep_ep_size_t size;
      mep_ep_size_defaults(&size);
      EXPECT_REFUSED(findings, each.code, each.part, mep_ep_buffer_size(comm, &config, &size));
    }
    mep_ep_config_t config = small_config();
    mep_ep_t ep = nullptr;
    EXPECT_REFUSED(findings, MEP_ERR_NOT_FOUND, "ep0", mep_ep_attach(comm, &config, &ep));
    EXPECT_REFUSED(findings, MEP_ERR_INVALID_ARGUMENT, "config", mep_ep_create(comm, nullptr, &ep));
    mep_ep_size_t size;
    mep_ep_size_defaults(&size);
    COLL_OK(findings, mep_ep_buffer_size(comm, &config, &size));
    COLL_CHECK(findings, size.window_bytes > 0 && size.resident_bytes > 0);
    COLL_OK(findings, mep_ep_create(comm, &config, &ep));
    EXPECT_REFUSED(findings, MEP_ERR_BUSY, "EP objects", mep_comm_destroy(comm));
    COLL_OK(findings, mep_ep_destroy(ep));
    COLL_OK(findings, mep_ep_destroy(nullptr));
  });
  report.require_clean();
}

void disagreements(void**) {
  Report report;
  with_rank_threads(3, patient_config(0), report, [](int rank, mep_comm_t comm, Report& findings) {
    const struct {
      const char* part;
      std::function<void(mep_ep_config_t*)> differ;
    } cases[] = {
        {"different names", [](auto* c) { c->name = "other"; }},
        {"max_tokens_per_rank is 4 on rank 0 and 5 on rank 1",
         [](auto* c) { c->max_tokens_per_rank = 5; }},
        {"hidden is 16", [](auto* c) { c->hidden = 32; }},
        {"top_k is 2", [](auto* c) { c->top_k = 1; }},
        {"num_experts is 9",
         [](auto* c) {
           c->num_experts = 6;
           c->experts_per_rank = 3;
         }},
        {"experts_per_rank is 3", [](auto* c) { c->experts_per_rank = 4; }},
        {"num_buffers is 2", [](auto* c) { c->num_buffers = 1; }},
        {"input_type", [](auto* c) { c->input_type = MEP_FLOAT16; }},
        {"wire_type", [](auto* c) { c->wire_type = MEP_FLOAT8_E4M3; }},
        {"combine_type", [](auto* c) { c->combine_type = MEP_FLOAT32; }},
        {"receive_layout", [](auto* c) { c->receive_layout = MEP_EP_SLOTTED; }},
        {"max_replicas", [](auto* c) { c->max_replicas = 2; }},
    };
    for (const auto& each : cases) {
      mep_ep_config_t config = small_config();
      config.num_experts = 9;
      if (rank == 1) each.differ(&config);
      mep_ep_t ep = nullptr;
      EXPECT_REFUSED(findings, MEP_ERR_MISMATCH, each.part, mep_ep_create(comm, &config, &ep));
      COLL_CHECK(findings, ep == nullptr);
    }
  });
  report.require_clean();
}

// A rank with everything that calls need, all of it right.
struct Caller {
  Caller(mep_comm_t comm, const mep_ep_config_t& config, Report& findings) : report(findings) {
    COLL_OK(report, mep_ep_create(comm, &config, &ep));
    COLL_OK(report, mep_ep_handle_create(ep, 0, &handle));
    mep_dispatch_args_defaults(&dispatch);
    dispatch.num_tokens = 2;
    dispatch.x = x;
    dispatch.topk_idx = index;
    mep_combine_args_defaults(&combine);
    combine.out = out;
  }
  ~Caller() {
    COLL_OK(report, mep_ep_handle_destroy(handle));
    COLL_OK(report, mep_ep_destroy(ep));
  }
  mep_result_t run_dispatch(uint32_t phase) {
    dispatch.phase = phase;
    return mep_dispatch(handle, &dispatch, nullptr);
  }
  mep_result_t run_combine(uint32_t phase) {
    combine.phase = phase;
    return mep_combine(handle, &combine, nullptr);
  }
  Report& report;
  mep_ep_t ep = nullptr;
  mep_ep_handle_t handle = nullptr;
  mep_dispatch_args_t dispatch{};
  mep_combine_args_t combine{};
  uint16_t x[4 * 16] = {};
  int64_t index[8] = {0, 5, -1, 3, 0, 1, 2, 3};
  uint16_t out[4 * 16] = {};
};

void bad_dispatches(void**) {
  Report report;
  with_rank_threads(2, patient_config(0), report, [](int, mep_comm_t comm, Report& findings) {
    Caller caller(comm, small_config(), findings);
    // A use whose routing must survive the refusals.
    COLL_OK(findings, caller.run_dispatch(MEP_PHASE_BOTH));
    const struct {
      mep_result_t code;
      const char* part;
      std::function<void(Caller*)> spoil;
    } cases[] = {
        {MEP_ERR_INVALID_ARGUMENT, "token 1 names expert 8", [](Caller* c) { c->index[3] = 8; }},
        {MEP_ERR_INVALID_ARGUMENT, "token 0 names expert -2", [](Caller* c) { c->index[0] = -2; }},
        {MEP_ERR_INVALID_ARGUMENT, "expert 4294967301",
         [](Caller* c) { c->index[1] = 4294967301; }},
        {MEP_ERR_INVALID_ARGUMENT, "token 0 names expert 5 twice",
         [](Caller* c) { c->index[0] = 5; }},
        {MEP_ERR_INVALID_ARGUMENT, "num_tokens is 5",
         [](Caller* c) { c->dispatch.num_tokens = 5; }},
        {MEP_ERR_INVALID_ARGUMENT, "x is NULL", [](Caller* c) { c->dispatch.x = nullptr; }},
        {MEP_ERR_INVALID_ARGUMENT, "topk_idx is NULL",
         [](Caller* c) { c->dispatch.topk_idx = nullptr; }},
        {MEP_ERR_INVALID_ARGUMENT, "topk_idx_type",
         [](Caller* c) { c->dispatch.topk_idx_type = MEP_FLOAT32; }},
        {MEP_ERR_INVALID_ARGUMENT, "x_scales", [](Caller* c) { c->dispatch.x_scales = c->x; }},
        {MEP_ERR_INVALID_ARGUMENT, "x_stride", [](Caller* c) { c->dispatch.x_stride_bytes = 16; }},
        {MEP_ERR_INVALID_ARGUMENT, "recv_scales",
         [](Caller* c) { c->dispatch.recv_scales = c->x; }},
        {MEP_ERR_INVALID_ARGUMENT, "flags", [](Caller* c) { c->dispatch.flags = 1; }},
        {MEP_ERR_INVALID_ARGUMENT, "phase", [](Caller* c) { c->dispatch.phase = 3; }},
        {MEP_ERR_INVALID_ARGUMENT, "struct_size", [](Caller* c) { c->dispatch.struct_size = 4; }},
        {MEP_ERR_UNSUPPORTED, "recv_topk_idx",
         [](Caller* c) { c->dispatch.recv_topk_idx = reinterpret_cast<int32_t*>(c->x); }},
        {MEP_ERR_INVALID_ARGUMENT, "no dispatch of this handle",
         [](Caller* c) { c->dispatch.phase = MEP_PHASE_RECEIVE; }},
    };
    const mep_dispatch_args_t right = caller.dispatch;
    const std::vector<int64_t> indices(caller.index, caller.index + 8);
    for (const auto& each : cases) {
      each.spoil(&caller);
      EXPECT_REFUSED(findings, each.code, each.part,
                     mep_dispatch(caller.handle, &caller.dispatch, nullptr));
      caller.dispatch = right;
      std::copy(indices.begin(), indices.end(), caller.index);
    }
    int stream = 0;
    EXPECT_REFUSED(findings, MEP_ERR_UNSUPPORTED, "stream",
                   mep_dispatch(caller.handle, &caller.dispatch, &stream));
    EXPECT_REFUSED(findings, MEP_ERR_INVALID_ARGUMENT, "args",
                   mep_dispatch(caller.handle, nullptr, nullptr));
    EXPECT_REFUSED(findings, MEP_ERR_INVALID_ARGUMENT, "handle",
                   mep_dispatch(nullptr, &caller.dispatch, nullptr));
    EXPECT_REFUSED(findings, MEP_ERR_INVALID_ARGUMENT, "args",
                   mep_combine(caller.handle, nullptr, nullptr));
    const mep_combine_args_t right_combine = caller.combine;
    caller.combine.out = nullptr;
    EXPECT_REFUSED(findings, MEP_ERR_INVALID_ARGUMENT, "out is NULL",
                   caller.run_combine(MEP_PHASE_BOTH));
    caller.combine = right_combine;
    caller.combine.out_stride_bytes = 8;
    EXPECT_REFUSED(findings, MEP_ERR_INVALID_ARGUMENT, "out_stride",
                   caller.run_combine(MEP_PHASE_BOTH));
    caller.combine = right_combine;
    caller.combine.flags = 8;
    EXPECT_REFUSED(findings, MEP_ERR_INVALID_ARGUMENT, "flags", caller.run_combine(MEP_PHASE_BOTH));
    caller.combine = right_combine;
    COLL_OK(findings, caller.run_combine(MEP_PHASE_BOTH));
    EXPECT_REFUSED(findings, MEP_ERR_INVALID_ARGUMENT, "no dispatch of this handle",
                   caller.run_combine(MEP_PHASE_BOTH));
    COLL_OK(findings, caller.run_dispatch(MEP_PHASE_BOTH));
  });
  report.require_clean();
}

void busy_buffers(void**) {
  Report report;
  with_rank_threads(2, patient_config(0), report, [](int, mep_comm_t comm, Report& findings) {
    Caller caller(comm, small_config(), findings);
    mep_op_info_t info;
    mep_op_info_defaults(&info);
    EXPECT_REFUSED(findings, MEP_ERR_NOT_FOUND, "no dispatch", mep_ep_last_op(caller.ep, 0, &info));
    COLL_OK(findings, caller.run_dispatch(MEP_PHASE_SEND));
    EXPECT_REFUSED(findings, MEP_ERR_BUSY, "dispatch", caller.run_dispatch(MEP_PHASE_SEND));
    EXPECT_REFUSED(findings, MEP_ERR_BUSY, "dispatch", caller.run_combine(MEP_PHASE_BOTH));
    EXPECT_REFUSED(findings, MEP_ERR_BUSY, "sent", mep_ep_handle_destroy(caller.handle));
    EXPECT_REFUSED(findings, MEP_ERR_BUSY, "handles", mep_ep_destroy(caller.ep));
    mep_ep_handle_t other = nullptr;
    COLL_OK(findings, mep_ep_handle_create(caller.ep, 0, &other));
    caller.dispatch.phase = MEP_PHASE_BOTH;
    EXPECT_REFUSED(findings, MEP_ERR_BUSY, "dispatch",
                   mep_dispatch(other, &caller.dispatch, nullptr));
    COLL_OK(findings, caller.run_dispatch(MEP_PHASE_RECEIVE));
    EXPECT_REFUSED(findings, MEP_ERR_INVALID_ARGUMENT, "this handle",
                   mep_combine(other, &caller.combine, nullptr));
    COLL_OK(findings, caller.run_combine(MEP_PHASE_SEND));
    EXPECT_REFUSED(findings, MEP_ERR_BUSY, "combine", caller.run_dispatch(MEP_PHASE_BOTH));
    EXPECT_REFUSED(findings, MEP_ERR_BUSY, "combine", caller.run_combine(MEP_PHASE_BOTH));
    COLL_OK(findings, caller.run_combine(MEP_PHASE_RECEIVE));
    uint64_t bits[2] = {7, 7};
    info.contributors = bits;
    info.contributors_words = 2;
    COLL_OK(findings, mep_ep_last_op(caller.ep, 0, &info));
    COLL_CHECK(findings, info.seq == 2 && bits[0] == 3 && bits[1] == 0);
    COLL_CHECK(findings, info.result == MEP_SUCCESS && info.epoch == 1);
    mep_ep_handle_t none = nullptr;
    EXPECT_REFUSED(findings, MEP_ERR_INVALID_ARGUMENT, "buffer is 2",
                   mep_ep_handle_create(caller.ep, 2, &none));
    COLL_OK(findings, mep_ep_handle_destroy(other));
  });
  report.require_clean();
}

void small_receive_memory(void**) {
  Report report;
  with_rank_threads(2, patient_config(0), report, [](int, mep_comm_t comm, Report& findings) {
    Caller caller(comm, small_config(), findings);
    // Two rows of each rank go to expert 0, three of its places are used on rank 0.
    std::vector<uint16_t> received(4 * 8 * 16);
    int64_t statistics[4] = {};
    caller.dispatch.recv_x = received.data();
    caller.dispatch.recv_capacity = 16;
    caller.dispatch.statistics = statistics;
    const int64_t everything_to_both[8] = {0, 4, 0, 4, -1, -1, -1, -1};
    std::copy(everything_to_both, everything_to_both + 8, caller.index);
    EXPECT_REFUSED(findings, MEP_ERR_CAPACITY, "need 128", caller.run_dispatch(MEP_PHASE_BOTH));
    EXPECT_REFUSED(findings, MEP_ERR_CAPACITY, "need 128", caller.run_dispatch(MEP_PHASE_RECEIVE));
    caller.dispatch.recv_capacity = 128;
    COLL_OK(findings, caller.run_dispatch(MEP_PHASE_RECEIVE));
    COLL_CHECK(findings, statistics[0] == 4 && statistics[1] == 0);
    COLL_OK(findings, caller.run_combine(MEP_PHASE_BOTH));
  });
  report.require_clean();
}

void expert_maps(void**) {
  Report report;
  with_rank_threads(2, patient_config(0), report, [](int rank, mep_comm_t comm, Report& findings) {
    mep_ep_config_t config = small_config();
    config.num_experts = 3;
    config.experts_per_rank = 2;
    config.max_replicas = 2;
    Caller caller(comm, config, findings);
    const struct {
      mep_result_t code;
      const char* part;
      int32_t map[6];
    } cases[] = {
        {MEP_ERR_INVALID_ARGUMENT, "place 4", {0, -1, 4, -1, 1, -1}},
        {MEP_ERR_INVALID_ARGUMENT, "place -2", {0, -1, -2, -1, 1, -1}},
        {MEP_ERR_INVALID_ARGUMENT, "expert 1 no place", {0, -1, -1, -1, 1, -1}},
        {MEP_ERR_INVALID_ARGUMENT, "place 1 to experts 0 and 2", {0, 1, 2, -1, 1, -1}},
    };
    for (const auto& each : cases) {
      EXPECT_REFUSED(findings, each.code, each.part, mep_ep_set_expert_map(caller.ep, each.map));
    }
    const int32_t right[6] = {3, -1, 2, 0, 1, -1};
    const int32_t other[6] = {3, 0, 2, -1, 1, -1};
    EXPECT_REFUSED(findings, MEP_ERR_MISMATCH, "ranks 0 and 1",
                   mep_ep_set_expert_map(caller.ep, rank == 0 ? right : other));
    const int32_t wrong[6] = {3, -1, 3, 0, 1, -1};
    EXPECT_REFUSED(findings, MEP_ERR_INVALID_ARGUMENT, rank == 1 ? "place 3 to experts" : "rank 1",
                   mep_ep_set_expert_map(caller.ep, rank == 1 ? wrong : right));
    COLL_OK(findings, mep_ep_set_expert_map(caller.ep, right));
    COLL_OK(findings, mep_ep_set_expert_map(caller.ep, nullptr));
  });
  report.require_clean();
}

// Ranks that disagree about whether there is a combine learn it, and go on.
void forgotten_combine(void**) {
  Report report;
  with_rank_threads(2, patient_config(0), report, [](int rank, mep_comm_t comm, Report& findings) {
    Caller caller(comm, small_config(), findings);
    COLL_OK(findings, caller.run_dispatch(MEP_PHASE_BOTH));
    if (rank == 0) {
      EXPECT_REFUSED(findings, MEP_ERR_MISMATCH, "rank 1", caller.run_combine(MEP_PHASE_BOTH));
    }
    COLL_OK(findings, caller.run_dispatch(MEP_PHASE_BOTH));
    COLL_OK(findings, caller.run_combine(MEP_PHASE_BOTH));
  });
  report.require_clean();
}

// Tags count uses with 24 bits, parities alternate across the wrap.
void wrap_around(void**) {
  for (const bool slotted : {false, true}) {
    for (const uint64_t first : {(uint64_t{1} << 24) - 3, (uint64_t{1} << 32) - 2}) {
      EpCase c = random_ep_case(mix(test_seed(), first), 3);
      c.slotted = slotted;
      c.mapped_experts = false;
      Report report;
      with_rank_threads(3, patient_config(0), report,
                        [&](int rank, mep_comm_t comm, Report& findings) {
                          const mep_ep_config_t config = c.config();
                          mep_ep_t ep = nullptr;
                          COLL_OK(findings, mep_ep_create(comm, &config, &ep));
                          if (ep == nullptr) return;
                          for (uint32_t i = 0; i < c.buffers; ++i) {
                            mep::ep_object_of(ep).buffer(i).set_use_for_test(first);
                          }
                          run_ep_rounds(c, rank, ep, 8 * c.buffers, false, findings);
                          COLL_OK(findings, mep_ep_destroy(ep));
                        });
      report.require_clean();
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(bad_configs),          cmocka_unit_test(disagreements),
      cmocka_unit_test(bad_dispatches),       cmocka_unit_test(busy_buffers),
      cmocka_unit_test(small_receive_memory), cmocka_unit_test(expert_maps),
      cmocka_unit_test(forgotten_combine),    cmocka_unit_test(wrap_around)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

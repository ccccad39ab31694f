// Calls on EP objects that must be refused, each with its code and a text that says why, and that
// nothing is changed by them; and uses next to the wrap-around of their count.
// labels: quick threads tsan asan
#include <unistd.h>
#include <cstring>

#include <cstdio>

#include "core/ep/ep_object.hpp"
#include "core/ep/host/host_buffers.hpp"
#include "core/topo/usable.hpp"
#include "support/ep_halves.hpp"
#include "support/ep_rounds.hpp"
#include "support/refused.hpp"

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
        {MEP_ERR_INVALID_ARGUMENT, "expert_alignment", [](auto* c) { c->expert_alignment = 4; }},
        {MEP_ERR_INVALID_ARGUMENT, "layout", [](auto* c) { c->layout = 7; }},
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
        {MEP_ERR_INVALID_ARGUMENT, "top_k", [](auto* c) { c->top_k = c->num_experts + 1; }},
        {MEP_ERR_INVALID_ARGUMENT, "num_experts", [](auto* c) { c->num_experts = 0; }},
        {MEP_ERR_INVALID_ARGUMENT, "do not fit", [](auto* c) { c->experts_per_rank = 7; }},
        {MEP_ERR_INVALID_ARGUMENT, "num_buffers", [](auto* c) { c->num_buffers = 9; }},
        {MEP_ERR_INVALID_ARGUMENT, "max_replicas", [](auto* c) { c->max_replicas = 9; }},
        {MEP_ERR_INVALID_ARGUMENT, "2^31", [](auto* c) { c->max_tokens_per_rank = 0xffffffff; }},
        {MEP_ERR_UNSUPPORTED, "input_type", [](auto* c) { c->input_type = MEP_FLOAT64; }},
        {MEP_ERR_UNSUPPORTED, "wire_type", [](auto* c) { c->wire_type = MEP_FLOAT32; }},
        {MEP_ERR_UNSUPPORTED, "combine_type", [](auto* c) { c->combine_type = MEP_FLOAT8_E4M3; }},
        {MEP_ERR_INVALID_ARGUMENT, "scale_type", [](auto* c) { c->scale_type = 3; }},
        {MEP_ERR_INVALID_ARGUMENT, "must be a multiple of 32",
         [](auto* c) {
           c->hidden = 48;
           c->wire_type = MEP_FLOAT8_E4M3;
           c->scale_type = MEP_SCALE_UE8M0_32;
         }},
        {MEP_ERR_UNSUPPORTED, "column-major",
         [](auto* c) { c->scale_layout = MEP_SCALE_COLUMN_MAJOR; }},
        {MEP_ERR_UNSUPPORTED, "num_sms", [](auto* c) { c->num_sms = 1; }},
        {MEP_ERR_INVALID_ARGUMENT, "NO_COMBINE_MEMORY belongs to",
         [](auto* c) { c->flags = MEP_EP_NO_COMBINE_MEMORY; }},
        {MEP_ERR_INVALID_ARGUMENT, "row_bytes is 24", [](auto* c) { c->row_bytes = 24; }},
        {MEP_ERR_INVALID_ARGUMENT, "side_bytes is 4 without", [](auto* c) { c->side_bytes = 4; }},
        {MEP_ERR_INVALID_ARGUMENT, "side_bytes is 6",
         [](auto* c) {
           c->row_bytes = 48;
           c->side_bytes = 6;
         }},
        {MEP_ERR_INVALID_ARGUMENT, "input_type, wire_type and scale_type must be 0",
         [](auto* c) {
           c->row_bytes = 48;
           c->wire_type = MEP_FLOAT8_E4M3;
         }},
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
        {"layout", [](auto* c) { c->layout = MEP_EP_SLOTTED; }},
        {"max_replicas", [](auto* c) { c->max_replicas = 2; }},
        {"NO_COMBINE_MEMORY in flags", [](auto* c) { c->flags = MEP_EP_NO_COMBINE_MEMORY; }},
        {"row_bytes is 48 on rank 0 and 64 on rank 1", [](auto* c) { c->row_bytes = 64; }},
        {"side_bytes is 48 on rank 0 and 12 on rank 1", [](auto* c) { c->side_bytes = 12; }},
    };
    for (const auto& each : cases) {
      mep_ep_config_t config = small_config();
      config.num_experts = 9;
      if (std::strstr(each.part, "_bytes") != nullptr) config.row_bytes = config.side_bytes = 48;
      if (std::strstr(each.part, "NO_COMBINE") != nullptr) config.layout = MEP_EP_HIGH_THROUGHPUT;
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
    mep_ep_view_defaults(&view);
    COLL_OK(report, mep_ep_buffer_view(ep, 0, &view));
    input.num_tokens = 2;
    input.x = x;
    input.topk_idx = index;
    terms.y = view.combine_input;
    sums.out = out;
  }
  ~Caller() {
    COLL_OK(report, mep_ep_handle_destroy(handle));
    COLL_OK(report, mep_ep_destroy(ep));
  }
  mep_result_t run_dispatch(Halves halves) {
    return dispatch_halves(handle, if_sends(halves, input), if_receives(halves, output), nullptr);
  }
  mep_result_t run_combine(Halves halves) {
    return combine_halves(handle, if_sends(halves, terms), if_receives(halves, sums), nullptr);
  }
  Report& report;
  mep_ep_t ep = nullptr;
  mep_ep_handle_t handle = nullptr;
  mep_ep_view_t view{};
  DispatchTokens input{};
  DispatchRows output{};
  CombineTerms terms{};
  CombineSums sums{};
  uint16_t x[4 * 16] = {};
  int64_t index[8] = {0, 5, -1, 3, 0, 1, 2, 3};
  uint16_t out[4 * 16] = {};
  mep_op_status_t status{};
};

void refused_combines(Caller& caller, Report& findings) {
  EXPECT_REFUSED(findings, MEP_ERR_INVALID_ARGUMENT, "no combine of this handle to receive",
                 caller.run_combine(Halves::kReceive));
  const struct {
    const char* part;
    std::function<void(Caller*)> spoil;
  } cases[] = {
      {"y is NULL", [](Caller* c) { c->terms.y = nullptr; }},
      {"out is NULL", [](Caller* c) { c->sums.out = nullptr; }},
      {"out_stride", [](Caller* c) { c->sums.out_stride_bytes = 8; }},
      {"num_tokens is 3", [](Caller* c) { c->sums.num_tokens = 3; }},
      {"mep_combine_options_t.flags", [](Caller* c) { c->sums.flags = 8; }},
      {"mep_combine_options_t.struct_size", [](Caller* c) { c->sums.struct_size = 4; }},
      {"op_status_bytes is 0", [](Caller* c) { c->sums.op_status = &c->status; }},
  };
  const CombineTerms right_terms = caller.terms;
  const CombineSums right_sums = caller.sums;
  for (const auto& each : cases) {
    each.spoil(&caller);
    EXPECT_REFUSED(findings, MEP_ERR_INVALID_ARGUMENT, each.part,
                   caller.run_combine(Halves::kBoth));
    caller.terms = right_terms;
    caller.sums = right_sums;
  }
}

void bad_dispatches(void**) {
  Report report;
  with_rank_threads(2, patient_config(0), report, [](int, mep_comm_t comm, Report& findings) {
    Caller caller(comm, small_config(), findings);
    // A use whose routing must survive the refusals.
    COLL_OK(findings, caller.run_dispatch(Halves::kBoth));
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
        {MEP_ERR_INVALID_ARGUMENT, "num_tokens is 5", [](Caller* c) { c->input.num_tokens = 5; }},
        {MEP_ERR_INVALID_ARGUMENT, "x is NULL", [](Caller* c) { c->input.x = nullptr; }},
        {MEP_ERR_INVALID_ARGUMENT, "topk_idx is NULL",
         [](Caller* c) { c->input.topk_idx = nullptr; }},
        {MEP_ERR_INVALID_ARGUMENT, "topk_idx_type",
         [](Caller* c) { c->input.topk_idx_type = MEP_FLOAT32; }},
        {MEP_ERR_INVALID_ARGUMENT, "x_scales", [](Caller* c) { c->input.x_scales = c->x; }},
        {MEP_ERR_INVALID_ARGUMENT, "x_stride", [](Caller* c) { c->input.x_stride_bytes = 16; }},
        {MEP_ERR_INVALID_ARGUMENT, "recv_scales", [](Caller* c) { c->output.recv_scales = c->x; }},
        {MEP_ERR_INVALID_ARGUMENT, "MEP_DISPATCH_REPLAY",
         [](Caller* c) { c->input.flags = MEP_DISPATCH_REPLAY; }},
        {MEP_ERR_INVALID_ARGUMENT, "mep_dispatch_options_t.flags",
         [](Caller* c) { c->output.flags = 4; }},
        {MEP_ERR_INVALID_ARGUMENT, "MEP_DISPATCH_NO_ROWS belongs to MEP_DISPATCH_REPLAY",
         [](Caller* c) { c->input.flags = MEP_DISPATCH_NO_ROWS; }},
        {MEP_ERR_INVALID_ARGUMENT, "mep_dispatch_options_t.reserved",
         [](Caller* c) { c->output.reserved = 1; }},
        {MEP_ERR_INVALID_ARGUMENT, "mep_dispatch_options_t.struct_size",
         [](Caller* c) { c->output.struct_size = 4; }},
        {MEP_ERR_INVALID_ARGUMENT, "recv_x is the library's own",
         [](Caller* c) { c->output.recv_x = const_cast<void*>(c->view.recv_x); }},
        {MEP_ERR_INVALID_ARGUMENT, "recv_count is the library's own",
         [](Caller* c) { c->output.recv_count = const_cast<int32_t*>(c->view.recv_count); }},
        {MEP_ERR_INVALID_ARGUMENT, "src_info is the library's own",
         [](Caller* c) { c->output.src_info = const_cast<int32_t*>(c->view.src_info); }},
        {MEP_ERR_INVALID_ARGUMENT, "layout_range is the library's own",
         [](Caller* c) {
           c->output.layout_range = const_cast<mep_range_t*>(c->view.layout_range);
         }},
        {MEP_ERR_INVALID_ARGUMENT, "statistics_type is 11; it must be MEP_INT32 or MEP_INT64",
         [](Caller* c) { c->output.statistics_type = MEP_FLOAT32; }},
        {MEP_ERR_INVALID_ARGUMENT, "op_status_bytes is 0",
         [](Caller* c) { c->output.op_status = &c->status; }},
        {MEP_ERR_INVALID_ARGUMENT, "op_status_bytes is 39",
         [](Caller* c) {
           c->output.op_status = &c->status;
           c->output.op_status_bytes = sizeof c->status - 1;
         }},
        {MEP_ERR_INVALID_ARGUMENT, "8 bytes",
         [](Caller* c) {
           auto* memory = reinterpret_cast<std::byte*>(&c->status) + 4;
           c->output.op_status = reinterpret_cast<mep_op_status_t*>(memory);
           c->output.op_status_bytes = sizeof c->status;
         }},
        {MEP_ERR_INVALID_ARGUMENT, "recv_topk_idx",
         [](Caller* c) { c->output.recv_topk_idx = reinterpret_cast<int32_t*>(c->x); }},
    };
    const DispatchTokens right_input = caller.input;
    const DispatchRows right_output = caller.output;
    const std::vector<int64_t> indices(caller.index, caller.index + 8);
    for (const auto& each : cases) {
      each.spoil(&caller);
      EXPECT_REFUSED(findings, each.code, each.part, caller.run_dispatch(Halves::kBoth));
      caller.input = right_input;
      caller.output = right_output;
      std::copy(indices.begin(), indices.end(), caller.index);
    }
    int stream = 0;
    EXPECT_REFUSED(findings, MEP_ERR_UNSUPPORTED, "stream",
                   dispatch_halves(caller.handle, &caller.input, &caller.output, &stream));
    EXPECT_REFUSED(findings, MEP_ERR_INVALID_ARGUMENT, "handle",
                   dispatch_halves(nullptr, &caller.input, &caller.output, nullptr));
    EXPECT_REFUSED(findings, MEP_ERR_INVALID_ARGUMENT, "no dispatch of this handle to receive",
                   caller.run_dispatch(Halves::kReceive));
    refused_combines(caller, findings);
    COLL_OK(findings, caller.run_combine(Halves::kBoth));
    EXPECT_REFUSED(findings, MEP_ERR_INVALID_ARGUMENT, "no dispatch of this handle",
                   caller.run_combine(Halves::kBoth));
    COLL_OK(findings, caller.run_dispatch(Halves::kBoth));
  });
  report.require_clean();
}

// However much room a record has: its header is whole, its bitmap has what fits, and nothing is written behind it.
void statuses_of_any_size(void**) {
  Report report;
  with_rank_threads(2, patient_config(0), report, [](int rank, mep_comm_t comm, Report& findings) {
    Caller caller(comm, small_config(), findings);
    COLL_OK(findings, mep_barrier(comm, nullptr));
    if (rank == 1) {
      COLL_OK(findings, mep_comm_abort(comm));
      return;
    }
    COLL_OK(findings, mep_comm_wait_view(comm, 1, 60'000));
    caller.index[1] = 1;  // all of them here
    COLL_EXPECT(findings, MEP_ERR_PEER_FAILED, caller.run_dispatch(Halves::kBoth));
    constexpr size_t kHeader = sizeof(mep_op_status_t);
    for (const size_t bytes : {kHeader, kHeader + 7, kHeader + 8, kHeader + 24}) {
      for (const bool is_combine : {false, true}) {
        Poisoned memory(bytes);
        auto* status = memory.as<mep_op_status_t>();
        caller.output.op_status = is_combine ? nullptr : status;
        caller.output.op_status_bytes = is_combine ? 0 : bytes;
        caller.sums.op_status = is_combine ? status : nullptr;
        caller.sums.op_status_bytes = is_combine ? bytes : 0;
        COLL_OK(findings, caller.run_dispatch(Halves::kBoth));
        COLL_OK(findings, caller.run_combine(Halves::kBoth));
        const uint32_t words = bytes < kHeader + 8 ? 0 : 1;  // that 2 ranks need, if they fit
        COLL_CHECK(findings, status->version == MEP_OP_STATUS_VERSION && status->epoch == 2);
        COLL_CHECK(findings, status->result == MEP_SUCCESS && status->failed_count == 1);
        COLL_CHECK(findings, status->failed_words == words);
        if (words != 0) COLL_CHECK(findings, mep_op_status_failed(status)[0] == 2);
        COLL_CHECK(findings, memory.untouched(kHeader + words * 8, bytes));
        COLL_CHECK(findings, memory.guard_intact());
      }
    }
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
    COLL_OK(findings, caller.run_dispatch(Halves::kSend));
    EXPECT_REFUSED(findings, MEP_ERR_BUSY, "dispatch", caller.run_dispatch(Halves::kSend));
    EXPECT_REFUSED(findings, MEP_ERR_BUSY, "dispatch", caller.run_combine(Halves::kBoth));
    EXPECT_REFUSED(findings, MEP_ERR_BUSY, "sent", mep_ep_handle_destroy(caller.handle));
    EXPECT_REFUSED(findings, MEP_ERR_BUSY, "handles", mep_ep_destroy(caller.ep));
    mep_ep_handle_t other = nullptr;
    COLL_OK(findings, mep_ep_handle_create(caller.ep, 0, &other));
    EXPECT_REFUSED(findings, MEP_ERR_BUSY, "dispatch",
                   dispatch_halves(other, &caller.input, &caller.output, nullptr));
    COLL_OK(findings, caller.run_dispatch(Halves::kReceive));
    EXPECT_REFUSED(findings, MEP_ERR_INVALID_ARGUMENT, "this handle",
                   combine_halves(other, &caller.terms, &caller.sums, nullptr));
    COLL_OK(findings, caller.run_combine(Halves::kSend));
    EXPECT_REFUSED(findings, MEP_ERR_BUSY, "combine", caller.run_dispatch(Halves::kBoth));
    EXPECT_REFUSED(findings, MEP_ERR_BUSY, "combine", caller.run_combine(Halves::kBoth));
    COLL_OK(findings, caller.run_combine(Halves::kReceive));
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

// Rows that a call has left, because they come later or for want of room, are lost by no other call.
void rows_left(void**) {
  Report report;
  with_rank_threads(2, patient_config(0), report, [](int, mep_comm_t comm, Report& findings) {
    for (const mep_ep_layout_t layout : {MEP_EP_HIGH_THROUGHPUT, MEP_EP_EXPANDED}) {
      mep_ep_config_t config = small_config();
      config.layout = layout;
      Caller caller(comm, config, findings);
      mep_ep_handle_t other = nullptr;
      COLL_OK(findings, mep_ep_handle_create(caller.ep, 0, &other));
      std::vector<uint16_t> rows(64 * 16);
      for (const bool is_early : {true, false}) {
        int64_t total = 0;
        DispatchRows first;
        first.recv_total = &total;
        if (is_early) first.later = true;
        if (!is_early) first.recv_x = rows.data();
        if (!is_early) first.recv_capacity = 1;
        COLL_EXPECT(findings, is_early ? MEP_SUCCESS : MEP_ERR_CAPACITY,
                    dispatch_halves(caller.handle, &caller.input, &first, nullptr));
        EXPECT_REFUSED(findings, MEP_ERR_BUSY, "first", caller.run_dispatch(Halves::kBoth));
        EXPECT_REFUSED(findings, MEP_ERR_BUSY, "first",
                       dispatch_halves(other, &caller.input, &caller.output, nullptr));
        EXPECT_REFUSED(findings, MEP_ERR_BUSY, "first", mep_ep_handle_destroy(caller.handle));
        COLL_OK(findings, caller.run_dispatch(Halves::kReceive));
        COLL_CHECK(findings, total > 0 || !is_early);
      }
      COLL_OK(findings, caller.run_combine(Halves::kBoth));
      COLL_OK(findings, mep_ep_handle_destroy(other));
    }
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
    caller.output.recv_x = received.data();
    caller.output.recv_capacity = 16;
    caller.output.statistics = statistics;
    const int64_t everything_to_both[8] = {0, 4, 0, 4, -1, -1, -1, -1};
    std::copy(everything_to_both, everything_to_both + 8, caller.index);
    EXPECT_REFUSED(findings, MEP_ERR_CAPACITY, "need 128", caller.run_dispatch(Halves::kBoth));
    EXPECT_REFUSED(findings, MEP_ERR_CAPACITY, "need 128", caller.run_dispatch(Halves::kReceive));
    caller.output.recv_capacity = 128;
    COLL_OK(findings, caller.run_dispatch(Halves::kReceive));
    COLL_CHECK(findings, statistics[0] == 4 && statistics[1] == 0);
    COLL_OK(findings, caller.run_combine(Halves::kBoth));
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
    COLL_OK(findings, caller.run_dispatch(Halves::kBoth));
    if (rank == 0) {
      EXPECT_REFUSED(findings, MEP_ERR_MISMATCH, "rank 1", caller.run_combine(Halves::kBoth));
    }
    COLL_OK(findings, caller.run_dispatch(Halves::kBoth));
    COLL_OK(findings, caller.run_combine(Halves::kBoth));
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
                            static_cast<mep::HostBuffers&>(mep::ep_object_of(ep).buffers())
                                .at(i)
                                .set_use_for_test(first);
                          }
                          run_ep_rounds(c, rank, ep, 8 * c.buffers, false, findings);
                          COLL_OK(findings, mep_ep_destroy(ep));
                        });
      report.require_clean();
    }
  }
}

// Captures what is written to stderr while it lives.
class CapturedErrors {
 public:
  CapturedErrors() : kept_(dup(STDERR_FILENO)), file_(tmpfile()) {
    assert_int_equal(dup2(fileno(file_), STDERR_FILENO), STDERR_FILENO);
  }
  ~CapturedErrors() {
    dup2(kept_, STDERR_FILENO);
    close(kept_);
    (void)fclose(file_);
  }
  CapturedErrors(const CapturedErrors&) = delete;
  CapturedErrors& operator=(const CapturedErrors&) = delete;

  std::string text() const {
    std::string all(1 << 14, '\0');
    const ssize_t got = pread(fileno(file_), all.data(), all.size(), 0);
    all.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return all;
  }

 private:
  int kept_;
  FILE* file_;
};

// Pages of windows come as they are written, so creating it succeeds.
void windows_beyond_the_memory_are_warned_of(void**) {
  for (const bool too_large : {false, true}) {
    Report report;
    int sharing = 0;
    const CapturedErrors errors;
    with_rank_threads(
        2, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& findings) {
          mep_ep_config_t config = small_config();
          config.hidden = too_large ? 1 << 20 : 16;
          mep_ep_size_t size;
          mep_ep_size_defaults(&size);
          COLL_OK(findings, mep_ep_buffer_size(comm, &config, &size));
          // Ranks that map each other share the memory: more than half of it for each of the two.
          mep_comm_info_t info;
          mep_comm_info_defaults(&info);
          mep_reach_t reach[2] = {};
          info.capacity = 2;
          info.reach = reach;
          COLL_OK(findings, mep_comm_query(comm, &info));
          const bool shares = reach[1 - rank] == MEP_REACH_MAPPED;
          if (too_large) {
            const uint64_t wanted = mep::usable_memory() / (shares ? 2 : 1);
            config.max_tokens_per_rank *= static_cast<uint32_t>(wanted / size.window_bytes + 1);
          }
          if (rank == 0) sharing = shares ? 2 : 1;
          mep_ep_t ep = nullptr;
          COLL_OK(findings, mep_ep_create(comm, &config, &ep));
          COLL_OK(findings, mep_ep_destroy(ep));
        });
    report.require_clean();
    const std::string text = errors.text();
    const size_t first = text.find("bytes for each of " + std::to_string(sharing) + " ranks");
    assert_int_equal(first != std::string::npos, too_large);
    if (!too_large) continue;
    assert_true(text.find(std::to_string(mep::usable_memory()) + " bytes of memory") !=
                std::string::npos);
    if (sharing == 2) assert_true(text.find("EP object", first) == std::string::npos);
  }
}

}  // namespace

int main(int argc, char** argv) {
  setenv("MEP_LOG", "warn", 1);
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {cmocka_unit_test(bad_configs),
                              cmocka_unit_test(disagreements),
                              cmocka_unit_test(bad_dispatches),
                              cmocka_unit_test(statuses_of_any_size),
                              cmocka_unit_test(busy_buffers),
                              cmocka_unit_test(rows_left),
                              cmocka_unit_test(small_receive_memory),

                              cmocka_unit_test(expert_maps),
                              cmocka_unit_test(forgotten_combine),
                              cmocka_unit_test(wrap_around),
                              cmocka_unit_test(windows_beyond_the_memory_are_warned_of)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}

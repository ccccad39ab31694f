#include "core/staged/staged_ep_calls.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/status.hpp"

namespace mep {
namespace {

using device::StageAnswer;
using device::StageEp;
using device::StageRequest;

// Entries that are no expert, and those that name an expert of their token again, become -1.
template <typename Index>
uint32_t clean(const EpShape& shape, uint32_t tokens, Index* indices) {
  uint32_t bad = 0;
  for (uint32_t token = 0; token < tokens; ++token) {
    Index* row = indices + size_t{token} * shape.top_k;
    for (uint32_t k = 0; k < shape.top_k; ++k) {
      const auto expert = static_cast<int64_t>(row[k]);
      if (expert == -1) continue;
      const bool is_expert = expert >= 0 && expert < int64_t{shape.experts};
      if (is_expert && std::find(row, row + k, row[k]) == row + k) continue;
      row[k] = -1;
      ++bad;
    }
  }
  return bad;
}

uint64_t range_begin(int64_t range) {
  return static_cast<uint64_t>(range) >> 32;
}
uint64_t range_count(int64_t range) {
  return static_cast<uint64_t>(range) & 0xffffffff;
}

mep_ep_view_t view_of(const EpBuffer& buffer) {
  mep_ep_view_t view{};
  buffer.fill_view(&view);
  return view;
}

}  // namespace

StagedEpLayout make_staged_ep_layout(const EpShape& shape) {
  constexpr uint64_t kAlignment = 256;
  StagedEpLayout layout{};
  uint64_t end = 0;
  const auto take = [&end](uint64_t bytes) {
    const uint64_t begin = (end + kAlignment - 1) / kAlignment * kAlignment;
    end = begin + bytes;
    return begin;
  };
  const uint64_t entries = uint64_t{shape.max_tokens} * shape.top_k;
  // A token comes to a rank for each of its experts there.
  const uint64_t rows =
      shape.rows_per_expert() * std::min<uint64_t>(shape.top_k, shape.local_experts);
  layout.x = take(shape.max_tokens * shape.input_row_bytes());
  layout.x_scales = take(shape.max_tokens * shape.scale_row_bytes());
  layout.topk_idx = take(entries * sizeof(int64_t));
  layout.weights = take(entries * sizeof(float));
  layout.bias = take(shape.combine_row_bytes());
  layout.out = take(shape.max_tokens * shape.combine_row_bytes());
  layout.layout_range = take(shape.places() * sizeof(int64_t));
  layout.recv_count = take(shape.local_experts * sizeof(int32_t));
  layout.src_info = take(rows * sizeof(int32_t));
  layout.scales = take(rows * shape.scale_row_bytes());
  layout.rows = take(rows * std::max(shape.wire_row_bytes(), shape.combine_row_bytes()));
  layout.bytes = end;
  return layout;
}

uint64_t staged_ep_bytes(const EpShape& shape, const device::EpGeometry& geometry) {
  const uint64_t one =
      geometry.window_bytes + geometry.local_bytes + make_staged_ep_layout(shape).bytes;
  return one * shape.buffers;
}

device::StageEpMemory staged_ep_memory(const StagedEpLayout& layout, std::byte* base) {
  device::StageEpMemory memory{};
  memory.x = base + layout.x;
  memory.x_scales = base + layout.x_scales;
  memory.topk_idx = base + layout.topk_idx;
  memory.weights = reinterpret_cast<float*>(base + layout.weights);
  memory.bias = base + layout.bias;
  memory.out = base + layout.out;
  memory.layout_range = reinterpret_cast<int64_t*>(base + layout.layout_range);
  memory.recv_count = reinterpret_cast<int32_t*>(base + layout.recv_count);
  memory.src_info = reinterpret_cast<int32_t*>(base + layout.src_info);
  memory.scales = base + layout.scales;
  memory.rows = base + layout.rows;
  return memory;
}

mep_result_t StagedEpCalls::serve(const StageRequest& request, StageAnswer* answer) {
  const bool is_dispatch = request.kind == device::StageKind::kDispatch;
  if (!is_dispatch && request.kind != device::StageKind::kCombine) {
    return fail(MEP_ERR_UNSUPPORTED, "a request of kind %u is no dispatch and no combine",
                static_cast<uint32_t>(request.kind));
  }
  EpHandle& handle = *std::bit_cast<EpHandle*>(request.ep.handle);
  const mep_result_t result =
      is_dispatch ? dispatch(request.ep, handle, answer) : combine(request.ep, handle, answer);
  answer->tokens = handle.routing.tokens;
  if (answer->status.head.version != 0) last_status_ = answer->status;
  return result;
}

// --- Refusals -------------------------------------------------------------------------------------

void StagedEpCalls::note(Refusal* refusal, mep_result_t result, bool begun) const {
  refusal->result = begun ? mep_result_t{MEP_SUCCESS} : result;
  refusal->text = begun ? "" : last_error_text();
}

// Nothing came, but what is said of it is whole.
mep_result_t StagedEpCalls::refused(const Refusal& refusal, StageAnswer* answer) const {
  answer->status = {};
  mep_op_status_t& head = answer->status.head;
  head.version = MEP_OP_STATUS_VERSION;
  head.failed_words = static_cast<uint32_t>(rank_words(object_.shape().ranks));
  head.result = refusal.result;
  head.epoch = comm_.latest_view()->epoch;
  return fail(refusal.result, "%s", refusal.text.c_str());
}

// --- Dispatch -------------------------------------------------------------------------------------

uint32_t StagedEpCalls::clean_routing(const StageEp& call) const {
  if (call.idx_type == MEP_INT32) {
    return clean(object_.shape(), call.tokens, reinterpret_cast<int32_t*>(memory_.topk_idx));
  }
  return clean(object_.shape(), call.tokens, reinterpret_cast<int64_t*>(memory_.topk_idx));
}

mep_result_t StagedEpCalls::dispatch(const StageEp& call, EpHandle& handle, StageAnswer* answer) {
  mep_dispatch_send_t send{};
  mep_dispatch_receive_t receive{};
  receive.op_status = &answer->status.head;
  receive.op_status_bytes = sizeof answer->status;
  const bool sends = call.sends != 0;
  if (sends) {
    bad_entries_ = clean_routing(call);
    send.num_tokens = call.tokens;
    send.x = memory_.x;
    send.topk_idx = memory_.topk_idx;
    send.topk_idx_type = call.idx_type;
    if ((call.given & device::kStageScales) != 0) send.x_scales = memory_.x_scales;
    if ((call.given & device::kStageWeights) != 0) send.topk_weights = memory_.weights;
  } else if (dispatch_refused_.result != MEP_SUCCESS) {
    return refused(dispatch_refused_, answer);
  }
  const uint64_t begun = buffer_.begun();
  const std::shared_ptr<const ExpertMap> map = object_.expert_map();
  const mep_result_t result = buffer_.dispatch(handle, sends ? &send : nullptr,
                                               call.receives != 0 ? &receive : nullptr, map.get());
  if (sends) {
    note(&dispatch_refused_, result, buffer_.begun() != begun);
    if (dispatch_refused_.result != MEP_SUCCESS) return refused(dispatch_refused_, answer);
  }
  if (call.receives == 0) return result;
  answer->status.head.bad_entries = bad_entries_;
  const std::string text = last_error_text();
  const mep_result_t handed = hand_over(call, answer);
  if (result == MEP_SUCCESS) return handed;
  return is_error(result) ? fail(result, "%s", text.c_str()) : result;
}

// What has arrived, from the window to the staging; of complete sources only, also after a failure.
mep_result_t StagedEpCalls::hand_over(const StageEp& call, StageAnswer* answer) const {
  const EpShape& shape = object_.shape();
  const mep_ep_view_t view = view_of(buffer_);
  const size_t row_bytes = shape.wire_row_bytes();
  const size_t scale_bytes = shape.scale_row_bytes();
  const auto* x = static_cast<const std::byte*>(view.recv_x);
  const auto* scales = static_cast<const std::byte*>(view.recv_scales);
  std::copy_n(view.layout_range, shape.places(), memory_.layout_range);
  std::copy_n(view.recv_count, shape.local_experts, memory_.recv_count);
  uint64_t place = 0;
  uint64_t rows_needed = 0;
  for (uint32_t i = 0; i < shape.places(); ++i) {
    const uint64_t count = range_count(view.layout_range[i]);
    if (count == 0) continue;
    const uint64_t row =
        i / shape.ranks * shape.rows_per_expert() + range_begin(view.layout_range[i]);
    std::memcpy(memory_.rows + place * row_bytes, x + row * row_bytes, count * row_bytes);
    std::copy_n(view.src_info + row, count, memory_.src_info + place);
    if (scale_bytes != 0) {
      std::memcpy(memory_.scales + place * scale_bytes, scales + row * scale_bytes,
                  count * scale_bytes);
    }
    place += count;
    rows_needed = std::max(rows_needed, row + count);
  }
  answer->delivers = 1;
  answer->total = static_cast<int64_t>(place);
  answer->recv_x_fits = 1;
  const bool is_bounded = (call.given & device::kStageRecvX) != 0 && call.capacity != 0;
  const uint64_t bytes_needed = rows_needed * row_bytes;
  if (!is_bounded || bytes_needed <= call.capacity) return MEP_SUCCESS;
  answer->recv_x_fits = 0;
  answer->status.head.result = MEP_ERR_CAPACITY;
  return fail(MEP_ERR_CAPACITY, "recv_capacity is %llu bytes, the rows that arrived need %llu",
              static_cast<unsigned long long>(call.capacity),
              static_cast<unsigned long long>(bytes_needed));
}

// --- Combine --------------------------------------------------------------------------------------

// The experts' rows, from the staging to the library's memory for them. It may be written: this use's
// dispatch was received.
void StagedEpCalls::take_terms() const {
  const EpShape& shape = object_.shape();
  const mep_ep_view_t view = view_of(buffer_);
  const size_t row_bytes = shape.combine_row_bytes();
  auto* terms = static_cast<std::byte*>(view.combine_input);
  uint64_t place = 0;
  for (uint32_t i = 0; i < shape.places(); ++i) {
    const uint64_t count = range_count(view.layout_range[i]);
    if (count == 0) continue;
    const uint64_t row =
        i / shape.ranks * shape.rows_per_expert() + range_begin(view.layout_range[i]);
    std::memcpy(terms + row * row_bytes, memory_.rows + place * row_bytes, count * row_bytes);
    place += count;
  }
}

mep_result_t StagedEpCalls::combine(const StageEp& call, EpHandle& handle, StageAnswer* answer) {
  const bool sends = call.sends != 0;
  if (dispatch_refused_.result != MEP_SUCCESS) return refused(dispatch_refused_, answer);
  if (!sends && combine_refused_.result != MEP_SUCCESS) return refused(combine_refused_, answer);
  mep_combine_send_t send{};
  send.y = buffer_.combine_out();
  mep_combine_receive_t receive{};
  receive.flags = call.flags;
  receive.out = memory_.out;
  receive.op_status = &answer->status.head;
  receive.op_status_bytes = sizeof answer->status;
  if ((call.given & device::kStageWeights) != 0) receive.weights = memory_.weights;
  if ((call.given & device::kStageBias) != 0) receive.bias = memory_.bias;
  if (sends && buffer_.uses(handle) && !buffer_.in_flight()) take_terms();
  const uint64_t begun = buffer_.begun();
  const mep_result_t result =
      buffer_.combine(handle, sends ? &send : nullptr, call.receives != 0 ? &receive : nullptr);
  if (sends) {
    note(&combine_refused_, result, buffer_.begun() != begun);
    if (combine_refused_.result != MEP_SUCCESS) return refused(combine_refused_, answer);
  }
  if (call.receives != 0) answer->delivers = 1;
  return result;
}

}  // namespace mep

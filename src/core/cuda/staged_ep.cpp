#include "core/cuda/staged_ep.hpp"

#include <algorithm>
#include <bit>

#include "base/status.hpp"
#include "core/ep/ep_device_geometry.hpp"

namespace mep {

using device::StageAnswer;
using device::StageRequest;

StagedEp::StagedEp(Comm& comm, StagedComm& side, const EpShape& shape,
                   const EpDeviceOptions& options)
    : comm_(comm),
      side_(side),
      shape_(shape),
      options_(options),
      geometry_(ep_device_geometry(shape, options)),
      layout_(make_staged_ep_layout(shape)),
      object_(std::make_unique<EpObject>(comm, shape)) {}

StagedEp::~StagedEp() {
  if (is_client_) {
    comm_.remove_client(this);
    side_.remove_part(this);
  }
  // Their threads use the object.
  buffers_.clear();
}

// --- Creation -------------------------------------------------------------------------------------

mep_result_t StagedEp::open(const char* name) {
  MEP_TRY(object_->open(name));
  RankValues scales;
  MEP_TRY(
      step_together(comm_, "begin to make its GPU's part of an EP object", [&]() -> mep_result_t {
        scales.reserve(comm_, 1);
        return MEP_SUCCESS;
      }));
  MEP_TRY(agree_on_scales(&scales));
  return step_together(comm_, "make its GPU's part of an EP object", [&] { return take_part(); });
}

mep_result_t StagedEp::agree_on_scales(RankValues* scales) {
  const uint64_t own = options_.column_major ? 1 : 0;
  MEP_TRY(scales->gather(comm_, {&own, 1}));
  const uint32_t other = scales->first_other(shape_.ranks);
  if (other == shape_.ranks) return MEP_SUCCESS;
  return fail(MEP_ERR_MISMATCH, "scale_layout differs on ranks 0 and %u", other);
}

mep_result_t StagedEp::take_part() {
  const std::shared_ptr<const CommView> view = comm_.latest_view();
  latest_.epoch = view->epoch;
  MEP_TRY(open_buffers());
  comm_.add_client(this);
  is_client_ = true;
  side_.add_part(this);
  if (comm_.latest_view() == view) return MEP_SUCCESS;
  return fail(MEP_ERR_PEER_FAILED, "the view changed while an EP object was made; make it again");
}

mep_result_t StagedEp::open_buffers() {
  const DeviceScope scope(side_.device());
  MEP_TRY(scope.check());
  for (uint32_t i = 0; i < shape_.buffers; ++i) {
    Buffer& buffer = *buffers_.emplace_back(std::make_unique<Buffer>());
    MEP_TRY(buffer.channel.open(side_.device()));
    MEP_TRY(DeviceMemory::create(side_.device(), geometry_.window_bytes + geometry_.local_bytes,
                                 &buffer.memory));
    MEP_TRY(PinnedMemory::create(layout_.bytes, &buffer.staging));
    buffer.epoch = latest_.epoch;
    buffer.served = std::make_unique<StagedEpCalls>(comm_, *object_, i, kernels(buffer).staging);
    const std::string what = "buffer " + std::to_string(i) + " of EP object " + object_->name();
    StagedEpCalls* served = buffer.served.get();
    MEP_TRY(buffer.server.open(buffer.channel.mailbox(), what,
                               [served](const StageRequest& request, StageAnswer* answer) {
                                 return served->serve(request, answer);
                               }));
  }
  set_timeout_ms(comm_.timeout_ms());
  return MEP_SUCCESS;
}

void StagedEp::set_timeout_ms(uint32_t ms) {
  for (const auto& buffer : buffers_) {
    buffer->server.set_timeout_ms(shape_.timeout_ms != 0 ? shape_.timeout_ms : ms);
  }
}

// --- Handles, views, the expert map ---------------------------------------------------------------

mep_result_t StagedEp::make_handle(EpSideHandle* handle) {
  const std::lock_guard lock(handles_mutex_);
  if (free_handles_.empty()) {
    handles_.push_back(std::make_unique<EpHandle>());
    free_handles_.push_back(handles_.back().get());
  }
  handle->staged = free_handles_.back();
  free_handles_.pop_back();
  return MEP_SUCCESS;
}

// Streams idle.
mep_result_t StagedEp::end_handle(EpSideHandle& handle) {
  Buffer& buffer = *buffers_[handle.buffer];
  EpBuffer& of_host = object_->buffer(handle.buffer);
  const bool is_sent = buffer.calls.current == &handle && buffer.calls.is_sent();
  if (buffer.server.busy() || (is_sent && !is_over(buffer)) ||
      (of_host.uses(*handle.staged) && of_host.in_flight())) {
    return fail(MEP_ERR_BUSY, "an operation of the handle was sent and has not been received");
  }
  if (buffer.calls.current == &handle) buffer.calls.reset();
  of_host.forget(*handle.staged);
  const std::lock_guard lock(handles_mutex_);
  free_handles_.push_back(handle.staged);
  return MEP_SUCCESS;
}

mep_result_t StagedEp::set_expert_map(const int32_t* map) {
  return object_->set_expert_map(map);
}

device::StageEpBuffer StagedEp::kernels(const Buffer& buffer) const {
  device::StageEpBuffer all{};
  all.channel = buffer.channel.kernels();
  all.geometry = geometry_;
  all.window = buffer.memory->data();
  all.local = all.window + geometry_.window_bytes;
  all.staging = staged_ep_memory(layout_, static_cast<std::byte*>(buffer.staging->data()));
  return all;
}

void StagedEp::fill_view(uint32_t index, mep_ep_view_t* view) const {
  const device::StageEpBuffer all = kernels(*buffers_[index]);
  view->flags = 0;
  view->recv_x = all.window + geometry_.recv_x;
  view->recv_scales = shape_.has_scales() ? all.window + geometry_.scales : nullptr;
  view->recv_count = reinterpret_cast<const int32_t*>(all.local + geometry_.recv_count);
  view->src_info = reinterpret_cast<const int32_t*>(all.window + geometry_.src_info);
  view->layout_range = reinterpret_cast<const int64_t*>(all.local + geometry_.layout_range);
  view->combine_input = all.window + geometry_.combine_out;
}

// --- Operations -----------------------------------------------------------------------------------

StagedEp::LatestView StagedEp::latest() const {
  const std::lock_guard lock(view_mutex_);
  return latest_;
}

// Whether what was sent has ended by a view change or with the world.
bool StagedEp::is_over(const Buffer& buffer) const {
  return latest().epoch != buffer.epoch || comm_.world().terminal_result() != MEP_SUCCESS;
}

bool StagedEp::in_flight() {
  return std::any_of(buffers_.begin(), buffers_.end(), [this](const auto& buffer) {
    return buffer->server.busy() || (buffer->calls.is_sent() && !is_over(*buffer));
  });
}

mep_result_t StagedEp::check_call(const void* stream) const {
  MEP_TRY(comm_.identity().check_world());
  return side_.check_stream(stream);
}

// The first call on a buffer reports the change, like on mapped GPUs, and nothing else happens. The operations
// themselves need no more than the object of the host does, so replays go on without.
mep_result_t StagedEp::catch_up(Buffer& buffer, void* stream) {
  const LatestView now = latest();
  if (now.epoch == buffer.epoch) [[likely]]
    return MEP_SUCCESS;
  bool capturing = false;
  MEP_TRY(is_capturing(stream, &capturing));
  if (capturing) return MEP_SUCCESS;
  move_to_view(buffer, now.epoch);
  return fail(now.result, "%s", now.text.c_str());
}

void StagedEp::move_to_view(Buffer& buffer, uint64_t epoch) {
  buffer.epoch = epoch;
  if (buffer.calls.stage != EpStage::kReceived) buffer.calls.reset();  // else it can be combined
  comm_.personal_reports().clear();  // reported by this call, not by the host's object
}

mep_result_t StagedEp::dispatch(EpSideHandle& handle, const mep_dispatch_send_t* send,
                                const mep_dispatch_receive_t* receive, void* stream) {
  Buffer& buffer = *buffers_[handle.buffer];
  MEP_TRY(check_call(stream));
  const DeviceScope scope(side_.device());
  MEP_TRY(scope.check());
  MEP_TRY(check_stream_device(side_.device(), stream));
  mep_ep_view_t view{};
  fill_view(handle.buffer, &view);
  MEP_TRY(check_dispatch_call(side_.device(), shape_, buffer.calls, handle, view, send, receive));
  if (send != nullptr) {
    if (buffer.calls.is_sent() && !is_over(buffer)) return buffer.calls.busy();
    MEP_TRY(catch_up(buffer, stream));
  }
  StageRequest request{};
  request.kind = device::StageKind::kDispatch;
  request.ep = {};
  request.ep.handle = std::bit_cast<uint64_t>(handle.staged);
  if (send != nullptr) {
    request.ep.sends = 1;
    request.ep.tokens = send->num_tokens;
    request.ep.idx_type = send->topk_idx_type;
    const bool has_scales = send->num_tokens != 0 && send->x_scales != nullptr;
    if (has_scales) request.ep.given |= device::kStageScales;
    if (send->topk_weights != nullptr) request.ep.given |= device::kStageWeights;
  }
  if (receive != nullptr) {
    request.ep.receives = 1;
    request.ep.capacity = receive->recv_capacity;
    if (receive->recv_x != nullptr) request.ep.given |= device::kStageRecvX;
  }
  MEP_TRY(check_cuda(device::stage_dispatch(kernels(buffer), send, receive, request, stream),
                     "mep_dispatch"));
  buffer.calls.note_dispatch(handle, send, receive);
  return MEP_SUCCESS;
}

mep_result_t StagedEp::combine(EpSideHandle& handle, const mep_combine_send_t* send,
                               const mep_combine_receive_t* receive, void* stream) {
  Buffer& buffer = *buffers_[handle.buffer];
  MEP_TRY(check_call(stream));
  const DeviceScope scope(side_.device());
  MEP_TRY(scope.check());
  MEP_TRY(check_stream_device(side_.device(), stream));
  mep_ep_view_t view{};
  fill_view(handle.buffer, &view);
  MEP_TRY(check_combine_call(side_.device(), shape_, buffer.calls, handle, view, send, receive));
  if (send != nullptr) MEP_TRY(catch_up(buffer, stream));
  StageRequest request{};
  request.kind = device::StageKind::kCombine;
  request.ep = {};
  request.ep.handle = std::bit_cast<uint64_t>(handle.staged);
  request.ep.sends = send != nullptr ? 1 : 0;
  if (receive != nullptr) {
    request.ep.receives = 1;
    request.ep.flags = receive->flags;
    if (receive->weights != nullptr) request.ep.given |= device::kStageWeights;
    if (receive->bias != nullptr) request.ep.given |= device::kStageBias;
  }
  MEP_TRY(check_cuda(device::stage_combine(kernels(buffer), send, receive, request, stream),
                     "mep_combine"));
  buffer.calls.note_combine(receive);
  return MEP_SUCCESS;
}

mep_result_t StagedEp::last_op(uint32_t index, mep_op_info_t* info) {
  Buffer& buffer = *buffers_[index];
  if (buffer.server.busy()) return buffer.calls.busy();
  const LatestView now = latest();
  if (now.epoch != buffer.epoch) move_to_view(buffer, now.epoch);
  return fill_op_info(buffer.served->last_status(), buffer.calls.has_status, shape_.ranks, info);
}

mep_result_t StagedEp::take_failure() {
  for (const auto& buffer : buffers_) MEP_TRY(buffer->server.take_failure());
  return MEP_SUCCESS;
}

// --- The control thread ---------------------------------------------------------------------------

void StagedEp::install(const std::shared_ptr<const CommChange>& change,
                       const membership::Proposal*) {
  if (change == nullptr) return;  // the epoch goes on
  const std::lock_guard lock(view_mutex_);
  latest_ = {change->view->epoch, change->result, change->text};
}

}  // namespace mep

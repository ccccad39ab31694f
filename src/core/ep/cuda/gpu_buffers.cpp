#include "core/ep/cuda/gpu_buffers.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/status.hpp"
#include "core/cuda/pinned_word.hpp"
#include "transport/gpu_queue/request_check.hpp"

namespace mep {
namespace {

using device::DeviceControl;
using device::DeviceReport;
using device::EpState;

constexpr uint32_t kUsefulCtas = 16;  // of each of several ranks; more do not help
constexpr uint64_t kAllEpochs = std::numeric_limits<uint64_t>::max();

constexpr uint64_t aligned(uint64_t offset) {
  return (offset + 255) / 256 * 256;
}

// If the caller wants no status, the library keeps it.
template <class Receive>
Receive with_status(Receive receive, device::OpStatus* own) {
  if (receive.op_status != nullptr) return receive;
  receive.op_status = reinterpret_cast<mep_op_status_t*>(own);
  receive.op_status_bytes = sizeof *own;
  return receive;
}

}  // namespace

GpuBuffers::GpuBuffers(Comm& comm, CudaBackend& backend, const EpShape& shape,
                       const EpDeviceOptions& options)
    : comm_(comm),
      backend_(backend),
      shape_(shape),
      options_(options),
      geometry_(ep_geometry(shape, options, backend.reach())),
      buffers_(shape.buffers),
      views_(comm) {}

void GpuBuffers::leave() {
  for (const Buffer& buffer : buffers_) {
    if (buffer.queued != nullptr) buffer.queued->finish();
  }
}

GpuBuffers::~GpuBuffers() {
  if (is_part_) backend_.remove_part(this);
  for (Buffer& buffer : buffers_) {
    if (buffer.windows == nullptr) continue;
    buffer.windows->withdraw();
    backend_.keep_memory(std::move(buffer.windows));
  }
}

// --- Creation -------------------------------------------------------------------------------------

mep_result_t GpuBuffers::meet(RankValues* values) {
  const uint64_t mine[] = {options_.column_major ? 1u : 0u, comm_.world().identity().host};
  static_assert(std::size(mine) <= EpAgreement::kMostValues);
  MEP_TRY(values->gather(comm_, mine));
  ranks_on_host_ = 0;
  for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
    if (values->of(rank) != values->of(0)) {
      return fail(MEP_ERR_MISMATCH, "scale_layout differs on ranks 0 and %u", rank);
    }
    if (values->of(rank, 1) == mine[1]) ++ranks_on_host_;
  }
  return MEP_SUCCESS;
}

// Kernels wait for those of the other ranks, so all blocks that may be there at one time must fit.
mep_result_t GpuBuffers::choose_ctas() {
  uint32_t resident = 0;
  MEP_TRY(check_cuda(
      device::ep_load_kernels(geometry_, backend_.reach() == GpuReach::kQueues, &resident),
      "loading the kernels of dispatch and combine"));
  const uint32_t ranks = backend_.place().ranks_on_device;
  const uint32_t share = resident / (ranks * std::max(shape_.buffers, 1U));
  if (share == 0 || options_.num_sms > share) {
    return fail(MEP_ERR_UNSUPPORTED,
                "%u ranks with %u buffers do not fit on GPU %d together: it holds %u blocks of "
                "these kernels, %u for each; use fewer ranks on it, fewer buffers or a smaller "
                "num_sms",
                ranks, shape_.buffers, backend_.device(), resident, share);
  }
  ctas_ = backend_.place().limited(ranks == 1 ? share : std::min(share, kUsefulCtas));
  if (options_.num_sms != 0) ctas_ = options_.num_sms;
  return MEP_SUCCESS;
}

mep_result_t GpuBuffers::check_host_memory() const {
  uint64_t each = 0;
  switch (backend_.reach()) {
    case GpuReach::kDeviceWindows:
      return MEP_SUCCESS;
    case GpuReach::kHostWindows:
      each = geometry_.pushed_bytes * shape_.buffers;
      break;
    case GpuReach::kQueues: {
      if (backend_.uses_adapter()) return MEP_SUCCESS;  // QueuedBuffer looks where it takes some
      const device::EpQueueLayout layout = device::make_ep_queue_layout(geometry_);
      each = (layout.inbox_bytes + layout.outbox_bytes) * shape_.buffers;
      break;
    }
  }
  return check_pinned_bytes(each, ranks_on_host_);
}

mep_result_t GpuBuffers::offer(const std::string& name, uint64_t window_seed) {
  name_ = name;
  const DeviceScope scope(backend_.device());
  MEP_TRY(scope.check());
  MEP_TRY(choose_ctas());
  MEP_TRY(check_host_memory());
  stream_ = std::make_unique<DeviceStream>();
  MEP_TRY(stream_->open());
  const size_t reports_at = 64;  // a line for the abort word
  MEP_TRY(PinnedMemory::create(reports_at + shape_.buffers * sizeof(DeviceReport), &pinned_));
  auto* pinned = static_cast<std::byte*>(pinned_->data());
  abort_word_ = reinterpret_cast<uint64_t*>(pinned);
  reports_ = reinterpret_cast<DeviceReport*>(pinned + reports_at);
  for (uint32_t expert = 0; expert <= shape_.experts; ++expert) no_map_.begin.push_back(expert);
  no_map_.places.assign(no_map_.begin.begin(), no_map_.begin.end() - 1);
  const uint64_t map_words = uint64_t{shape_.experts} + 1 + shape_.places();
  MEP_TRY(DeviceMemory::create(backend_.device(), map_words * sizeof(uint32_t), &map_memory_));
  for (uint32_t i = 0; i < shape_.buffers; ++i) {
    buffers_[i].id = hash_bytes(window_seed, &i, sizeof i);
    if (shape_.in_step()) views_.add_channel(buffers_[i].id);
    MEP_TRY(offer_buffer(&buffers_[i]));
  }
  return MEP_SUCCESS;
}

// The memory that peers write: the window, or inboxes of queues and of mapped peers.
mep_result_t GpuBuffers::offer_windows(Buffer* buffer) {
  if (backend_.reach() != GpuReach::kQueues) {
    const bool on_host = backend_.reach() == GpuReach::kHostWindows;
    buffer->windows = std::make_shared<GpuWindows>(
        comm_, on_host ? WindowPlace::kHost : WindowPlace::kDevice, backend_.device(), buffer->id);
    return buffer->windows->offer(on_host ? geometry_.pushed_bytes : geometry_.window_bytes);
  }
  const std::vector<bool> mapped = backend_.mapped_ranks();
  std::unique_ptr<gpu_queue::NicPairs> nic;
  MEP_TRY(backend_.make_pairs(&nic));
  buffer->queued = std::make_unique<QueuedBuffer>(comm_.identity(), std::move(nic), mapped,
                                                  geometry_, backend_.device(), ranks_on_host_);
  MEP_TRY(buffer->queued->offer(buffer->id));
  if (mapped.empty()) return MEP_SUCCESS;
  const uint64_t id = hash_bytes(buffer->id, "mapped", 6);
  buffer->windows =
      std::make_shared<GpuWindows>(comm_, WindowPlace::kDevice, backend_.device(), id, mapped);
  return buffer->windows->offer(buffer->queued->inbox_bytes());
}

mep_result_t GpuBuffers::offer_buffer(Buffer* buffer) {
  MEP_TRY(offer_windows(buffer));
  if (geometry_.expanded.rows != 0) {
    MEP_TRY(DeviceMemory::create(backend_.device(), geometry_.expanded.bytes, &buffer->expanded));
  }
  if (backend_.reach() == GpuReach::kHostWindows) {
    MEP_TRY(DeviceMemory::create(backend_.device(), geometry_.window_bytes, &buffer->views_memory));
  }
  const uint64_t control_at = aligned(geometry_.local_bytes);
  const uint64_t status_at = aligned(control_at + sizeof(DeviceControl));
  const uint64_t peers_at = aligned(status_at + sizeof(device::OpStatus));
  MEP_TRY(DeviceMemory::create(backend_.device(), peers_at + shape_.ranks * sizeof(std::byte*),
                               &buffer->block));
  std::byte* base = buffer->block->data();
  buffer->control = reinterpret_cast<DeviceControl*>(base + control_at);
  buffer->status = reinterpret_cast<device::OpStatus*>(base + status_at);
  buffer->peers = reinterpret_cast<std::byte**>(base + peers_at);
  return MEP_SUCCESS;
}

mep_result_t GpuBuffers::connect(const std::shared_ptr<const CommView>& view,
                                 const Deadline& deadline) {
  const DeviceScope scope(backend_.device());
  MEP_TRY(scope.check());
  views_.begin(view);
  MEP_TRY(connect_buffers(*view, deadline));
  is_part_ = true;
  return backend_.add_part(this);
}

mep_result_t GpuBuffers::connect_buffers(const CommView& view, const Deadline& deadline) {
  const DeviceControl control = control_of(view);
  for (uint32_t i = 0; i < shape_.buffers; ++i) {
    Buffer& buffer = buffers_[i];
    if (buffer.windows != nullptr) {
      MEP_TRY(buffer.windows->connect(view, deadline));
      MEP_TRY(tell_windows(buffer, stream_->get()));
      buffer.window = buffer.windows->own();
    }
    if (buffer.queued != nullptr) {
      MEP_TRY(buffer.queued->connect(view, deadline, stream_->get()));
      buffer.window = buffer.queued->window();
    }
    buffer.views = buffer.views_memory != nullptr ? buffer.views_memory->data() : buffer.window;
    EpState state{};
    state.channel.id = buffer.id;
    state.channel.report = reports_ + i;
    MEP_TRY(copy_in_order(buffer.block->data(), &state, sizeof state, stream_->get()));
    MEP_TRY(copy_in_order(buffer.control, &control, sizeof control, stream_->get()));
    MEP_TRY(stream_->synchronize());
    buffer.epoch = control.epoch;
  }
  return MEP_SUCCESS;
}

// The table of windows that kernels read. With queues it tells who is mapped, and a rank does not map itself.
mep_result_t GpuBuffers::tell_windows(const Buffer& buffer, void* stream) const {
  std::vector<std::byte*> windows = buffer.windows->addresses();
  if (buffer.queued != nullptr) windows[shape_.rank] = nullptr;
  return copy_in_order(buffer.peers, windows.data(), windows.size() * sizeof(std::byte*), stream);
}

DeviceControl GpuBuffers::control_of(const CommView& view) const {
  DeviceControl control{};
  control.epoch = view.epoch;
  const uint32_t ms = shape_.timeout_ms != 0 ? shape_.timeout_ms : comm_.timeout_ms();
  control.timeout_ns = uint64_t{ms} * 1'000'000;
  for (size_t word = 0; word < view.live_bits.size() && word < device::kMaskWords; ++word) {
    control.live[word] = view.live_bits[word];
  }
  control.rank = shape_.rank;
  control.ranks = shape_.ranks;
  control.partial_allowed = shape_.allows_partial() ? 1 : 0;
  control.abort_word = abort_word_;
  return control;
}

// --- Handles, views, the expert map ---------------------------------------------------------------

mep_result_t GpuBuffers::make_handle(EpHandle* handle) {
  const std::lock_guard lock(handles_mutex_);
  if (!free_handles_.empty()) {
    handle->memory = free_handles_.back();
    free_handles_.pop_back();
    return MEP_SUCCESS;
  }
  std::shared_ptr<DeviceMemory> memory;
  MEP_TRY(DeviceMemory::create(backend_.device(), geometry_.handle_bytes, &memory));
  handle->memory = memory->data();
  handle_memory_.push_back(std::move(memory));
  return MEP_SUCCESS;
}

// Its memory is kept for the next handle: freeing it would wait for kernels.
mep_result_t GpuBuffers::end_handle(EpHandle& handle) {
  Buffer& buffer = buffers_[handle.buffer];
  if (buffer.calls.current == &handle) {
    if (buffer.calls.is_sent() && !is_over(buffer)) {
      return fail(MEP_ERR_BUSY,
                  "an operation of the handle was sent and has not been received: receive "
                  "it first");
    }
    buffer.calls.reset();
  }
  const std::lock_guard lock(handles_mutex_);
  free_handles_.push_back(handle.memory);
  return MEP_SUCCESS;
}

void GpuBuffers::fill_view(uint32_t index, mep_ep_view_t* view) const {
  const Buffer& buffer = buffers_[index];
  const std::byte* local = buffer.block->data();
  view->flags = 0;
  view->recv_x = buffer.views + geometry_.recv_x;
  view->recv_scales = shape_.has_scales() ? buffer.views + geometry_.scales : nullptr;
  view->recv_count = reinterpret_cast<const int32_t*>(local + geometry_.recv_count);
  view->src_info = reinterpret_cast<const int32_t*>(buffer.views + geometry_.src_info);
  view->layout_range = reinterpret_cast<const mep_range_t*>(local + geometry_.layout_range);
  view->combine_input =
      shape_.has_combine_memory() ? buffer.views + geometry_.combine_out : nullptr;
  view->recv_topk_idx = view->token_rows = view->token_topk_idx = view->token_src_info = nullptr;
  view->recv_topk_weights = nullptr;
  view->token_range = nullptr;
  if (!shape_.high_throughput()) return;
  if (shape_.expanded()) return fill_expanded_view(buffer, view);
  view->recv_topk_idx = reinterpret_cast<const int32_t*>(buffer.views + geometry_.topk_idx);
  view->recv_topk_weights = reinterpret_cast<const float*>(buffer.views + geometry_.topk_weights);
}

void GpuBuffers::fill_expanded_view(const Buffer& buffer, mep_ep_view_t* view) const {
  const device::EpExpandedLayout& layout = geometry_.expanded;
  std::byte* rows = buffer.expanded->data();
  view->recv_x = rows + layout.x;
  view->recv_scales = shape_.has_scales() ? rows + layout.scales : nullptr;
  view->token_rows = reinterpret_cast<const int32_t*>(buffer.block->data() + layout.row_slots);
  view->token_topk_idx = reinterpret_cast<const int32_t*>(buffer.views + geometry_.topk_idx);
  view->token_src_info = view->src_info;
  view->token_range = view->layout_range;
  view->src_info = reinterpret_cast<const int32_t*>(rows + layout.tokens);
  view->layout_range = reinterpret_cast<const mep_range_t*>(rows + layout.ranges);
  view->combine_input = rows + layout.y;
  view->recv_topk_weights = reinterpret_cast<const float*>(rows + layout.weights);
}

// Once a map was set, ids go through the table for good, so that graphs need no change.
mep_result_t GpuBuffers::use_map(const std::shared_ptr<const ExpertMap>& map) {
  const ExpertMap& table = map != nullptr ? *map : no_map_;
  const DeviceScope scope(backend_.device());
  MEP_TRY(scope.check());
  auto* words = reinterpret_cast<uint32_t*>(map_memory_->data());
  MEP_TRY(copy_in_order(words, table.begin.data(), table.begin.size() * sizeof(uint32_t),
                        stream_->get()));
  MEP_TRY(copy_in_order(words + shape_.experts + 1, table.places.data(),
                        table.places.size() * sizeof(uint32_t), stream_->get()));
  MEP_TRY(stream_->synchronize());
  has_map_ = has_map_ || map != nullptr;
  return MEP_SUCCESS;
}

// --- Operations -----------------------------------------------------------------------------------

// Whether what was sent in the buffer's epoch has ended by a view change or with the world.
bool GpuBuffers::is_over(const Buffer& buffer) const {
  return load_pinned(abort_word_) >= buffer.epoch || comm_.world().terminal_result() != MEP_SUCCESS;
}

bool GpuBuffers::in_flight() {
  return std::any_of(buffers_.begin(), buffers_.end(), [this](const Buffer& buffer) {
    return buffer.calls.is_sent() && !is_over(buffer);
  });
}

// Before an operation begins.
mep_result_t GpuBuffers::begin_call(Buffer& buffer, void* stream) {
  if (!views_.in_step()) return catch_up(buffer, stream);
  bool capturing = false;
  MEP_TRY(is_capturing(stream, &capturing));
  if (capturing) return MEP_SUCCESS;
  const auto index = static_cast<uint32_t>(&buffer - buffers_.data());
  const Deadline deadline = comm_.identity().change_deadline();
  for (;;) {
    EpViews::View now;
    MEP_TRY(views_.take_number(index, buffer.epoch, deadline, &now));
    if (now.view == nullptr) return MEP_SUCCESS;
    MEP_TRY(move_to_view(buffer, *now.view, stream));
  }
}

// A call that meets a new view installs it. Where a rank was lost it reports the change
// and does nothing else. While a graph is captured nothing can be installed; its replays meet the view.
mep_result_t GpuBuffers::catch_up(Buffer& buffer, void* stream) {
  const EpViews::View now = views_.latest();
  if (now.view->epoch == buffer.epoch && now.reported <= buffer.told) [[likely]]
    return MEP_SUCCESS;
  bool capturing = false;
  MEP_TRY(is_capturing(stream, &capturing));
  if (capturing) return MEP_SUCCESS;
  if (now.view->epoch != buffer.epoch) MEP_TRY(move_to_view(buffer, *now.view, stream));
  if (now.reported <= buffer.told) return MEP_SUCCESS;
  buffer.told = now.reported;
  return fail(now.result, "%s", now.text.c_str());
}

mep_result_t GpuBuffers::meet_joiners(const Deadline&) {
  const EpViews::View now = views_.latest();
  for (Buffer& buffer : buffers_) {
    if (now.view->epoch == buffer.epoch) continue;
    MEP_TRY(move_to_view(buffer, *now.view, stream_->get()));
    MEP_TRY(stream_->synchronize());
    if (buffer.windows != nullptr) buffer.windows->drop_replaced();
  }
  return MEP_SUCCESS;
}

mep_result_t GpuBuffers::move_to_view(Buffer& buffer, const CommView& view, void* stream) {
  // Packed rows of the new epoch may lie where a lost rank's kernel writes its rows of the old one.
  MEP_TRY(comm_.world().await_torn_down(comm_.identity().change_deadline()));
  const Deadline deadline = Deadline::after_ms(comm_.timeout_ms());
  if (buffer.queued != nullptr) MEP_TRY(buffer.queued->renew(view, deadline, stream));
  if (buffer.windows != nullptr && !buffer.windows->reaches(view)) {
    MEP_TRY(buffer.windows->connect(view, deadline, "an EP object"));
    MEP_TRY(tell_windows(buffer, stream));
  }
  DeviceControl control = control_of(view);
  for (const uint32_t rank : view.live) {
    const bool is_part = (buffer.windows == nullptr || buffer.windows->reaches(view, rank)) &&
                         (buffer.queued == nullptr || buffer.queued->reaches(view, rank));
    if (rank != shape_.rank && !is_part) control.live[rank / 64] &= ~(uint64_t{1} << rank % 64);
  }
  const uint64_t use = 0;
  const uint32_t carries_and_credited[] = {1, 0};
  static_assert(offsetof(EpState, credited) == offsetof(EpState, carries) + sizeof(uint32_t));
  std::byte* state = buffer.block->data();
  MEP_TRY(copy_in_order(buffer.control, &control, sizeof control, stream));
  MEP_TRY(copy_in_order(state + offsetof(EpState, channel) + offsetof(device::DeviceChannel, use),
                        &use, sizeof use, stream));
  MEP_TRY(copy_in_order(state + offsetof(EpState, carries), carries_and_credited,
                        sizeof carries_and_credited, stream));
  buffer.epoch = view.epoch;
  if (buffer.calls.stage != EpStage::kReceived) buffer.calls.reset();  // else it can be combined
  return MEP_SUCCESS;
}

device::EpLaunch GpuBuffers::launch(const Buffer& buffer, const EpHandle& handle) const {
  device::EpLaunch launch{};
  launch.geometry = geometry_;
  launch.memory.control = buffer.control;
  launch.memory.window = buffer.window;
  launch.memory.own = buffer.views;
  launch.memory.expanded = buffer.expanded != nullptr ? buffer.expanded->data() : nullptr;
  launch.memory.local = buffer.block->data();
  launch.memory.peers = buffer.peers;
  if (has_map_) {
    launch.memory.map_first = reinterpret_cast<const uint32_t*>(map_memory_->data());
    launch.memory.map_places = launch.memory.map_first + shape_.experts + 1;
  }
  if (buffer.queued != nullptr) {
    launch.queues =
        buffer.queued->kernels(buffer.windows != nullptr ? buffer.windows->own() : nullptr);
  }
  launch.handle = handle.memory;
  launch.ctas = ctas_;
  return launch;
}

mep_result_t GpuBuffers::dispatch(EpHandle& handle, const DispatchInput* send,
                                  const DispatchOutput* receive, void* stream) {
  Buffer& buffer = buffers_[handle.buffer];
  const DeviceScope scope(backend_.device());
  MEP_TRY(scope.check());
  MEP_TRY(backend_.check_call(stream));
  mep_ep_view_t view{};
  fill_view(handle.buffer, &view);
  MEP_TRY(
      check_dispatch_call(backend_.device(), shape_, buffer.calls, handle, view, send, receive));
  if (send != nullptr) {
    if (buffer.calls.is_sent() && !is_over(buffer)) return buffer.calls.busy();
    MEP_TRY(begin_call(buffer, stream));
    if (send->replays) {
      MEP_TRY(check_replay(handle.epoch, handle.tokens, buffer.epoch, send->num_tokens));
    }
  }
  DispatchOutput outputs{};
  if (receive != nullptr) outputs = with_status(*receive, buffer.status);
  const bool is_late = send == nullptr && buffer.calls.late.has_value();
  MEP_TRY(
      check_cuda(device::ep_dispatch(launch(buffer, handle), is_late ? &*buffer.calls.late : send,
                                     receive != nullptr ? &outputs : nullptr, stream, is_late),
                 "mep_dispatch"));
  buffer.calls.late.reset();
  if (send != nullptr && receive != nullptr && receive->counts_only && buffer.queued == nullptr) {
    buffer.calls.late = *send;
  }
  buffer.calls.note_dispatch(handle, send, receive);
  if (send != nullptr && !send->replays) handle.epoch = buffer.epoch;
  return MEP_SUCCESS;
}

mep_result_t GpuBuffers::combine(EpHandle& handle, const CombineInput* send,
                                 const CombineOutput* receive, void* stream) {
  Buffer& buffer = buffers_[handle.buffer];
  const DeviceScope scope(backend_.device());
  MEP_TRY(scope.check());
  MEP_TRY(backend_.check_call(stream));
  mep_ep_view_t view{};
  fill_view(handle.buffer, &view);
  MEP_TRY(check_combine_call(backend_.device(), shape_, buffer.calls, handle, view, send, receive));
  if (send != nullptr) MEP_TRY(begin_call(buffer, stream));
  CombineOutput outputs{};
  if (receive != nullptr) outputs = with_status(*receive, buffer.status);
  MEP_TRY(check_cuda(device::ep_combine(launch(buffer, handle), send,
                                        receive != nullptr ? &outputs : nullptr, false, stream),
                     "mep_combine"));
  buffer.calls.note_combine(receive);
  return MEP_SUCCESS;
}

// Also moves the buffer into the latest view: for callers that only replay graphs.
mep_result_t GpuBuffers::last_op(uint32_t index, mep_op_info_t* info) {
  Buffer& buffer = buffers_[index];
  const DeviceScope scope(backend_.device());
  MEP_TRY(scope.check());
  const EpViews::View now = views_.latest();
  if (now.view->epoch != buffer.epoch) {
    MEP_TRY(move_to_view(buffer, *now.view, stream_->get()));
  }
  buffer.told = now.reported;
  device::OpStatus status{};
  MEP_TRY(copy_in_order(&status, buffer.status, sizeof status, stream_->get()));
  MEP_TRY(stream_->synchronize());
  return fill_op_info(status, buffer.calls.has_status, shape_.ranks, info);
}

// --- View changes and reports ---------------------------------------------------------------------

void GpuBuffers::install(const std::shared_ptr<const CommChange>& change,
                         const membership::Proposal* committed) {
  views_.install(change, committed);
  if (change == nullptr) return;
  // After the view: who sees the word finds it there.
  if (load_pinned(abort_word_) < change->epoch) store_pinned(abort_word_, change->epoch);
  for (const Buffer& buffer : buffers_) {
    if (buffer.queued != nullptr) buffer.queued->keep(*change->view);
  }
}

void GpuBuffers::terminate() {
  views_.terminate();
  for (const Buffer& buffer : buffers_) {
    if (buffer.queued != nullptr) buffer.queued->end();
  }
}

// The NIC's words about a queue that has failed; empty: none has. A wait for a word of one rank may end for the queue to
// another, which got nothing.
std::string GpuBuffers::queue_error_text(const Buffer& buffer, const DeviceReport& report) const {
  if (buffer.queued == nullptr) return "";
  uint32_t rank = report.missing;
  gpu_queue::QueueError error = gpu_queue::unpack_error(report.queue_error);
  if (report.queue_error == 0) {
    for (rank = 0; rank < shape_.ranks && !buffer.queued->find_error(rank, &error);) ++rank;
  }
  if (rank >= shape_.ranks) return "";
  return "; the queue to rank " + std::to_string(rank) + " has " + text_of(error) +
         (error.is_of_peer() ? "" : ", a bug of MEP or a wrong key: please report it");
}

// Reads the reports of kernels that gave up: evidence for membership, and the failure for the caller.
void GpuBuffers::read_reports() {
  const std::lock_guard lock(report_mutex_);
  for (uint32_t i = 0; i < shape_.buffers; ++i) {
    if (load_pinned(&reports_[i].ready) == 0) continue;
    const DeviceReport report = reports_[i];
    store_pinned(&reports_[i].ready, 0);
    mep_result_t result = MEP_ERR_PEER_FAILED;
    switch (static_cast<device::Cause>(report.cause)) {
      case device::Cause::kDeadline:
        result = MEP_ERR_TIMEOUT;
        break;
      case device::Cause::kBadBytes:
        result = MEP_ERR_MISMATCH;
        break;
      case device::Cause::kRefused:
        result = MEP_ERR_DEVICE;
        break;
      case device::Cause::kAborted: {
        const mep_result_t terminal = comm_.world().terminal_result();
        result = terminal != MEP_SUCCESS ? terminal : views_.latest().result;
        break;
      }
      default:
        break;
    }
    const std::string queue = queue_error_text(buffers_[i], report);
    // Operations of the epoch have no way on: a new view gives them one.
    if (static_cast<device::Cause>(report.cause) != device::Cause::kAborted) {
      log(LogLevel::kWarn,
          "EP object %s, buffer %u: operation %llu gave up (%s), rank %u missing%s", name_.c_str(),
          i, static_cast<unsigned long long>(report.seq), mep_result_string(result), report.missing,
          queue.c_str());
      comm_.world().report_deadline(comm_.id(), buffers_[i].id, report.epoch);
    }
    if (failure_ != MEP_SUCCESS) continue;
    failure_ = result;
    failure_text_ = "operation " + std::to_string(report.seq) + " on buffer " + std::to_string(i) +
                    " of EP object " + name_ + " ended with " + mep_result_string(result) + queue;
  }
}

mep_result_t GpuBuffers::take_failure() {
  read_reports();
  const std::lock_guard lock(report_mutex_);
  if (failure_ == MEP_SUCCESS) return MEP_SUCCESS;
  const mep_result_t result = failure_;
  failure_ = MEP_SUCCESS;
  return fail(result, "%s", failure_text_.c_str());
}

void GpuBuffers::watch() {
  if (comm_.world().terminal_result() != MEP_SUCCESS) store_pinned(abort_word_, kAllEpochs);
  read_reports();
}

}  // namespace mep

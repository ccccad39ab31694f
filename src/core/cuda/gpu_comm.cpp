#include "core/cuda/gpu_comm.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "base/failpoint.hpp"
#include "base/hash.hpp"
#include "base/status.hpp"
#include "core/coll/check.hpp"
#include "core/coll/counted_blocks.hpp"
#include "core/cuda/pinned_word.hpp"
#include "transport/cuda/gpu_allocations.hpp"

namespace mep {
namespace {

using device::CollCall;
using device::CollState;

constexpr uint64_t kProofMs = 10'000;
constexpr uint64_t kNsPerMs = 1'000'000;

// A rank that was in the first view and has ended by the second.
std::optional<uint32_t> find_ended(const CommView& first, const CommView& now) {
  for (const uint32_t rank : first.live) {
    if (now.incarnations[rank] == 0) return rank;
  }
  return std::nullopt;
}

}  // namespace

mep_result_t check_device(int32_t device) {
  DeviceFacts facts;
  MEP_TRY(describe_device(device, &facts));
  if (facts.compute_capability >= 80) return MEP_SUCCESS;
  return fail(MEP_ERR_UNSUPPORTED, "GPU %d (%s) has compute capability %d.%d; 8.0 is needed",
              device, facts.name.c_str(), facts.compute_capability / 10,
              facts.compute_capability % 10);
}

mep_result_t choose_device(const mep_comm_config_t& config, uint64_t local_rank, int32_t* device) {
  *device = config.device;
  if (config.device_type == MEP_DEVICE_CUDA_BY_RANK) {
    int32_t count = 0;
    MEP_TRY(count_devices(&count));
    *device = static_cast<int32_t>(local_rank % static_cast<uint64_t>(count));
  }
  return check_device(*device);
}

GpuComm::GpuComm(Comm& comm, const GpuPlace& place, WindowPlace windows_at)
    : CudaBackend(backends::kGpu, comm, place),
      windows_at_(windows_at),
      name_(comm.name() + "#device"),
      channel_(comm),
      windows_(comm, windows_at, place.device,
               hash_bytes(channel_.id(), &windows_at, sizeof windows_at)),
      messages_(comm),
      registered_(comm, place.device, channel_.id(),
                  [this](std::span<int64_t> values) { return agree(values); }) {}

GpuComm::~GpuComm() {
  stop_watcher();
  if (is_client_) comm_.remove_client(this);
  // A start that failed may have left the kernel of the proof running, which reads memory of this object.
  if (proof_ != nullptr) channel_.end(MEP_ERR_ABORTED);
  const DeviceScope scope(device());
  if (stream_ != nullptr) (void)stream_->synchronize();
}

mep_result_t GpuComm::open() {
  const uint32_t ranks = comm_.size();
  if (ranks > device::kMaxCollRanks) {
    return fail(MEP_ERR_UNSUPPORTED, "a communicator on GPUs has at most %u ranks, this one has %u",
                device::kMaxCollRanks, ranks);
  }
  const DeviceScope scope(device());
  MEP_TRY(scope.check());
  MEP_TRY(device::load_coll_kernels());
  uint32_t capacity = 0;
  MEP_TRY(device::coll_cta_capacity(device(), &capacity));
  // Ranks of other processes take their turns on a GPU.
  if (capacity < place().ranks_on_device) {
    return fail(MEP_ERR_UNSUPPORTED,
                "%u ranks cannot run together on GPU %d, which holds %u blocks of the collective "
                "kernels; use fewer ranks on it",
                place().ranks_on_device, device(), capacity);
  }
  // The same on all ranks: all their GPUs must be alike.
  const uint32_t most = device::most_coll_ctas(capacity, place().most_on_a_device);
  layout_ =
      device::make_coll_layout(ranks, place().limited(most), windows_at_ == WindowPlace::kHost);
  MEP_TRY(windows_.offer(layout_.window_bytes()));
  MEP_TRY(DeviceMemory::create(device(), sizeof(CollState), &state_memory_));
  MEP_TRY(channel_.open());
  MEP_TRY(open_records());
  state_ = reinterpret_cast<CollState*>(state_memory_->data());
  registered_.open(state_);
  MEP_TRY(PinnedMemory::create(2 * GpuRegistered::kMostValues * sizeof(int64_t), &agreed_));
  MEP_TRY(messages_.open(device(), state_));
  stream_ = std::make_unique<DeviceStream>();
  return stream_->open();
}

mep_result_t GpuComm::connect(const Deadline& deadline) {
  if (is_connected_) return MEP_SUCCESS;
  const auto view = comm_.latest_view();
  MEP_TRY(windows_.connect(*view, deadline));
  channel_.begin(view);
  device::CollDecision begin{};
  begin.epoch = view->epoch;
  begin.next = 1;
  begin.live = view->live_bits.empty() ? 0 : view->live_bits[0];
  MEP_TRY(write_state(begin, kProofMs, 0, 0));
  const DeviceScope scope(device());
  MEP_TRY(messages_.meet(*view, stream_->get()));
  MEP_TRY(stream_->synchronize());
  is_connected_ = true;
  return MEP_SUCCESS;
}

// Before any kernel reads it.
mep_result_t GpuComm::write_state(const device::CollDecision& begin, uint64_t timeout_ms,
                                  uint64_t settle_ms, uint64_t installed) {
  const DeviceScope scope(device());
  MEP_TRY(scope.check());
  CollState first{};
  first.epoch = begin.epoch;
  first.seq = begin.next - 1;
  first.live = begin.live;
  first.seen_installed = installed;
  first.rank = comm_.rank();
  first.timeout_ns = timeout_ms * kNsPerMs;
  first.settle_ns = settle_ms * kNsPerMs;
  first.layout = layout_;
  first.post = channel_.post();
  const std::vector<std::byte*> windows = windows_.addresses();
  std::memcpy(first.windows, windows.data(), windows.size() * sizeof(std::byte*));
  return copy_to_device(state_, &first, sizeof first);
}

mep_result_t GpuComm::begin_proof() {
  proof_ = records().lend();
  return launch_barrier(proof_->status);
}

mep_result_t GpuComm::launch_barrier(mep_op_status_t* status) {
  const DeviceScope scope(device());
  MEP_TRY(scope.check());
  CollCall call{};
  call.kind = Collective::k_barrier;
  call.status = place_of(status);
  // Launches as many blocks as the largest operation has: if these meet here, those of all operations fit.
  return device::launch_coll(call, state_, layout_, layout_.ctas, stream_->get());
}

mep_result_t GpuComm::end_proof() {
  const DeviceScope scope(device());
  MEP_TRY(scope.check());
  // No watcher runs yet: kernels that wait for a rank which has ended are told here.
  std::optional<uint32_t> ended;
  const Deadline limit = Deadline::after_ms(kProofMs + kDecisionGraceMs);
  while (!has_ended(*proof_) && !limit.expired()) {
    ended = find_ended(*channel_.view(), *comm_.latest_view());
    if (ended.has_value()) channel_.end(MEP_ERR_PEER_FAILED);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  MEP_TRY(stream_->synchronize());
  const mep_result_t met = proof_->status->result;
  records().give_back(std::exchange(proof_, nullptr));
  if (met != MEP_SUCCESS && ended.has_value()) {
    return fail(MEP_ERR_PEER_FAILED, "rank %u ended before its kernel met those of the others",
                *ended);
  }
  if (met != MEP_SUCCESS) {
    return fail(MEP_ERR_UNSUPPORTED,
                "the kernels of %u ranks do not run together on GPU %d: they did not meet within "
                "%llu ms. Use fewer ranks on it, let no other program fill it, and set "
                "CUDA_DEVICE_MAX_CONNECTIONS=32 before the program starts",
                place().ranks_on_device, device(), static_cast<unsigned long long>(kProofMs));
  }
  set_timeout_ms(comm_.timeout_ms());
  const uint64_t settle_ns = kDecisionGraceMs * kNsPerMs;
  MEP_TRY(copy_to_device(&state_->settle_ns, &settle_ns, sizeof settle_ns));
  return start();
}

mep_result_t GpuComm::start() {
  comm_.add_client(this);
  is_client_ = true;
  return start_watcher();
}

void GpuComm::set_timeout_ms(uint32_t ms) {
  const uint64_t timeout_ns = ms * kNsPerMs;
  const DeviceScope scope(device());
  (void)copy_to_device(&state_->timeout_ns, &timeout_ns, sizeof timeout_ns);
}

mep_result_t GpuComm::check_idle() const {
  if (!busy()) return MEP_SUCCESS;
  return fail(MEP_ERR_BUSY,
              "operations of comm %s still run on its GPU: wait for their streams first",
              comm_.name().c_str());
}

// Before a call: what joiners need of it.
mep_result_t GpuComm::meet_view() {
  if (!channel_.holds_view()) [[likely]]
    return MEP_SUCCESS;
  MEP_TRY(comm_.identity().check_world());
  return adopt_view(Deadline::after_ms(comm_.timeout_ms()));
}

mep_result_t GpuComm::carry_out(Collective kind, const CollectiveArgs& args, void* stream) {
  const DeviceScope scope(device());
  MEP_TRY(scope.check());
  MEP_TRY(meet_view());
  MEP_TRY(check_collective(kind, args, stream));
  const CollectiveType& type = collective_type(kind);
  CollCall call{};
  call.send = args.send;
  call.receive = args.receive;
  call.bytes = type.has_data() ? args.count * mep_dtype_size(args.dtype) : 0;
  call.dtype = args.dtype;
  call.op = args.op;
  call.kind = kind;
  call.root = static_cast<uint32_t>(args.root);
  call.status = place_of(args.status);
  if (type.has_counts) return launch_counted(args, &call, stream);
  return device::launch_coll(call, state_, layout_, 0, stream);
}

mep_result_t GpuComm::launch_counted(const CollectiveArgs& args, CollCall* call, void* stream) {
  const OperationFacts& facts = facts_of(call->kind);
  CountedBlocks laid;
  MEP_TRY(lay_out_counted(call->kind, args, &laid));
  device::CollBlocks blocks{};
  for (uint32_t rank = 0; rank < comm_.size(); ++rank) {
    blocks.given[rank] = {laid.given[rank].offset, laid.given[rank].bytes};
    blocks.gotten[rank] = {laid.gotten[rank].offset, laid.gotten[rank].bytes};
    // In these all ranks know all lengths.
    if (call->kind == Collective::k_allgatherv)
      call->bytes = std::max(call->bytes, blocks.gotten[rank].bytes);
    if (facts.takes_op) call->bytes = std::max(call->bytes, blocks.given[rank].bytes);
  }
  return device::launch_coll(*call, state_, layout_, 0, stream, &blocks);
}

mep_result_t GpuComm::enqueue_messages(std::span<const StreamMessage> messages, void* stream) {
  const DeviceScope scope(device());
  MEP_TRY(scope.check());
  MEP_TRY(meet_view());
  MEP_TRY(check_call(stream));
  std::vector<StreamMessage> kept;
  mep_result_t lost = MEP_SUCCESS;
  MEP_TRY(check_group(messages, device::most_messages(), stream, &kept, &lost));
  if (kept.empty()) return lost;
  std::vector<device::Message> checked;
  for (const StreamMessage& each : kept) {
    void* const memory = each.is_send ? const_cast<void*>(each.from) : each.to;
    checked.push_back({memory, each.bytes, each.tag, static_cast<uint16_t>(each.peer),
                       static_cast<uint8_t>(each.is_send ? 1 : 0),
                       static_cast<uint8_t>(each.dtype)});
  }
  MEP_TRY(messages_.enqueue(checked, layout_.ctas, stream));
  return lost;
}

// --- Registered memory ----------------------------------------------------------------------------

mep_result_t GpuComm::begin_registering(const DeviceScope& scope) {
  MEP_TRY(scope.check());
  MEP_TRY(meet_view());
  return check_idle();
}

mep_result_t GpuComm::register_memory(const void* memory, size_t bytes, const Deadline& deadline,
                                      mep_registration_t* registration) {
  if (windows_at_ == WindowPlace::kHost) return MEP_SUCCESS;
  const DeviceScope scope(device());
  MEP_TRY(begin_registering(scope));
  const uint64_t rank = comm_.world().identity().incarnation;
  std::shared_ptr<GpuWindow> window = GpuAllocations::instance().holding(rank, memory, bytes);
  if (window != nullptr && window->device() != device()) window = nullptr;
  return registered_.add(window, bytes, stream_->get(), deadline, registration);
}

mep_result_t GpuComm::deregister_memory(mep_registration_t registration) {
  if (windows_at_ == WindowPlace::kHost) return MEP_SUCCESS;
  const DeviceScope scope(device());
  MEP_TRY(begin_registering(scope));
  return registered_.remove(registration, stream_->get());
}

// See GpuRegistered::Agree. It takes a place in the order of the comm's operations.
mep_result_t GpuComm::agree(std::span<int64_t> values) {
  StreamRecord* const record = records().lend();
  if (record == nullptr) {
    return fail(MEP_ERR_CAPACITY, "all requests of streams are in use: wait for some first");
  }
  auto* const all = static_cast<int64_t*>(agreed_->data());
  std::copy(values.begin(), values.end(), all);
  const mep_result_t met = run_agreement(values.size(), record);
  records().give_back(record);
  MEP_TRY(met);
  std::copy_n(all + GpuRegistered::kMostValues, values.size(), values.begin());
  return MEP_SUCCESS;
}

mep_result_t GpuComm::run_agreement(size_t count, StreamRecord* record) {
  auto* const all = static_cast<int64_t*>(agreed_->data());
  CollCall call{};
  call.send = all;
  call.receive = all + GpuRegistered::kMostValues;
  call.bytes = count * sizeof(int64_t);
  call.dtype = MEP_INT64;
  call.op = MEP_MIN;
  call.kind = Collective::k_allreduce;
  call.status = place_of(record->status);
  MEP_TRY(device::launch_coll(call, state_, layout_, 0, stream_->get()));
  MEP_TRY(stream_->synchronize());
  if (record->status->result == MEP_SUCCESS) return MEP_SUCCESS;
  return fail(record->status->result, "agreeing with the others on registered memory ended with %s",
              mep_result_string(record->status->result));
}

mep_result_t GpuComm::take_failure() {
  const mep_result_t result = channel_.take_failure();
  return result != MEP_SUCCESS ? result : messages_.take_failure();
}

// --- The control thread ---------------------------------------------------------------------------

void GpuComm::describe(std::vector<membership::ChannelState>* channels) const {
  channels->push_back({comm_.id(), channel_.id(), channel_.done(), 0});
}

bool GpuComm::holds(uint64_t channel, uint64_t seq) const {
  return channel != channel_.id() || channel_.done() >= seq;
}

void GpuComm::install(const std::shared_ptr<const CommChange>& change,
                      const membership::Proposal* committed) {
  if (change == nullptr) return channel_.resume();
  messages_.keep(*change->view);
  channel_.install(*change, *committed, windows_.reaches(*change->view));
}

// --- Joiners --------------------------------------------------------------------------------------

void GpuComm::describe_object(std::vector<std::byte>* out) const {
  GpuDescription about;
  about.reach = static_cast<uint64_t>(reach());
  about.most_blocks = place().most_blocks;
  about.most_on_a_device = place().most_on_a_device;
  about.window_bytes = layout_.window_bytes();
  about.encode({}, out);
}

mep_result_t GpuComm::join(uint64_t members_window_bytes, const Deadline& deadline) {
  MEP_TRY(open());
  if (members_window_bytes != layout_.window_bytes()) {
    return fail(MEP_ERR_MISMATCH, "GPU %d is of another kind than those of the members", device());
  }
  MEP_TRY(connect(deadline));
  channel_.begin_joining();
  return start();
}

mep_result_t GpuComm::meet_joiners(const Deadline& deadline) {
  MEP_TRY(adopt_view(deadline));
  return meet_joiners_of_parts(deadline);
}

mep_result_t GpuComm::adopt_view(const Deadline& deadline) {
  const DeviceScope scope(device());
  MEP_TRY(scope.check());
  while (channel_.holds_view()) {
    MEP_TRY(check_idle());
    const mep_result_t mapped = map_held(deadline);
    // One that has gone again: a view without it comes.
    if (mapped == MEP_ERR_PEER_FAILED && !deadline.expired()) continue;
    MEP_TRY(mapped);
    MEP_TRY(adopt_held());
  }
  return MEP_SUCCESS;
}

// Maps the windows of the latest view, and tells the device where they are. No kernel runs.
mep_result_t GpuComm::map_held(const Deadline& deadline) {
  MEP_FAILPOINT("joiner map");
  const std::shared_ptr<const CommView> view = channel_.view();
  MEP_TRY(windows_.connect(*view, deadline));
  MEP_TRY(registered_.clear(stream_->get()));
  const std::vector<std::byte*> windows = windows_.addresses();
  MEP_TRY(copy_in_order(state_->windows, windows.data(), windows.size() * sizeof(std::byte*),
                        stream_->get()));
  MEP_TRY(messages_.meet(*view, stream_->get()));
  MEP_TRY(stream_->synchronize());
  windows_.drop_replaced();
  return MEP_SUCCESS;
}

mep_result_t GpuComm::adopt_held() {
  const auto reaches = [this](const CommView& view) { return windows_.reaches(view); };
  GpuChannel::Adoption adoption;
  if (!channel_.begin_adoption(reaches, &adoption)) return MEP_SUCCESS;
  if (!adoption.joins) return go_on_adopted(adoption);
  MEP_TRY(begin_adopted(adoption));
  channel_.end_joining(reaches);
  return MEP_SUCCESS;
}

mep_result_t GpuComm::begin_adopted(const GpuChannel::Adoption& adoption) {
  const uint64_t done = adoption.last.last_completed;
  store_pinned(&channel_.post()->done, done);
  store_pinned(&channel_.post()->entered, done);
  return write_state(adoption.last, comm_.timeout_ms(), kDecisionGraceMs, adoption.installed);
}

// By operations that end at once, each by one decision or to tell of an earlier one. Decisions behind the admission are
// the program's next operations', as on ranks that meet them there.
mep_result_t GpuComm::go_on_adopted(const GpuChannel::Adoption& adoption) {
  uint64_t seen = 0;
  for (uint32_t tries = 0; seen < adoption.admitted && tries <= 2 * device::kCollDecisions;
       ++tries) {
    MEP_TRY(launch_barrier(nullptr));
    MEP_TRY(copy_in_order(&seen, &state_->seen_installed, sizeof seen, stream_->get()));
    MEP_TRY(stream_->synchronize());
  }
  channel_.forget_overtaken();
  return MEP_SUCCESS;
}

// --- The watcher ----------------------------------------------------------------------------------

void GpuComm::watch() {
  const mep_result_t terminal = comm_.world().terminal_result();
  if (terminal != MEP_SUCCESS) {
    channel_.end(terminal);
    messages_.end(terminal);
  }
  channel_.tell_late();
  channel_.record();
}

}  // namespace mep

#include "core/cuda/gpu_comm.hpp"

#include <algorithm>
#include <cstring>

#include "base/log.hpp"
#include "base/status.hpp"
#include "core/coll/check.hpp"
#include "core/cuda/ep_call.hpp"
#include "core/cuda/gpu_buffers.hpp"
#include "core/cuda/pinned_word.hpp"

namespace mep {
namespace {

using device::CollCall;
using device::CollDecision;
using device::CollPost;
using device::CollState;

constexpr uint64_t kProofMs = 10'000;
constexpr uint64_t kAcknowledgeMs = 5'000;

}  // namespace

mep_result_t check_device(int32_t device) {
  DeviceFacts facts;
  MEP_TRY(describe_device(device, &facts));
  if (facts.compute_capability >= 80) return MEP_SUCCESS;
  return fail(MEP_ERR_UNSUPPORTED, "GPU %d (%s) has compute capability %d.%d; 8.0 is needed",
              device, facts.name.c_str(), facts.compute_capability / 10,
              facts.compute_capability % 10);
}

mep_result_t choose_device(int32_t wanted, uint64_t local_rank, int32_t* device) {
  *device = wanted;
  if (wanted == MEP_DEVICE_BY_RANK) {
    int32_t count = 0;
    MEP_TRY(count_devices(&count));
    *device = static_cast<int32_t>(local_rank % static_cast<uint64_t>(count));
  }
  return check_device(*device);
}

GpuComm::GpuComm(Comm& comm, const GpuPlace& place, WindowPlace windows_at)
    : GpuBackend(backends::kGpu, comm, place),
      windows_at_(windows_at),
      name_(comm.name() + "#device"),
      channel_(comm.id() ^ 0x6465766963650000u),
      windows_(comm, windows_at, place.device,
               hash_bytes(channel_, &windows_at, sizeof windows_at)) {}

GpuComm::~GpuComm() {
  stop_watcher();
  if (is_client_) comm_.remove_client(this);
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
  layout_ =
      device::make_coll_layout(ranks, device::most_coll_ctas(capacity, place().most_on_a_device),
                               windows_at_ == WindowPlace::kHost);
  MEP_TRY(windows_.offer(layout_.window_bytes()));
  MEP_TRY(DeviceMemory::create(device(), sizeof(CollState), &state_memory_));
  MEP_TRY(PinnedMemory::create(sizeof(CollPost), &post_memory_));
  MEP_TRY(PinnedMemory::create(sizeof(device::OpStatus), &proof_memory_));
  state_ = reinterpret_cast<CollState*>(state_memory_->data());
  post_ = static_cast<CollPost*>(post_memory_->data());
  stream_ = std::make_unique<DeviceStream>();
  return stream_->open();
}

mep_result_t GpuComm::connect(const Deadline& deadline) {
  if (is_connected_) return MEP_SUCCESS;
  const auto view = comm_.latest_view();
  MEP_TRY(windows_.connect(*view, deadline));
  const DeviceScope scope(device());
  MEP_TRY(scope.check());
  CollState first{};
  first.epoch = epoch_ = view->epoch;
  first.live = view->live_bits.empty() ? 0 : view->live_bits[0];
  first.rank = comm_.rank();
  first.timeout_ns = kProofMs * 1'000'000;
  first.settle_ns = 0;
  first.layout = layout_;
  first.post = post_;
  const std::vector<std::byte*> windows = windows_.addresses();
  std::memcpy(first.windows, windows.data(), windows.size() * sizeof(std::byte*));
  MEP_TRY(copy_to_device(state_, &first, sizeof first));
  is_connected_ = true;
  return MEP_SUCCESS;
}

mep_result_t GpuComm::begin_proof() {
  const DeviceScope scope(device());
  MEP_TRY(scope.check());
  CollCall call{};
  call.kind = Collective::k_barrier;
  call.status = device::op_status_place(static_cast<mep_op_status_t*>(proof_memory_->data()),
                                        sizeof(device::OpStatus), comm_.size());
  // Launches as many blocks as the largest operation has: if these meet here, those of all operations fit.
  return device::launch_coll(call, state_, layout_, layout_.ctas, stream_->get());
}

mep_result_t GpuComm::end_proof() {
  const DeviceScope scope(device());
  MEP_TRY(scope.check());
  MEP_TRY(stream_->synchronize());
  const auto* status = static_cast<const mep_op_status_t*>(proof_memory_->data());
  if (status->result != MEP_SUCCESS) {
    return fail(MEP_ERR_UNSUPPORTED,
                "the kernels of %u ranks do not run together on GPU %d: they did not meet within "
                "%llu ms. Use fewer ranks on it, let no other program fill it, and set "
                "CUDA_DEVICE_MAX_CONNECTIONS=32 before the program starts",
                place().ranks_on_device, device(), static_cast<unsigned long long>(kProofMs));
  }
  set_timeout_ms(comm_.timeout_ms());
  const uint64_t settle_ns = kDecisionGraceMs * 1'000'000;
  MEP_TRY(copy_to_device(&state_->settle_ns, &settle_ns, sizeof settle_ns));
  comm_.add_client(this);
  is_client_ = true;
  return start_watcher();
}

void GpuComm::set_timeout_ms(uint32_t ms) {
  const uint64_t timeout_ns = uint64_t{ms} * 1'000'000;
  const DeviceScope scope(device());
  (void)copy_to_device(&state_->timeout_ns, &timeout_ns, sizeof timeout_ns);
}

mep_result_t GpuComm::check_memory(const void* memory, const char* name) const {
  const DeviceScope scope(device());
  MEP_TRY(scope.check());
  return check_pointer(device(), memory, name);
}

mep_result_t GpuComm::make_ep_buffers(const EpShape& shape, const EpDeviceOptions& options,
                                      std::unique_ptr<EpBuffers>* out) {
  *out = std::make_unique<GpuBuffers>(comm_, *this, shape, options);
  return MEP_SUCCESS;
}

mep_result_t GpuComm::count_layout(const device::DispatchLayout& layout, void* stream) {
  MEP_TRY(check_stream(stream));
  return enqueue_layout(device(), layout, stream);
}

mep_result_t GpuComm::carry_out(Collective kind, const CollectiveArgs& args, void* stream) {
  MEP_TRY(comm_.identity().check_world());
  MEP_TRY(check_stream(stream));
  const CollectiveType& type = collective_type(kind);
  MEP_TRY(type.check(comm_.collectives(), args));
  const DeviceScope scope(device());
  MEP_TRY(scope.check());
  MEP_TRY(check_stream_device(device(), stream));
  // A wrong pointer in a kernel would end all work of the process on the GPU.
  const auto root = static_cast<uint32_t>(args.root);
  if (args.count != 0) {
    if (type.gives(comm_.rank(), root)) MEP_TRY(check_pointer(device(), args.send, "sendbuf"));
    if (type.gets(comm_.rank(), root)) MEP_TRY(check_pointer(device(), args.receive, "recvbuf"));
  }
  CollCall call{};
  call.send = args.send;
  call.receive = args.receive;
  call.bytes = type.has_data() ? args.count * mep_dtype_size(args.dtype) : 0;
  call.dtype = args.dtype;
  call.op = args.op;
  call.kind = kind;
  call.root = root;
  call.status = device::op_status_place(status_place().record, status_place().bytes, comm_.size());
  return device::launch_coll(call, state_, layout_, 0, stream);
}

mep_result_t GpuComm::take_failure() {
  const uint64_t count = load_pinned(&post_->failures);
  if (count == failures_told_) return MEP_SUCCESS;
  // The ring keeps the latest failures; the oldest of them is told, those before are lost.
  const uint64_t first =
      std::max(failures_told_ + 1,
               count < device::kCollFailures ? uint64_t{1} : count - device::kCollFailures + 1);
  const mep_result_t result =
      static_cast<const volatile int32_t*>(post_->failed_results)[first % device::kCollFailures];
  failures_told_ = count;
  return fail(result, "a stream operation of comm %s ended with %s", comm_.name().c_str(),
              mep_result_string(result));
}

bool GpuComm::busy() const {
  return std::max(done(), load_pinned(&post_->closed)) < load_pinned(&post_->entered);
}

// --- The control thread ---------------------------------------------------------------------------

uint64_t GpuComm::done() const {
  return load_pinned(&post_->done);
}

void GpuComm::describe(std::vector<membership::ChannelState>* channels) const {
  channels->push_back({comm_.id(), channel_, done(), 0});
}

bool GpuComm::holds(uint64_t channel, uint64_t seq) const {
  return channel != channel_ || done() >= seq;
}

bool GpuComm::acknowledged(uint64_t word) const {
  const uint64_t entered = load_pinned(&post_->entered);
  return done() >= entered || load_pinned(&post_->failed) >= entered ||
         load_pinned(&post_->parked) == word;
}

void GpuComm::freeze(std::vector<membership::ChannelState>* channels) {
  uint64_t word = load_pinned(&post_->word);
  if ((word & 1) == 0) {
    // Sequentially consistent: an operation that begins sees it, or `entered` shows the operation.
    word = __atomic_add_fetch(&post_->word, 1, __ATOMIC_SEQ_CST);
  }
  const Deadline limit = Deadline::after_ms(kAcknowledgeMs);
  bool answered = acknowledged(word);
  while (!answered && !limit.expired()) {
    std::this_thread::yield();
    answered = acknowledged(word);
  }
  if (!answered) {
    log(LogLevel::kError,
        "comm %s: the GPU did not stop within %llu ms; this rank leaves the world",
        comm_.name().c_str(), static_cast<unsigned long long>(kAcknowledgeMs));
    World* world = &comm_.world();
    world->post([world] { world->request_evict(world->self_slot()); });
  }
  const uint64_t finished = done();
  channels->push_back(
      {comm_.id(), channel_, finished, std::max(load_pinned(&post_->entered), finished)});
}

void GpuComm::publish(const CollDecision& decision) {
  const uint64_t number = post_->installed + 1;
  post_->decisions[number % device::kCollDecisions] = decision;
  // Sequentially consistent: the decision, its count, then the word that makes kernels look.
  store_pinned(&post_->installed, number);
  const uint64_t word = load_pinned(&post_->word);
  store_pinned(&post_->word, word + ((word & 1) != 0 ? 1 : 2));
}

void GpuComm::install(const std::shared_ptr<const CommChange>& change,
                      const membership::Proposal* committed) {
  const std::lock_guard lock(decision_mutex_);
  if (ended_) return;
  if (change == nullptr) {
    const uint64_t word = load_pinned(&post_->word);
    if ((word & 1) != 0) store_pinned(&post_->word, word + 1);
    return;
  }
  CollDecision decision{};
  decision.old_epoch = change->epoch;
  decision.last_completed = done();
  decision.next = std::max(load_pinned(&post_->entered), decision.last_completed) + 1;
  if (const auto* decided = committed->decision(comm_.id(), channel_)) {
    decision.last_completed = decided->last_completed;
    decision.next = decided->next;
  }
  decision.epoch = epoch_ = change->view->epoch;
  decision.live = change->view->live_bits.empty() ? 0 : change->view->live_bits[0];
  decision.result = change->result;
  publish(decision);
}

// --- The watcher ----------------------------------------------------------------------------------

void GpuComm::end_world(mep_result_t result) {
  const std::lock_guard lock(decision_mutex_);
  if (ended_) return;
  ended_ = true;
  CollDecision last{};
  last.old_epoch = epoch_;
  last.result = result;
  publish(last);
}

void GpuComm::watch() {
  const mep_result_t terminal = comm_.world().terminal_result();
  if (terminal != MEP_SUCCESS) end_world(terminal);
  const uint64_t late = load_pinned(&post_->late_epoch);
  if (late == 0 || late == told_epoch_) return;
  told_epoch_ = late;
  log(LogLevel::kWarn, "comm %s: operation %llu on the GPU is over its time, missing ranks 0x%llx",
      comm_.name().c_str(), static_cast<unsigned long long>(load_pinned(&post_->late_seq)),
      static_cast<unsigned long long>(load_pinned(&post_->late_missing)));
  comm_.world().report_deadline(comm_.id(), channel_, late);
}

}  // namespace mep

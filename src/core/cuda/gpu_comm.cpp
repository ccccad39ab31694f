#include "core/cuda/gpu_comm.hpp"

#include <algorithm>
#include <cstring>

#include "base/log.hpp"
#include "base/status.hpp"
#include "core/coll/check.hpp"
#include "core/cuda/ep_call.hpp"
#include "core/cuda/gpu_buffers.hpp"
#include "core/cuda/pinned_word.hpp"
#include "transport/cuda/descriptor_exchange.hpp"

namespace mep {
namespace {

using device::CollCall;
using device::CollDecision;
using device::CollPost;
using device::CollState;

constexpr uint64_t kProofMs = 10'000;
constexpr uint64_t kAcknowledgeMs = 5'000;

// Where the ranks of one process find each other's windows, by comm and incarnation.
class WindowRegistry {
 public:
  static WindowRegistry& instance() {
    static WindowRegistry registry;
    return registry;
  }
  void add(uint64_t comm, uint64_t incarnation, const std::shared_ptr<GpuWindow>& window) {
    const std::lock_guard lock(mutex_);
    entries_[{comm, incarnation}] = window;
  }
  void remove(uint64_t comm, uint64_t incarnation) {
    const std::lock_guard lock(mutex_);
    entries_.erase({comm, incarnation});
  }
  std::shared_ptr<GpuWindow> find(uint64_t comm, uint64_t incarnation) {
    const std::lock_guard lock(mutex_);
    const auto it = entries_.find({comm, incarnation});
    return it == entries_.end() ? nullptr : it->second.lock();
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<uint64_t, uint64_t>, std::weak_ptr<GpuWindow>> entries_;
};

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
      channel_(comm.id() ^ 0x6465766963650000u) {}

GpuComm::~GpuComm() {
  stop_watcher();
  if (is_client_) comm_.remove_client(this);
  WindowRegistry::instance().remove(comm_.id(), incarnation_);
  for (const auto& [id, windows] : shared_) WindowRegistry::instance().remove(id, incarnation_);
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
  windows_.resize(ranks);
  MEP_TRY(
      GpuWindow::create(windows_at_, device(), layout_.window_bytes(), &windows_[comm_.rank()]));
  MEP_TRY(DeviceMemory::create(device(), sizeof(CollState), &state_memory_));
  MEP_TRY(PinnedMemory::create(sizeof(CollPost), &post_memory_));
  MEP_TRY(PinnedMemory::create(sizeof(device::OpStatus), &proof_memory_));
  state_ = reinterpret_cast<CollState*>(state_memory_->data());
  post_ = static_cast<CollPost*>(post_memory_->data());
  stream_ = std::make_unique<DeviceStream>();
  MEP_TRY(stream_->open());
  incarnation_ = comm_.latest_view()->incarnations[comm_.rank()];
  WindowRegistry::instance().add(comm_.id(), incarnation_, windows_[comm_.rank()]);
  return MEP_SUCCESS;
}

// Ranks of this process find each other here; those of other processes give descriptors, in one more
// collective of the host. The latter needs a thread for each rank, which processes have.
mep_result_t GpuComm::take_windows(uint64_t id, size_t bytes, const Deadline& deadline,
                                   std::vector<std::shared_ptr<GpuWindow>>* windows) {
  if (place().ranks_in_process < comm_.latest_view()->live.size()) {
    return import_windows(bytes, deadline, windows);
  }
  const auto view = comm_.latest_view();
  for (const uint32_t rank : view->live) {
    std::shared_ptr<GpuWindow>& window = (*windows)[rank];
    while (window == nullptr) {
      window = WindowRegistry::instance().find(id, view->incarnations[rank]);
      if (window != nullptr) break;
      if (deadline.expired()) {
        return fail(MEP_ERR_TIMEOUT, "rank %u of comm %s did not offer its device memory", rank,
                    comm_.name().c_str());
      }
      std::this_thread::yield();
    }
    if (window->bytes() < bytes) {
      return fail(MEP_ERR_MISMATCH, "rank %u has another kind of GPU or another layout", rank);
    }
    if (!window->is_mapped_for(device())) {
      return fail(MEP_ERR_UNSUPPORTED,
                  "GPU %d cannot map the memory of rank %u on GPU %d: use GPUs that reach each "
                  "other (mep_info shows which)",
                  device(), rank, window->device());
    }
  }
  return MEP_SUCCESS;
}

mep_result_t GpuComm::import_windows(size_t bytes, const Deadline& deadline,
                                     std::vector<std::shared_ptr<GpuWindow>>* windows) {
  struct Offer {
    DescriptorAddress address;
    uint64_t bytes;
    uint64_t host;
  };
  // A rank that has nothing to offer still takes part, so that no rank waits for it.
  UniqueFd own;
  DescriptorExchange exchange;
  mep_result_t offered = (*windows)[comm_.rank()]->export_fd(&own);
  if (offered == MEP_SUCCESS) offered = exchange.open(comm_.rank());
  const std::string text = offered == MEP_SUCCESS ? "" : last_error_text();
  const Offer mine{offered == MEP_SUCCESS ? exchange.address() : DescriptorAddress{},
                   (*windows)[comm_.rank()]->bytes(), comm_.world().identity().host};
  std::vector<Offer> offers(comm_.size());
  MEP_TRY(comm_.run(Collective::k_allgather,
                    {&mine, offers.data(), sizeof mine, MEP_UINT8, MEP_SUM, 0}));
  if (offered != MEP_SUCCESS) return fail(offered, "%s", text.c_str());
  std::vector<DescriptorAddress> peers;
  for (const uint32_t rank : comm_.latest_view()->live) {
    if (offers[rank].address.pid == 0) {
      return fail(MEP_ERR_UNSUPPORTED, "rank %u could not offer its window", rank);
    }
    if (offers[rank].host != mine.host) {
      return fail(MEP_ERR_UNSUPPORTED, "rank %u is on another host: it cannot be mapped", rank);
    }
    if (offers[rank].bytes < bytes || offers[rank].bytes != mine.bytes) {
      return fail(MEP_ERR_MISMATCH, "rank %u has another kind of GPU or another layout", rank);
    }
    peers.push_back(offers[rank].address);
    peers.back().rank = rank;
  }
  std::vector<UniqueFd> descriptors(comm_.size());
  MEP_TRY(exchange.exchange(own, peers, deadline, &descriptors));
  for (uint32_t rank = 0; rank < descriptors.size(); ++rank) {
    if (!descriptors[rank].valid()) continue;
    MEP_TRY(
        GpuWindow::import(windows_at_, device(), mine.bytes, descriptors[rank], &(*windows)[rank]));
  }
  return MEP_SUCCESS;
}

mep_result_t GpuComm::offer_memory(uint64_t id, size_t bytes) {
  auto& windows = shared_[id];
  windows.assign(comm_.size(), nullptr);
  MEP_TRY(GpuWindow::create(windows_at_, device(), bytes, &windows[comm_.rank()]));
  WindowRegistry::instance().add(id, incarnation_, windows[comm_.rank()]);
  return MEP_SUCCESS;
}

mep_result_t GpuComm::take_memory(uint64_t id, const Deadline& deadline,
                                  std::vector<std::byte*>* by_rank) {
  auto& windows = shared_[id];
  if (windows.empty()) return fail(MEP_ERR_INTERNAL, "device memory was not offered");
  MEP_TRY(take_windows(id, windows[comm_.rank()]->bytes(), deadline, &windows));
  by_rank->clear();
  for (const auto& window : windows) {
    by_rank->push_back(window == nullptr ? nullptr : window->data());
  }
  return MEP_SUCCESS;
}

mep_result_t GpuComm::connect(const Deadline& deadline) {
  if (is_connected_) return MEP_SUCCESS;
  MEP_TRY(take_windows(comm_.id(), layout_.window_bytes(), deadline, &windows_));
  const DeviceScope scope(device());
  MEP_TRY(scope.check());
  const auto view = comm_.latest_view();
  CollState first{};
  first.epoch = epoch_ = view->epoch;
  first.live = view->live_bits.empty() ? 0 : view->live_bits[0];
  first.rank = comm_.rank();
  first.timeout_ns = kProofMs * 1'000'000;
  first.settle_ns = 0;
  first.layout = layout_;
  first.post = post_;
  for (uint32_t rank = 0; rank < comm_.size(); ++rank) {
    if (windows_[rank] == nullptr) continue;
    first.windows[rank] = reinterpret_cast<uint8_t*>(windows_[rank]->data());
  }
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

#include "process_group.hpp"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <random>
#include <set>

#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include "calls.hpp"

namespace mep_torch {
namespace {

// A group that ends waits so long for its own pending operations.
constexpr std::chrono::milliseconds kPatience(30'000);

std::string names_of(const std::vector<int>& ranks) {
  std::string names;
  for (const int rank : ranks) names += (names.empty() ? "" : ", ") + std::to_string(rank);
  return names;
}

// The name of an operation for the profiler, which keeps the pointer.
const char* profiler_title(const std::string& backend, const char* operation) {
  static std::mutex mutex;
  static std::set<std::string> titles;
  const std::lock_guard lock(mutex);
  return titles.insert(backend + ":" + operation).first->c_str();
}

// A name for one object that no process on any host has used.
std::string new_handle() {
  std::random_device random;
  std::string handle = "mep";
  for (int part = 0; part < 4; ++part) handle += "-" + std::to_string(random());
  return handle;
}

// All groups of the process. A group takes itself out when its last owner is gone: an entry keeps its memory, whose destructor
// must not run at the process's exit, when CUDA is no more.
std::mutex groups_mutex;
std::vector<c10::weak_intrusive_ptr<ProcessGroupMep>> groups;  // guarded by groups_mutex

void forget_gone_groups() {
  const std::lock_guard lock(groups_mutex);
  std::erase_if(groups, [](const auto& each) { return each.expired(); });
}

c10::intrusive_ptr<ProcessGroupMep> noted(c10::intrusive_ptr<ProcessGroupMep> group) {
  const std::lock_guard lock(groups_mutex);
  groups.emplace_back(group);
  return group;
}

// The device of all tensors of a call; the CPU if it has none. Throws if they lie on several.
at::Device device_of(const Call& call) {
  std::optional<at::Device> device;
  for (const auto* tensors : {&call.inputs, &call.outputs}) {
    for (const at::Tensor& tensor : *tensors) {
      TORCH_CHECK_VALUE(tensor.device() == device.value_or(tensor.device()), "mep: ", call.name,
                        ": tensors on ", device->str(), " and ", tensor.device().str());
      device = tensor.device();
    }
  }
  return device.value_or(at::Device(at::kCPU));
}

// Several works as one.
class WorkList final : public c10d::Work {
 public:
  explicit WorkList(std::vector<c10::intrusive_ptr<c10d::Work>> works)
      : Work(-1, c10d::OpType::COALESCED), works_(std::move(works)) {}

  const std::vector<c10::intrusive_ptr<c10d::Work>>& works() const { return works_; }

  bool isCompleted() override {
    return std::all_of(works_.begin(), works_.end(),
                       [](const auto& work) { return work->isCompleted(); });
  }
  bool isSuccess() const override {
    return std::all_of(works_.begin(), works_.end(),
                       [](const auto& work) { return work->isSuccess(); });
  }
  std::exception_ptr exception() const override {
    for (const auto& work : works_) {
      if (const std::exception_ptr error = work->exception()) return error;
    }
    return nullptr;
  }
  std::vector<at::Tensor> result() override {
    std::vector<at::Tensor> all;
    for (const auto& work : works_) {
      for (at::Tensor& tensor : work->result()) all.push_back(std::move(tensor));
    }
    return all;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    for (const auto& work : works_) work->wait(timeout);
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
        c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
    for (const auto& work : works_) futures.push_back(work->getFuture());
    return c10::collectAll(futures)->then(
        [works = works_](c10::ivalue::Future& all) {
          if (all.hasError()) std::rethrow_exception(all.exception_ptr());
          std::vector<at::Tensor> tensors;
          for (const auto& work : works) {
            for (at::Tensor& tensor : work->result()) tensors.push_back(std::move(tensor));
          }
          return c10::IValue(std::move(tensors));
        },
        c10::ListType::create(c10::TensorType::get()));
  }

 private:
  const std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace

// --- Its life ---------------------------------------------------------------------------------------

ProcessGroupMep::ProcessGroupMep(const c10::intrusive_ptr<c10d::Store>& store,
                                 std::shared_ptr<World> world, Comms comms, Kind kind, int rank,
                                 std::chrono::milliseconds timeout, std::string backend_name)
    : Backend(rank, static_cast<int>(comms.ranks.size())),
      backend_name_(std::move(backend_name)),
      store_(store),
      options_(c10::make_intrusive<Options>(timeout)),
      kind_(kind),
      handle_(kind == Kind::kReconfigurable ? new_handle() : std::string()),
      completer_(std::make_shared<Completer>()) {
  enter(store, std::move(world), std::move(comms));
  init();
}

void ProcessGroupMep::enter(const c10::intrusive_ptr<c10d::Store>& store,
                            std::shared_ptr<World> world, Comms comms) {
  world_ = std::move(world);
  comms_ = std::move(comms);
  collectives_ = comms_.collectives;
  messages_ = comms_.messages;
  gpu_ = std::make_shared<GpuCommunicator>(store, world_, collectives_, rank_, size_);
}

c10::intrusive_ptr<ProcessGroupMep> ProcessGroupMep::make_world(
    const c10::intrusive_ptr<c10d::Store>& store, const World::Place& place, bool is_default,
    std::string backend_name) {
  auto world = std::make_shared<World>(store, place);
  if (is_default) World::set_current(world);
  // The others are in recover().
  if (place.is_replacement && !place.joins_later) {
    settle(*world->comms().collectives, place.timeout);
  }
  const Comms comms = world->comms();
  return noted(c10::make_intrusive<ProcessGroupMep>(store, std::move(world), comms, Kind::kWorld,
                                                    place.rank, place.timeout,
                                                    std::move(backend_name)));
}

c10::intrusive_ptr<ProcessGroupMep> ProcessGroupMep::make_group(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int32_t>& ranks, int rank,
    const std::string& name, std::chrono::milliseconds timeout, std::string backend_name) {
  auto world = World::current();
  if (world == nullptr) return nullptr;
  return group_of(store, std::move(world), ranks, rank, name, timeout, std::move(backend_name));
}

c10::intrusive_ptr<ProcessGroupMep> ProcessGroupMep::group_of(
    const c10::intrusive_ptr<c10d::Store>& store, std::shared_ptr<World> world,
    const std::vector<int32_t>& ranks, int rank, const std::string& name,
    std::chrono::milliseconds timeout, std::string backend_name) {
  Comms comms = world->make_group(ranks, name, timeout);
  return noted(c10::make_intrusive<ProcessGroupMep>(store, std::move(world), std::move(comms),
                                                    Kind::kGroup, rank, timeout,
                                                    std::move(backend_name)));
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupMep::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  std::vector<int32_t> of_world;
  for (const int rank : ranks) {
    check_root(rank, "split");
    of_world.push_back(comms_.ranks[static_cast<size_t>(rank)]);
  }
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  if (own == ranks.end()) return nullptr;
  return group_of(store, world_, of_world, static_cast<int>(own - ranks.begin()), opts->group_name,
                  timeout_or_default(opts->timeout), backend_name_);
}

void ProcessGroupMep::release_resources() {
  if (collectives_->is_forked()) {
    // The thread of the futures is the parent's: nothing here can join it.
    new std::shared_ptr<Completer>(std::move(completer_));
    return;
  }
  std::optional<pybind11::gil_scoped_release> without_gil;
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) without_gil.emplace();
  shutdown();
  forget_gone_groups();
}

void ProcessGroupMep::shutdown() {
  if (collectives_->is_forked()) return;
  completer_->stop();
  leave();
}

void ProcessGroupMep::leave() {
  gpu_->close(kPatience);
  if (is_world()) {
    world_->close(kPatience);
  } else {
    (void)messages_->close(kPatience);
    (void)collectives_->close(kPatience);
  }
}

void ProcessGroupMep::shut_all_down() {
  std::vector<c10::intrusive_ptr<ProcessGroupMep>> all;
  {
    const std::lock_guard lock(groups_mutex);
    for (const auto& group : groups) {
      if (auto strong = group.lock(); strong.defined()) all.push_back(std::move(strong));
    }
  }
  for (const auto& group : all) group->shutdown();
}

void ProcessGroupMep::abort() {
  if (is_world()) {
    gpu_->abort();
    world_->abort();
  } else {
    gpu_->revoke();
    collectives_->revoke();
    messages_->revoke();
  }
}

c10d::ErrorType ProcessGroupMep::getError() {
  (void)gpu_->take_error("look for errors");
  const bool has_failed =
      collectives_->has_failed() || messages_->has_failed() || gpu_->has_failed();
  return has_failed ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
}

uint64_t ProcessGroupMep::getSequenceNumberForGroup() {
  return number_.load(std::memory_order_relaxed);
}

// --- The way of a call ------------------------------------------------------------------------------

std::chrono::milliseconds ProcessGroupMep::timeout_or_default(
    std::chrono::milliseconds timeout) const {
  return timeout.count() > 0 ? timeout : options_->timeout;
}

void ProcessGroupMep::eagerConnectSingleDevice(at::Device device) {
  if (device.is_cuda()) gpu_->connect(device, options_->timeout);
}

ProcessGroupMep::WorkPtr ProcessGroupMep::run(Call call) {
  number_.fetch_add(1, std::memory_order_relaxed);
  const at::Device device = device_of(call);
  if (device.is_cpu()) return launch(std::move(call), collectives_);
  prepare(&call);
  WorkPtr work = gpu_->run(std::move(call), device, getSequenceNumberForGroup());
  if (is_coalescing_) coalesced_.push_back(work);
  return work;
}

ProcessGroupMep::WorkPtr ProcessGroupMep::run_message(Call call) {
  if (device_of(call).is_cpu()) return launch(std::move(call), messages_);
  TORCH_CHECK(gpu_->has_connected() || size_ <= 2, "mep: ", call.name,
              ": the group's first operation on a GPU is a message, which its two "
              "ranks alone make: give init_process_group a device_id, or run a collective before");
  call.is_async = true;
  return run(std::move(call));
}

void ProcessGroupMep::prepare(Call* call) const {
  if (is_coalescing_) call->is_async = true;
  call->active = active_;
  call->hooks = hooks_;
  call->timeout += hooks_->extra_time.give(&call->extra_time);
  call->title = at::hasCallbacks() ? profiler_title(backend_name_, call->title) : nullptr;
}

ProcessGroupMep::WorkPtr ProcessGroupMep::launch(Call call,
                                                 const std::shared_ptr<Communicator>& comm) {
  prepare(&call);
  auto work = c10::make_intrusive<MepWork>(rank_, getSequenceNumberForGroup(), std::move(call),
                                           comm, completer_);
  work->start();
  if (is_coalescing_) coalesced_.push_back(work);
  return work;
}

void ProcessGroupMep::refuse(const Tensors& tensors) {
  if (is_coalescing_ || (!tensors.empty() && !tensors[0].is_cpu())) return;
  Call call = call_of(OpType::BARRIER, "barrier", "barrier", c10d::BarrierOptions());
  call.is_async = true;
  call.steps.push_back([](const Target& at) { return mep_ibarrier(at.comm, nullptr, at.request); });
  (void)run(std::move(call));
}

void ProcessGroupMep::startCoalescing() {
  is_coalescing_ = true;
  coalesced_.clear();
}

ProcessGroupMep::WorkPtr ProcessGroupMep::endCoalescing() {
  is_coalescing_ = false;
  return c10::make_intrusive<WorkList>(std::exchange(coalesced_, {}));
}

at::Tensor ProcessGroupMep::lost_ranks(const c10::intrusive_ptr<c10d::Work>& work) {
  if (const auto* list = dynamic_cast<WorkList*>(work.get())) {
    at::Tensor all;
    for (const auto& each : list->works()) {
      const at::Tensor one = lost_ranks(each);
      all = all.defined() && one.defined() ? at::maximum(all, one) : one;
    }
    return all;
  }
  const auto* one = dynamic_cast<MepWork*>(work.get());
  return one == nullptr || one->active() == nullptr ? at::Tensor()
                                                    : one->active()->hint(one->lost());
}

// --- Messages ---------------------------------------------------------------------------------------

ProcessGroupMep::WorkPtr ProcessGroupMep::send(Tensors& tensors, int peer, int tag) {
  const at::Tensor tensor = only(tensors, "send").contiguous();
  Call call = call_of(c10d::OpType::SEND, "send", "send", c10d::BarrierOptions());
  call.way = Way::kSends;
  call.inputs = tensors;
  call.outputs = tensors;
  call.buffers = {tensor};
  call.steps.push_back(
      [data = tensor.data_ptr(), bytes = tensor.nbytes(), peer, tag](const Target& at) {
        return at.request == nullptr
                   ? mep_send(data, bytes, MEP_UINT8, peer, tag, at.comm, at.stream)
                   : mep_isend(data, bytes, MEP_UINT8, peer, tag, at.comm, nullptr, at.request);
      });
  return run_message(std::move(call));
}

ProcessGroupMep::WorkPtr ProcessGroupMep::receive(Tensors& tensors, int source, int tag,
                                                  Call call) {
  at::Tensor& tensor = only(tensors, "recv");
  if (source == MEP_ANY_SOURCE) check_host(tensor, "recv from any source");
  call.way = Way::kReceives;
  call.inputs = tensors;
  call.outputs = tensors;
  const at::Tensor target = place_to_write(tensor, &call);
  call.steps.push_back([data = target.data_ptr(), bytes = target.nbytes(), source, tag,
                        message = call.message](const Target& at) {
    return at.request == nullptr
               ? mep_recv(data, bytes, MEP_UINT8, source, tag, at.comm, nullptr, at.stream)
               : mep_irecv(data, bytes, MEP_UINT8, source, tag, at.comm, message.get(), nullptr,
                           at.request);
  });
  return run_message(std::move(call));
}

ProcessGroupMep::WorkPtr ProcessGroupMep::recv(Tensors& tensors, int peer, int tag) {
  return receive(tensors, peer, tag,
                 call_of(c10d::OpType::RECV, "recv", "recv", c10d::BarrierOptions()));
}

ProcessGroupMep::WorkPtr ProcessGroupMep::recvAnysource(Tensors& tensors, int tag) {
  Call call = call_of(c10d::OpType::RECVANYSOURCE, "recv from any source", "recvAnySource",
                      c10d::BarrierOptions());
  call.message = std::make_shared<mep_message_t>();
  mep_message_defaults(call.message.get());
  return receive(tensors, MEP_ANY_SOURCE, tag, std::move(call));
}

// --- Barriers ---------------------------------------------------------------------------------------

ProcessGroupMep::WorkPtr ProcessGroupMep::barrier(const c10d::BarrierOptions& opts) {
  Call call = call_of(c10d::OpType::BARRIER, "barrier", "barrier", opts);
  call.steps.push_back([](const Target& at) {
    return at.request == nullptr ? mep_barrier(at.comm, at.stream)
                                 : mep_ibarrier(at.comm, nullptr, at.request);
  });
  // A rank enters when its GPU has run all earlier work; an error of that work does not keep the rank from entering.
  if (gpu_->synchronize()) {
    if (const std::exception_ptr error = gpu_->take_error("an earlier operation on the GPU")) {
      append_finish([error] { std::rethrow_exception(error); }, &call);
    }
  }
  return run(std::move(call));
}

void ProcessGroupMep::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  if (opts.timeout.count() == 0) {
    C10_THROW_ERROR(DistBackendError, "[Rank " + std::to_string(rank_) + "]: Rank " +
                                          std::to_string(rank_) +
                                          " timed out in monitoredBarrier after 0 ms");
  }
  const std::chrono::milliseconds timeout = timeout_or_default(opts.timeout);
  number_.fetch_add(1, std::memory_order_relaxed);
  std::vector<int> late;
  {
    const std::lock_guard lock(collectives_->mutex());
    if (collectives_->is_awaited()) return;
    if (collectives_->handle() == nullptr) {
      std::rethrow_exception(closed_error("monitored barrier"));
    }
    collectives_->set_timeout(timeout);
    const mep_result_t result = mep_barrier(collectives_->handle(), nullptr);
    if (result >= 0) return;
    std::vector<uint64_t> failed((static_cast<size_t>(size_) + 63) / 64);
    mep_op_info_t info;
    mep_op_info_defaults(&info);
    info.failed = failed.data();
    info.failed_words = static_cast<uint32_t>(failed.size());
    const std::exception_ptr error = error_of(result, "monitored barrier");
    if (mep_comm_last_op(collectives_->handle(), &info) == MEP_SUCCESS) {
      for (int rank = 0; rank < size_; ++rank) {
        const auto bit = static_cast<size_t>(rank);
        if ((failed[bit / 64] >> (bit % 64) & 1) != 0) late.push_back(rank);
      }
    }
    if (late.empty()) std::rethrow_exception(error);
  }
  if (!wait_all_ranks) late.resize(1);
  C10_THROW_ERROR(DistBackendError, "[Rank " + std::to_string(rank_) + "]: Rank" +
                                        (late.size() > 1 ? "s " : " ") + names_of(late) +
                                        " failed to pass monitoredBarrier in " +
                                        std::to_string(timeout.count()) + " ms");
}

}  // namespace mep_torch

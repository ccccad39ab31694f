#include "gpu_communicator.hpp"

#include <algorithm>
#include <random>
#include <utility>

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include "gpu_work.hpp"

namespace mep_torch {
namespace {

// Each rank's word before the communicator is made.
struct Offer {
  uint64_t name = 0;  // the job's, if rank 0's is taken
  uint64_t has_one = 0;
};

uint64_t random_name() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

std::string job_of(uint64_t name) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string job = "torch-gpu-";
  for (int shift = 60; shift >= 0; shift -= 4) job += kDigits[name >> shift & 15];
  return job;
}

}  // namespace

GpuCommunicator::GpuCommunicator(c10::intrusive_ptr<c10d::Store> store,
                                 std::shared_ptr<World> world, std::shared_ptr<Communicator> host,
                                 int rank, int size)
    : store_(std::move(store)),
      world_(std::move(world)),
      host_(std::move(host)),
      rank_(rank),
      size_(size) {}

void GpuCommunicator::set_size(int size) {
  const std::lock_guard order(order_mutex_);
  size_ = size;
}

std::shared_ptr<Communicator> GpuCommunicator::comm() const {
  const std::lock_guard lock(comm_mutex_);
  return comm_;
}

bool GpuCommunicator::has_failed() const {
  const auto comm = this->comm();
  return comm != nullptr && comm->has_failed();
}

// Over the host, so that all ranks decide the same: a replacement has none, and then all make a new one.
bool GpuCommunicator::agree_to_keep(std::chrono::milliseconds timeout, std::string* job) {
  Offer mine{random_name(), comm() != nullptr ? uint64_t{1} : uint64_t{0}};
  std::vector<Offer> offers(static_cast<size_t>(size_));
  const std::lock_guard lock(host_->mutex());
  if (host_->handle() == nullptr) std::rethrow_exception(closed_error("connect the GPUs"));
  host_->set_timeout(timeout);
  check(mep_allgather(&mine, offers.data(), sizeof mine, MEP_UINT8, host_->handle(), nullptr),
        "connect the GPUs");
  int32_t live = 0;
  check(mep_comm_live_count(host_->handle(), &live), "connect the GPUs");
  if (live != size_) {
    C10_THROW_ERROR(DistBackendError,
                    "mep: connect the GPUs: " + std::to_string(size_ - live) + " of the group's " +
                        std::to_string(size_) +
                        " ranks are gone; mep.torch.recover() admits replacements, "
                        "mep.torch.shrink() makes a group without them");
  }
  *job = job_of(offers[0].name);
  return std::all_of(offers.begin(), offers.end(),
                     [](const Offer& offer) { return offer.has_one != 0; });
}

void GpuCommunicator::connect(at::Device device, std::chrono::milliseconds timeout) {
  const std::lock_guard order(order_mutex_);
  if (device_.has_value() && *device_ != device) {
    C10_THROW_ERROR(ValueError, "mep: a tensor on " + device.str() + "; the group has begun on " +
                                    device_->str() + " and serves one GPU a rank");
  }
  const uint64_t generation = world_->generation();
  if (comm() != nullptr && generation == generation_) return;
  TORCH_CHECK(capture_of(guard_of(device).getStream(device)) == 0,
              "mep: the group's first operation on a GPU cannot be captured in a graph; run one "
              "before, for example all_reduce of one element");
  std::string job;
  if (!agree_to_keep(timeout, &job)) {
    if (const auto old = comm()) {
      guard_of(device).synchronizeDevice(device.index());
      (void)old->close(timeout);
    }
    const c10::DeviceGuard guard(device);
    const World::Place place{rank_, size_, timeout, job, false, false};
    auto made = std::make_shared<Communicator>();
    made->open(start_world(*store_, place, static_cast<int>(device.index())));
    const std::lock_guard lock(comm_mutex_);
    comm_ = std::move(made);
    order_.reset();
  }
  device_ = device;
  generation_ = generation;
  if (!own_stream_.has_value()) {
    own_stream_ = guard_of(device).getStreamFromGlobalPool(device, /*isHighPriority=*/true);
    for (auto& stream : message_streams_) {
      stream = guard_of(device).getStreamFromGlobalPool(device, /*isHighPriority=*/true);
    }
  }
}

c10::Stream GpuCommunicator::stream_of(const Call& call, const c10::Stream& current) {
  if (call.way != Way::kOrdered) {
    const c10::Stream stream = *message_streams_[static_cast<size_t>(call.way)];
    wait_for(current, stream);
    return stream;
  }
  const c10::Stream stream = call.is_async ? *own_stream_ : current;
  if (call.is_async) wait_for(current, stream);
  order_.follow(stream);
  return stream;
}

c10::intrusive_ptr<c10d::Work> GpuCommunicator::run(Call call, at::Device device, uint64_t number) {
  connect(device, call.timeout);
  const std::lock_guard order(order_mutex_);
  const c10::Stream current = guard_of(device).getStream(device);
  const c10::Stream stream = stream_of(call, current);
  std::exception_ptr error = enqueue(call, stream);
  if (call.is_async) {
    // The allocator of the current stream must not give this memory away before the other stream has used it.
    for (const auto* tensors : {&call.inputs, &call.outputs, &call.buffers}) {
      for (const at::Tensor& tensor : *tensors) tensor.record_stream(stream);
    }
  }
  if (error == nullptr) error = take_error("an earlier operation on the GPU");
  if (error != nullptr) comm()->note_failure();
  const uint64_t key = new_completion_key();
  auto end = std::make_shared<GpuEnd>(stream);
  const bool is_followed = call.hooks->are_any() || call.extra_time != nullptr;
  if (error == nullptr && is_followed && capture_of(stream) == 0) {
    end->record();
    const std::lock_guard lock(issued_mutex_);
    issued_.push_back({end, key, call.hooks, std::move(call.extra_time)});
  }
  return c10::make_intrusive<GpuWork>(rank_, number, key, std::move(call), std::move(end), stream,
                                      shared_from_this(), std::move(error));
}

std::exception_ptr GpuCommunicator::enqueue(const Call& call, const c10::Stream& stream) {
  const auto comm = this->comm();
  const std::lock_guard lock(comm->mutex());
  if (comm->handle() == nullptr) std::rethrow_exception(closed_error(call.name));
  comm->set_timeout(call.timeout);
  const c10::StreamGuard on(stream);
  for (const Step& step : call.steps) {
    std::exception_ptr error =
        error_of(step({comm->handle(), stream.native_handle(), nullptr}), call.name);
    if (error != nullptr) return error;
  }
  if (call.finish) call.finish();
  return nullptr;
}

std::vector<GpuCommunicator::Issued> GpuCommunicator::take_ended() {
  std::vector<Issued> ended;
  const std::lock_guard lock(issued_mutex_);
  if (issued_.empty()) return ended;
  // A question to any event would end a capture of this thread.
  const at::Device device = issued_.front().end->stream().device();
  if (capture_of(guard_of(device).getStream(device)) != 0) return ended;
  std::erase_if(issued_, [&](Issued& each) {
    const bool has_ended = each.end->has_come();
    if (has_ended) ended.push_back(std::move(each));
    return has_ended;
  });
  return ended;
}

bool GpuCommunicator::synchronize() {
  const std::lock_guard order(order_mutex_);
  if (comm() == nullptr) return false;
  const auto guard = guard_of(*device_);
  guard.synchronizeStream(guard.getStream(*device_));
  order_.synchronize();
  for (const auto& stream : message_streams_) guard.synchronizeStream(*stream);
  return true;
}

std::exception_ptr GpuCommunicator::take_error(const char* what) {
  const auto comm = this->comm();
  if (comm == nullptr) return nullptr;
  // Before the failures are asked for, so that none of these is missed.
  const std::vector<Issued> ended = take_ended();
  mep_result_t result = MEP_SUCCESS;
  std::exception_ptr error;
  {
    const std::lock_guard lock(comm->mutex());
    if (comm->handle() == nullptr) return closed_error(what);
    result = mep_comm_async_result(comm->handle());
    error = error_of(result, what);
  }
  if (error == nullptr) {
    for (const Issued& each : ended) each.hooks->completion.call(each.key);
    return nullptr;
  }
  comm->note_failure();
  // Which operations failed is not known.
  std::vector<Issued> unknown;
  {
    const std::lock_guard lock(issued_mutex_);
    unknown = std::exchange(issued_, {});
  }
  const std::vector<Issued>& known = ended.empty() ? unknown : ended;
  if (!known.empty() && is_breakdown(result)) known[0].hooks->abort.call();
  return error;
}

void GpuCommunicator::abort() const {
  const auto comm = this->comm();
  if (comm != nullptr && comm->handle() != nullptr) (void)mep_comm_abort(comm->handle());
}

void GpuCommunicator::revoke() const {
  if (const auto comm = this->comm()) comm->revoke();
}

void GpuCommunicator::close(std::chrono::milliseconds patience) {
  const auto comm = this->comm();
  if (comm == nullptr || comm->handle() == nullptr) return;
  try {
    (void)synchronize();
  } catch (const std::exception&) {
    // A GPU that has failed has nothing left that runs.
  }
  (void)comm->close(patience);
}

}  // namespace mep_torch

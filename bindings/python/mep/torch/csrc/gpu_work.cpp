#include "gpu_work.hpp"

#include <thread>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "gpu_communicator.hpp"

namespace mep_torch {
namespace {

// A host that waits for a stream with a limit looks so often.
constexpr std::chrono::microseconds kLookEvery(50);

}  // namespace

void GpuEnd::record() {
  const std::lock_guard lock(mutex_);
  event_.recordOnce(stream_);
}

bool GpuEnd::has_come() {
  const std::lock_guard lock(mutex_);
  return event_.query();
}

void GpuEnd::block(const c10::Stream& behind) {
  const std::lock_guard lock(mutex_);
  event_.block(behind);
}

GpuWork::GpuWork(int rank, uint64_t number, uint64_t key, Call call, std::shared_ptr<GpuEnd> end,
                 c10::Stream stream, std::shared_ptr<GpuCommunicator> comm,
                 std::exception_ptr error)
    : Work(rank, call.type, call.title, profiled(call)),
      number_(number),
      key_(key),
      name_(call.name),
      is_async_(call.is_async),
      stream_(stream),
      comm_(std::move(comm)),
      outputs_(std::move(call.outputs)),
      end_(std::move(end)),
      error_(std::move(error)) {
  // The stream of asynchronous operations goes on with others, which this one does not wait for.
  if (is_async_) end_->record();
  // The profiler's record ends with the call.
  if (recordFunctionEndCallback_) {
    recordFunctionEndCallback_();
    recordFunctionEndCallback_ = nullptr;
  }
}

void GpuWork::look_for_error() const {
  const std::lock_guard lock(state_mutex_);
  if (error_ == nullptr) error_ = comm_->take_error(name_);
}

bool GpuWork::isCompleted() {
  end_->record();
  const std::lock_guard lock(state_mutex_);
  return error_ != nullptr || end_->has_come();
}

bool GpuWork::isSuccess() const {
  end_->record();
  look_for_error();
  const std::lock_guard lock(state_mutex_);
  return error_ == nullptr && end_->has_come();
}

std::exception_ptr GpuWork::exception() const {
  look_for_error();
  const std::lock_guard lock(state_mutex_);
  return error_;
}

bool GpuWork::wait(std::chrono::milliseconds timeout) {
  const c10::Stream current =
      c10::impl::VirtualGuardImpl(stream_.device_type()).getStream(stream_.device());
  if (current != stream_) {
    end_->record();
    end_->block(current);
  }
  if (timeout != kNoTimeout) {
    const auto limit = std::chrono::steady_clock::now() + timeout;
    while (!isCompleted()) {
      if (std::chrono::steady_clock::now() > limit) {
        C10_THROW_ERROR(DistBackendError, std::string("mep: ") + name_ + ": Timed out waiting " +
                                              std::to_string(timeout.count()) +
                                              " ms for its end on the GPU; it goes on");
      }
      std::this_thread::sleep_for(kLookEvery);
    }
    look_for_error();
  }
  const std::lock_guard lock(state_mutex_);
  if (error_ != nullptr) std::rethrow_exception(error_);
  return true;
}

void GpuWork::abort() {
  comm_->revoke();
}

c10::intrusive_ptr<c10::ivalue::Future> GpuWork::getFuture() {
  const std::lock_guard lock(state_mutex_);
  if (future_ != nullptr) return future_;
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                     std::vector<c10::Device>{stream_.device()});
  if (error_ != nullptr) {
    future_->setError(error_);
  } else {
    // The future records where this stream stands, and lets the streams of its users wait for that.
    const c10::StreamGuard on(stream_);
    future_->markCompleted(c10::IValue(outputs_));
  }
  return future_;
}

}  // namespace mep_torch

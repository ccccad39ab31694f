#include "work.hpp"

#include <poll.h>

#include <algorithm>

#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include "completer.hpp"

namespace mep_torch {
namespace {

// A thread that waits carries the operation on itself, the mutex held for so long at a time, until another thread wants
// the mutex or the last time is over; then the progress thread does.
constexpr uint32_t kHelpMs = 1;
constexpr int kHelps = 10;

// Room for what MEP says of an operation, where somebody wants to know it.
class OpInfo {
 public:
  explicit OpInfo(const std::shared_ptr<ActiveRanks>& active) {
    if (active == nullptr) return;
    failed_.resize(static_cast<size_t>(active->mirror().numel() + 63) / 64);
    mep_op_info_defaults(&info_);
    info_.failed = failed_.data();
    info_.failed_words = static_cast<uint32_t>(failed_.size());
  }
  OpInfo(const OpInfo&) = delete;
  OpInfo& operator=(const OpInfo&) = delete;
  // NULL: nobody does.
  mep_op_info_t* info() { return failed_.empty() ? nullptr : &info_; }

 private:
  std::vector<uint64_t> failed_;
  mep_op_info_t info_;
};

}  // namespace

std::optional<std::vector<at::Tensor>> profiled(const Call& call) {
  if (call.title == nullptr) return std::nullopt;
  return call.inputs;
}

MepWork::MepWork(int rank, uint64_t number, Call call, std::shared_ptr<Communicator> comm,
                 std::shared_ptr<Completer> completer)
    : Work(rank, call.type, call.title, profiled(call)),
      number_(number),
      call_(std::move(call)),
      comm_(std::move(comm)),
      completer_(std::move(completer)) {}

// --- Its way ----------------------------------------------------------------------------------------

void MepWork::start() {
  std::vector<c10::intrusive_ptr<MepWork>> ended;
  {
    const std::lock_guard lock(comm_->mutex());
    if (!comm_->pending().empty()) comm_->sweep(&ended);
    if (comm_->is_awaited()) {
      run_alone();
    } else if (comm_->handle() == nullptr) {
      failed_ = closed_error(call_.name);
    } else {
      comm_->set_timeout(call_.timeout);
      if (call_.is_async) {
        begin();
      } else {
        run_blocking();
      }
    }
    place_ = comm_->pending().insert(comm_->pending().end(),
                                     c10::intrusive_ptr<MepWork>::reclaim_copy(this));
    if (advance(0)) {
      ended.push_back(c10::intrusive_ptr<MepWork>::reclaim_copy(this));
    } else if (call_.hooks->are_any() && comm_->starts_patrol()) {
      completer_->patrol(comm_);
    }
  }
  for (const auto& work : ended) work->announce();
}

void MepWork::run_blocking() {
  for (const Step& step : call_.steps) {
    const mep_result_t result = step({comm_->handle(), nullptr, nullptr});
    if (result >= 0) continue;
    OpInfo told(call_.active);
    const bool is_told = told.info() != nullptr && is_loss(result) &&
                         mep_comm_last_op(comm_->handle(), told.info()) == MEP_SUCCESS;
    fail(result, is_told ? told.info() : nullptr);
    return;
  }
}

void MepWork::begin() {
  requests_.reserve(call_.steps.size());
  for (const Step& step : call_.steps) {
    mep_request_t request = nullptr;
    const mep_result_t result = step({comm_->handle(), nullptr, &request});
    if (result < 0) {
      fail(result, nullptr);
      return;
    }
    requests_.push_back(request);
  }
}

bool MepWork::advance(uint32_t wait_ms) {
  if (has_ended()) return false;
  for (mep_request_t& request : requests_) {
    if (request == nullptr) continue;
    mep_result_t result = MEP_SUCCESS;
    OpInfo told(call_.active);
    int32_t done = 0;
    if (wait_ms != 0) {
      result = mep_request_wait(&request, wait_ms, &done, told.info());
    } else {
      result = mep_request_test(&request, &done, told.info());
    }
    if (request != nullptr) return false;
    if (result < 0) fail(result, told.info());
  }
  comm_->pending().erase(place_);
  end(failed_);
  return true;
}

void MepWork::fail(mep_result_t result, const mep_op_info_t* info) {
  const bool is_lost = call_.active != nullptr && (is_loss(result) || is_exclusion(result));
  if (is_exclusion(result)) comm_->note_exclusion();
  if (is_lost) {
    const std::vector<uint64_t> failed = lost_by(result, info);
    lost_.resize(std::max(lost_.size(), failed.size()));
    for (size_t word = 0; word < failed.size(); ++word) lost_[word] |= failed[word];
    call_.active->lose(lost_);
  }
  if (failed_ != nullptr) return;
  failed_ = error_of(result, call_.name);
  is_only_lost_ = is_lost;
  is_broken_ = is_breakdown(result);
}

std::vector<uint64_t> MepWork::lost_by(mep_result_t result, const mep_op_info_t* info) const {
  std::vector<uint64_t> failed;
  if (is_exclusion(result)) {
    failed.resize(static_cast<size_t>(rank_) / 64 + 1);
    failed.back() = uint64_t{1} << (rank_ % 64);
    return failed;
  }
  if (info != nullptr) failed.assign(info->failed, info->failed + info->failed_words);
  if (std::all_of(failed.begin(), failed.end(), [](uint64_t word) { return word == 0; })) {
    // A message tells of its peer alone, and not always: those that the view lacks.
    int32_t size = 0;
    if (mep_comm_size(comm_->handle(), &size) != MEP_SUCCESS) return failed;
    failed.assign((static_cast<size_t>(size) + 63) / 64, ~uint64_t{0});
    for (const int rank : comm_->living()) {
      failed[static_cast<size_t>(rank) / 64] &= ~(uint64_t{1} << (rank % 64));
    }
    if (size % 64 != 0) failed.back() &= (uint64_t{1} << (size % 64)) - 1;
  }
  return failed;
}

std::exception_ptr MepWork::told_error() const {
  return is_only_lost_ ? nullptr : exception();
}

void MepWork::end(std::exception_ptr error) {
  if (error == nullptr && call_.finish) {
    try {
      // Outputs that were made in inference mode can be written in no other.
      const c10::InferenceMode writes_any;
      call_.finish();
    } catch (...) {
      error = std::current_exception();
    }
  }
  if (error != nullptr && !is_only_lost_) comm_->note_failure();
  call_.steps.clear();
  call_.finish = nullptr;
  call_.buffers.clear();
  call_.inputs.clear();
  call_.extra_time.reset();
  const bool is_success = error == nullptr;
  finish(std::move(error));
  // Afterwards: whoever comes too late to be told finds it completed.
  if (is_success) call_.hooks->completion.call(key_);
}

bool MepWork::has_ended() const {
  const std::lock_guard lock(mutex_);
  return completed_;
}

void MepWork::announce() {
  bool is_abort_to_tell = false;
  {
    const std::lock_guard lock(mutex_);
    is_abort_to_tell = completed_ && is_broken_ && !std::exchange(is_abort_told_, true);
  }
  if (is_abort_to_tell) call_.hooks->abort.call();
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(mutex_);
    if (!completed_ || future_ == nullptr || is_announced_) return;
    is_announced_ = true;
    future = future_;
  }
  if (const std::exception_ptr error = told_error()) {
    future->setError(error);
  } else {
    future->markCompleted(c10::IValue(call_.outputs));
  }
}

bool MepWork::look() {
  if (has_ended()) return true;
  // A thread that waits inside carries this work on too.
  const std::unique_lock lock(comm_->mutex(), std::try_to_lock);
  return lock.owns_lock() && (advance(0) || has_ended());
}

bool MepWork::await(std::chrono::milliseconds timeout) {
  const auto limit = std::chrono::steady_clock::now() + timeout;
  const bool is_bounded = timeout != kNoTimeout;
  for (int helps = kHelps; !has_ended();) {
    bool just_ended = false;
    {
      const std::lock_guard lock(comm_->mutex());
      just_ended = advance(helps > 0 ? kHelpMs : 0);
      helps = comm_->mutex().is_wanted() ? 0 : helps - 1;
    }
    if (just_ended) announce();
    if (just_ended || has_ended()) break;
    int sleep_ms = kLongestSleepMs;
    if (is_bounded) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          limit - std::chrono::steady_clock::now());
      if (left.count() <= 0) return false;
      sleep_ms = static_cast<int>(std::min<int64_t>(sleep_ms, left.count()));
    }
    if (helps > 0) continue;
    pollfd event{this->event(), POLLIN, 0};
    (void)poll(&event, 1, event.fd >= 0 ? sleep_ms : 1);
  }
  return true;
}

int MepWork::event() {
  const std::lock_guard lock(comm_->mutex());
  if (has_ended()) return -1;
  for (const mep_request_t request : requests_) {
    int32_t event = -1;
    if (request != nullptr && mep_request_event_fd(request, &event) == MEP_SUCCESS) return event;
  }
  return -1;
}

void MepWork::give_up() {
  bool just_ended = false;
  {
    const std::lock_guard lock(comm_->mutex());
    for (mep_request_t& request : requests_) {
      int32_t cancelled = 0;
      if (request == nullptr || mep_request_cancel(&request, &cancelled) != MEP_SUCCESS) continue;
      if (cancelled == 0) continue;
      if (failed_ == nullptr) failed_ = closed_error(call_.name);
    }
    just_ended = advance(0);
    if (!just_ended && !has_ended()) comm_->revoke();
  }
  if (just_ended) announce();
}

// --- c10d -------------------------------------------------------------------------------------------

bool MepWork::isCompleted() {
  if (!look()) return false;
  announce();
  return true;
}

bool MepWork::isSuccess() const {
  const std::lock_guard lock(mutex_);
  return completed_ && exception_ == nullptr;
}

std::exception_ptr MepWork::exception() const {
  const std::lock_guard lock(mutex_);
  return exception_;
}

int MepWork::sourceRank() const {
  TORCH_CHECK(call_.message != nullptr, "mep: sourceRank() is of receives from any source");
  return call_.message->source;
}

std::vector<at::Tensor> MepWork::result() {
  return call_.outputs;
}

bool MepWork::wait(std::chrono::milliseconds timeout) {
  if (!await(timeout)) {
    C10_THROW_ERROR(DistBackendError, std::string("mep: ") + call_.name + ": Timed out waiting " +
                                          std::to_string(timeout.count()) +
                                          " ms for its end; it goes on");
  }
  if (const std::exception_ptr error = told_error()) std::rethrow_exception(error);
  return true;
}

void MepWork::abort() {
  if (!has_ended()) comm_->revoke();
}

c10::intrusive_ptr<c10::ivalue::Future> MepWork::getFuture() {
  {
    const std::lock_guard lock(mutex_);
    if (future_ != nullptr) return future_;
    future_ =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  }
  if (has_ended()) {
    announce();
  } else {
    completer_->watch(c10::intrusive_ptr<MepWork>::reclaim_copy(this));
  }
  return future_;
}

}  // namespace mep_torch

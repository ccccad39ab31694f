#include "communicator.hpp"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include <c10/util/Exception.h>

#include "work.hpp"

namespace mep_torch {
namespace {

std::string text_of(mep_result_t result, const char* what) {
  return std::string("mep: ") + what + ": " +
         (result == MEP_ERR_TIMEOUT ? "Timed out waiting: " : "") + mep_last_error() + " (" +
         mep_result_string(result) + ")";
}

}  // namespace

void check(mep_result_t result, const char* what) {
  if (result == MEP_ERR_UNSUPPORTED) C10_THROW_ERROR(NotImplementedError, text_of(result, what));
  if (result < 0) C10_THROW_ERROR(DistBackendError, text_of(result, what));
}

bool is_loss(mep_result_t result) {
  return result == MEP_ERR_PEER_FAILED || result == MEP_ERR_PEER_LEFT;
}

bool is_exclusion(mep_result_t result) {
  return result == MEP_ERR_EVICTED || result == MEP_ERR_NO_QUORUM;
}

bool is_breakdown(mep_result_t result) {
  return result < 0 && !is_loss(result) && !is_exclusion(result) && result != MEP_ERR_REVOKED &&
         result != MEP_ERR_ABORTED;
}

std::exception_ptr error_of(mep_result_t result, const char* what) {
  try {
    check(result, what);
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

std::exception_ptr closed_error(const char* what) {
  try {
    C10_THROW_ERROR(
        DistBackendError,
        std::string("mep: ") + what +
            ": the process group was destroyed, or is without members until reconfigure()");
  } catch (...) {
    return std::current_exception();
  }
}

uint32_t to_ms(std::chrono::milliseconds timeout) {
  const auto most = static_cast<int64_t>(std::numeric_limits<int32_t>::max());
  return static_cast<uint32_t>(std::clamp<int64_t>(timeout.count(), 1, most));
}

Communicator::Communicator() : owner_(getpid()) {}

Communicator::~Communicator() = default;

bool Communicator::is_forked() const {
  return getpid() != owner_;
}

std::vector<int> Communicator::living() const {
  int32_t size = 0;
  check(mep_comm_size(handle_, &size), "look who is there");
  std::vector<uint64_t> incarnations(static_cast<size_t>(size));
  mep_view_t view;
  mep_view_defaults(&view);
  view.capacity = static_cast<uint32_t>(size);
  view.incarnations = incarnations.data();
  check(mep_comm_view(handle_, &view), "look who is there");
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) {
    if (incarnations[static_cast<size_t>(rank)] != 0) ranks.push_back(rank);
  }
  return ranks;
}

uint64_t Communicator::world_epoch() const {
  if (handle_ == nullptr) return 0;
  mep_view_t view;
  mep_view_defaults(&view);
  check(mep_comm_view(handle_, &view), "look who is there");
  return view.world_epoch;
}

void Communicator::set_timeout(std::chrono::milliseconds timeout) {
  const uint32_t ms = to_ms(timeout);
  if (ms == timeout_ms_) return;
  check(mep_comm_set_timeout(handle_, ms), "set the timeout");
  timeout_ms_ = ms;
}

void Communicator::sweep(std::vector<c10::intrusive_ptr<MepWork>>* ended) {
  for (auto at = pending_.begin(); at != pending_.end();) {
    c10::intrusive_ptr<MepWork> work = *at++;
    if (work->advance(0)) ended->push_back(std::move(work));
  }
}

bool Communicator::patrol(std::vector<c10::intrusive_ptr<MepWork>>* ended) {
  if (!mutex_.try_lock_unnoticed()) return false;
  const std::lock_guard lock(mutex_, std::adopt_lock);
  sweep(ended);
  is_patrolled_ = !pending_.empty();
  return !is_patrolled_;
}

void Communicator::revoke() const {
  if (handle_ != nullptr) (void)mep_comm_revoke(handle_);
}

void Communicator::open(mep_comm_t handle) {
  const std::lock_guard lock(mutex_);
  (void)replace(handle);
  is_awaited_ = false;
}

mep_comm_t Communicator::replace(mep_comm_t handle) {
  timeout_ms_ = 0;
  is_excluded_.store(false, std::memory_order_relaxed);
  return std::exchange(handle_, handle);
}

void Communicator::expect() {
  const std::lock_guard lock(mutex_);
  is_awaited_ = handle_ == nullptr;
  is_excluded_.store(false, std::memory_order_relaxed);
}

bool Communicator::close(std::chrono::milliseconds patience) {
  if (handle_ == nullptr) {
    const std::lock_guard lock(mutex_);
    is_awaited_ = false;
    return true;
  }
  const auto limit = std::chrono::steady_clock::now() + patience;
  for (;;) {
    c10::intrusive_ptr<MepWork> first;
    {
      const std::lock_guard lock(mutex_);
      if (pending_.empty()) break;
      first = pending_.front();
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        limit - std::chrono::steady_clock::now());
    if (left.count() > 0 && first->await(left)) continue;
    first->give_up();
  }
  const std::lock_guard lock(mutex_);
  if (mep_comm_destroy(handle_) != MEP_SUCCESS) return false;
  handle_ = nullptr;
  return true;
}

}  // namespace mep_torch

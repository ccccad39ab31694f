#include "core/world/control_requests.hpp"

#include <utility>

namespace mep {

bool ControlRequests::push(Request* request, FunctionRef<void()> ring) {
  if (!open_) return false;
  (last_ != nullptr ? last_->next : first_) = request;
  last_ = request;
  ring();
  return true;
}

void ControlRequests::post(std::function<void()> request, FunctionRef<void()> ring) {
  auto kept = std::make_unique<Request>();
  kept->owned = std::move(request);
  const std::lock_guard lock(mutex_);
  if (push(kept.get(), ring)) (void)kept.release();
}

bool ControlRequests::call(FunctionRef<void()> request, FunctionRef<void()> ring) {
  Request own;
  own.borrowed = &request;
  std::unique_lock lock(mutex_);
  if (!push(&own, ring)) return false;
  finished_.wait(lock, [&] { return own.finished; });
  return own.ran;
}

void ControlRequests::open() {
  const std::lock_guard lock(mutex_);
  open_ = true;
}

ControlRequests::Request* ControlRequests::take_all(bool last) {
  const std::lock_guard lock(mutex_);
  if (last) open_ = false;
  last_ = nullptr;
  return std::exchange(first_, nullptr);
}

void ControlRequests::finish(Request* request) {
  if (request->borrowed == nullptr) {
    delete request;
    return;
  }
  // Under the lock: the request goes away with its thread's wait.
  const std::lock_guard lock(mutex_);
  request->finished = true;
  finished_.notify_all();
}

void ControlRequests::run() {
  running_ = take_all(false);
  while (running_ != nullptr) {
    Request* const request = running_;
    request->borrowed != nullptr ? (*request->borrowed)() : request->owned();
    request->ran = true;
    running_ = request->next;
    finish(request);
  }
}

void ControlRequests::close() {
  for (Request* request : {std::exchange(running_, nullptr), take_all(true)}) {
    while (request != nullptr) {
      Request* const next = request->next;
      finish(request);
      request = next;
    }
  }
}

}  // namespace mep

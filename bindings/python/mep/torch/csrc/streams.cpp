#include "streams.hpp"

#include <dlfcn.h>

#include <c10/core/Event.h>

namespace mep_torch {

// By the driver's own function.
uint64_t capture_of(const c10::Stream& stream) {
  using GetCaptureInfo = int (*)(void* stream, int* status, uint64_t* id, void* graph,
                                 void* dependencies, void* count);
  static const auto get_capture_info = [] {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return driver == nullptr
               ? nullptr
               : reinterpret_cast<GetCaptureInfo>(dlsym(driver, "cuStreamGetCaptureInfo_v2"));
  }();
  constexpr int kActive = 1;
  int status = 0;
  uint64_t id = 0;
  if (get_capture_info == nullptr) return 0;
  const int result =
      get_capture_info(stream.native_handle(), &status, &id, nullptr, nullptr, nullptr);
  return result == 0 && status == kActive ? id : 0;
}

void wait_for(const c10::Stream& stream, const c10::Stream& behind) {
  c10::Event event(stream.device_type());
  event.record(stream);
  event.block(behind);
}

void StreamOrder::follow(const c10::Stream& stream) {
  const uint64_t capture = capture_of(stream);
  if (last_.has_value() && last_->stream != stream && last_->capture == capture) {
    wait_for(last_->stream, stream);
  }
  last_ = Last{stream, capture};
}

void StreamOrder::synchronize() const {
  if (last_.has_value() && last_->capture == 0) {
    guard_of(last_->stream.device()).synchronizeStream(last_->stream);
  }
}

}  // namespace mep_torch

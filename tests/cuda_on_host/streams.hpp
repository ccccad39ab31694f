// Streams, events and graphs: a stream is a thread that does one thing after another.
#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace cuda_on_host {

using Work = std::function<void()>;

class Stream {
 public:
  explicit Stream(int device) : device_(device), thread_([this] { serve(); }) {}
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int device() const { return device_; }
  void enqueue(Work work);
  // Returns when all that was enqueued before is done.
  void synchronize();
  bool is_idle();

  // Between these, enqueue() notes the work and does nothing.
  void begin_capture();
  bool is_capturing();
  std::vector<Work> end_capture();

 private:
  void serve();

  int device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> work_;
  std::vector<Work> captured_;
  bool is_busy_ = false;
  bool capturing_ = false;
  bool closing_ = false;
  std::thread thread_;  // last: it uses the others
};

struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0;  // how often
  uint64_t reached = 0;
  std::chrono::steady_clock::time_point at;
};

// The stream that a handle of CUDA names; null, and the default streams, are the current device's own.
Stream& stream_of(cudaStream_t stream);

}  // namespace cuda_on_host

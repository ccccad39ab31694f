#include "cuda_on_host/streams.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda_on_host/launch.hpp"
#include "cuda_on_host/runtime.hpp"

namespace cuda_on_host {
namespace {

// All streams that there are. Never destroyed, since threads of streams outlive main().
struct Streams {
  std::mutex mutex;
  std::map<Stream*, std::shared_ptr<Stream>> all;  // who waits for one keeps it
  std::map<int, Stream*> own;                      // of devices

  static Streams& get() {
    static auto* const streams = new Streams;
    return *streams;
  }
  Stream* make(int device) {
    const auto stream = std::make_shared<Stream>(device);
    all.emplace(stream.get(), stream);
    return stream.get();
  }
};

struct Graph {
  std::vector<Work> work;
};

Stream* handle_of(cudaStream_t stream) {
  return reinterpret_cast<Stream*>(stream);
}
Event* handle_of(cudaEvent_t event) {
  return reinterpret_cast<Event*>(event);
}

}  // namespace

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Stream::enqueue(Work work) {
  const std::lock_guard lock(mutex_);
  if (capturing_) {
    captured_.push_back(std::move(work));
    return;
  }
  work_.push_back(std::move(work));
  changed_.notify_all();
}

void Stream::synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return work_.empty() && !is_busy_; });
}

bool Stream::is_idle() {
  const std::lock_guard lock(mutex_);
  return work_.empty() && !is_busy_;
}

void Stream::begin_capture() {
  const std::lock_guard lock(mutex_);
  capturing_ = true;
}

bool Stream::is_capturing() {
  const std::lock_guard lock(mutex_);
  return capturing_;
}

std::vector<Work> Stream::end_capture() {
  const std::lock_guard lock(mutex_);
  capturing_ = false;
  return std::exchange(captured_, {});
}

void Stream::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !work_.empty() || closing_; });
    if (work_.empty()) return;
    const Work work = std::move(work_.front());
    work_.pop_front();
    is_busy_ = true;
    lock.unlock();
    work();
    lock.lock();
    is_busy_ = false;
    changed_.notify_all();
  }
}

Stream& stream_of(cudaStream_t stream) {
  if (stream != nullptr && stream != cudaStreamLegacy && stream != cudaStreamPerThread) {
    return *handle_of(stream);
  }
  Streams& streams = Streams::get();
  const std::lock_guard lock(streams.mutex);
  Stream*& own = streams.own[current_device()];
  if (own == nullptr) own = streams.make(current_device());
  return *own;
}

void enqueue(cudaStream_t stream, Launch launch) {
  const uint64_t lanes = uint64_t{launch.threads.x} * launch.threads.y * launch.threads.z;
  const uint64_t ctas = uint64_t{launch.ctas.x} * launch.ctas.y * launch.ctas.z;
  if (lanes == 0 || lanes > kMostCtaThreads || ctas == 0 || launch.shared_bytes > kSharedBytes) {
    (void)failed(cudaErrorInvalidConfiguration);
    return;
  }
  stream_of(stream).enqueue([launch = std::move(launch)] { run_grid(launch); });
}

}  // namespace cuda_on_host

// --- The functions of CUDA ----------------------------------------------------------------------------

using namespace cuda_on_host;

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int /*flags*/) {
  Streams& streams = Streams::get();
  const std::lock_guard lock(streams.mutex);
  *stream = reinterpret_cast<cudaStream_t>(streams.make(current_device()));
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::shared_ptr<Stream> last;
  {
    Streams& streams = Streams::get();
    const std::lock_guard lock(streams.mutex);
    const auto found = streams.all.find(handle_of(stream));
    if (found == streams.all.end()) return failed(cudaErrorInvalidResourceHandle);
    last = std::move(found->second);
    streams.all.erase(found);
  }
  last->synchronize();
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  stream_of(stream).synchronize();
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return stream_of(stream).is_idle() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaDeviceSynchronize() {
  Streams& streams = Streams::get();
  std::vector<std::shared_ptr<Stream>> here;
  {
    const std::lock_guard lock(streams.mutex);
    for (const auto& [address, stream] : streams.all) {
      if (stream->device() == current_device()) here.push_back(stream);
    }
  }
  for (const auto& stream : here) stream->synchronize();
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int /*flags*/) {
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, 0);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  (void)cudaEventSynchronize(event);
  delete handle_of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Event* const recorded = handle_of(event);
  {
    const std::lock_guard lock(recorded->mutex);
    ++recorded->recorded;
  }
  stream_of(stream).enqueue([recorded] {
    const std::lock_guard lock(recorded->mutex);
    ++recorded->reached;
    recorded->at = std::chrono::steady_clock::now();
    recorded->changed.notify_all();
  });
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Event* const awaited = handle_of(event);
  std::unique_lock lock(awaited->mutex);
  awaited->changed.wait(lock, [&] { return awaited->reached >= awaited->recorded; });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  Event* const asked = handle_of(event);
  const std::lock_guard lock(asked->mutex);
  return asked->reached >= asked->recorded ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  const auto passed = handle_of(end)->at - handle_of(begin)->at;
  *ms = std::chrono::duration<float, std::milli>(passed).count();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int /*flags*/) {
  Event* const awaited = handle_of(event);
  uint64_t recorded = 0;
  {
    const std::lock_guard lock(awaited->mutex);
    recorded = awaited->recorded;
  }
  stream_of(stream).enqueue([awaited, recorded] {
    std::unique_lock lock(awaited->mutex);
    awaited->changed.wait(lock, [&] { return awaited->reached >= recorded; });
  });
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  stream_of(stream).begin_capture();
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream_of(stream).is_capturing() ? cudaStreamCaptureStatusActive
                                             : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = reinterpret_cast<cudaGraph_t>(new Graph{stream_of(stream).end_capture()});
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Graph*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* instance, cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  *instance = reinterpret_cast<cudaGraphExec_t>(new Graph(*reinterpret_cast<const Graph*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t /*instance*/, cudaStream_t /*stream*/) {
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t instance, cudaStream_t stream) {
  for (const Work& work : reinterpret_cast<const Graph*>(instance)->work) {
    stream_of(stream).enqueue(work);
  }
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t instance) {
  delete reinterpret_cast<Graph*>(instance);
  return cudaSuccess;
}

}  // extern "C"

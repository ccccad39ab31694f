// The GPU's abilities, measured while nothing else runs there. Each figure is the median of several.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/context.hpp"
#include "device/floors.hpp"
#include "device_side.hpp"
#include "error.hpp"

namespace mep::perf {
namespace {

constexpr size_t kCopyBytes = size_t{1} << 30;
constexpr int kTrials = 9;
constexpr uint32_t kSignals = 2000;  // each way
constexpr int kLaunches = 400;

// Two streams, two events and some memory, for the time of the measurement.
class Bench {
 public:
  explicit Bench(size_t bytes) {
    for (cudaStream_t& stream : streams_) {
      require_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    }
    for (cudaEvent_t& event : events_) require_cuda(cudaEventCreate(&event), "cudaEventCreate");
    require_cuda(cudaMalloc(&memory_, bytes), "cudaMalloc");
    require_cuda(cudaMemset(memory_, 0, bytes), "cudaMemset");
    require_cuda(cudaDeviceSynchronize(), "cudaMemset");
  }
  ~Bench() {
    (void)cudaFree(memory_);
    for (const cudaEvent_t event : events_) (void)cudaEventDestroy(event);
    for (const cudaStream_t stream : streams_) (void)cudaStreamDestroy(stream);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;
  cudaStream_t stream(int index) const { return streams_[index]; }
  uint8_t* memory() const { return static_cast<uint8_t*>(memory_); }

  // Microseconds of what the body enqueues on stream 0.
  template <typename Body>
  double time(Body&& body) const {
    std::vector<double> times;
    for (int trial = 0; trial < kTrials + 1; ++trial) {
      require_cuda(cudaEventRecord(events_[0], streams_[0]), "cudaEventRecord");
      body();
      require_cuda(cudaEventRecord(events_[1], streams_[0]), "cudaEventRecord");
      require_cuda(cudaDeviceSynchronize(), "measuring the GPU");
      float milliseconds = 0;
      require_cuda(cudaEventElapsedTime(&milliseconds, events_[0], events_[1]), "elapsed time");
      if (trial > 0) times.push_back(1e3 * static_cast<double>(milliseconds));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

 private:
  cudaStream_t streams_[2] = {};
  cudaEvent_t events_[2] = {};
  void* memory_ = nullptr;
};

double copy_gbps() {
  const Bench bench(2 * kCopyBytes);
  const double us = bench.time([&] {
    require_cuda(cudaMemcpyAsync(bench.memory() + kCopyBytes, bench.memory(), kCopyBytes,
                                 cudaMemcpyDeviceToDevice, bench.stream(0)),
                 "cudaMemcpyAsync");
  });
  return 2.0 * static_cast<double>(kCopyBytes) / us / 1e3;
}

double signal_us() {
  constexpr size_t kApart = 256;
  const Bench bench(4 * kApart);
  auto* first = reinterpret_cast<uint64_t*>(bench.memory());
  auto* second = reinterpret_cast<uint64_t*>(bench.memory() + kApart);
  auto* is_late = reinterpret_cast<uint32_t*>(bench.memory() + 2 * kApart);
  uint32_t done = 0;  // rounds of earlier trials: the words only grow
  const double us = bench.time([&] {
    require_cuda(launch_ping_pong({second, first, done, kSignals, false, is_late}, bench.stream(1)),
                 "a signal");
    require_cuda(launch_ping_pong({first, second, done, kSignals, true, is_late}, bench.stream(0)),
                 "a signal");
    done += kSignals;
  });
  uint32_t late = 0;
  require_cuda(cudaMemcpy(&late, is_late, sizeof late, cudaMemcpyDeviceToHost), "cudaMemcpy");
  if (late != 0) throw PerfError("two kernels of one process do not run together on the GPU");
  return us / (2 * kSignals);
}

// Copies of 1 GiB and signals from one GPU to another. Access is taken back: the library is to do without.
class Link {
 public:
  Link(int from, int to) : from_(from), to_(to) {
    for (const auto& [gpu, peer] : {std::pair{to, from}, std::pair{from, to}}) {
      require_cuda(cudaSetDevice(gpu), "cudaSetDevice");
      require_cuda(load_floor_kernels(), "loading kernels");
      require_cuda(cudaDeviceEnablePeerAccess(peer, 0), "cudaDeviceEnablePeerAccess");
    }
    near_ = std::make_unique<Bench>(kCopyBytes);  // `from` is the thread's GPU now
    require_cuda(cudaSetDevice(to), "cudaSetDevice");
    far_ = std::make_unique<Bench>(kCopyBytes);
    require_cuda(cudaSetDevice(from), "cudaSetDevice");
  }
  ~Link() {
    for (const auto& [gpu, peer] : {std::pair{to_, from_}, std::pair{from_, to_}}) {
      (void)cudaSetDevice(gpu);
      (void)cudaDeviceDisablePeerAccess(peer);
    }
  }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  double copy_gbps() const {
    const double us = near_->time([&] {
      require_cuda(cudaMemcpyPeerAsync(far_->memory(), to_, near_->memory(), from_, kCopyBytes,
                                       near_->stream(0)),
                   "cudaMemcpyPeerAsync");
    });
    return static_cast<double>(kCopyBytes) / us / 1e3;
  }
  // Each kernel waits for a word in its own GPU's memory and writes one in the other's.
  double signal_us() const {
    auto* here = reinterpret_cast<uint64_t*>(near_->memory());
    auto* there = reinterpret_cast<uint64_t*>(far_->memory());
    auto* is_late = reinterpret_cast<uint32_t*>(here + 64);
    require_cuda(cudaMemset(here, 0, 1024), "cudaMemset");
    require_cuda(cudaMemset(there, 0, 1024), "cudaMemset");
    require_cuda(cudaDeviceSynchronize(), "cudaMemset");
    uint32_t done = 0;
    const double us = near_->time([&] {
      require_cuda(cudaSetDevice(to_), "cudaSetDevice");
      require_cuda(launch_ping_pong({here, there, done, kSignals, false, is_late}, far_->stream(0)),
                   "a signal");
      require_cuda(cudaSetDevice(from_), "cudaSetDevice");
      require_cuda(launch_ping_pong({there, here, done, kSignals, true, is_late}, near_->stream(0)),
                   "a signal");
      done += kSignals;
    });
    uint32_t late = 0;
    require_cuda(cudaMemcpy(&late, is_late, sizeof late, cudaMemcpyDeviceToHost), "cudaMemcpy");
    if (late != 0) throw PerfError("two GPUs do not see each other's signals");
    return us / (2 * kSignals);
  }

 private:
  int from_, to_;
  std::unique_ptr<Bench> near_, far_;
};

double launch_us() {
  const Bench bench(1);
  const DeviceGraph graph(bench.stream(0), [&] {
    for (int i = 0; i < kLaunches; ++i) {
      require_cuda(launch_nothing(bench.stream(0)), "an empty kernel");
    }
  });
  const double us = bench.time(
      [&] { require_cuda(cudaGraphLaunch(graph.get(), bench.stream(0)), "cudaGraphLaunch"); });
  return us / kLaunches;
}

}  // namespace

bool device_is_built() {
  return true;
}

void prepare_device(int32_t device) {
  // Else the driver may put streams of several ranks, which wait for each other, into one queue.
  (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);  // NOLINT(concurrency-mt-unsafe)
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  (void)cudaGetLastError();
  if (error != cudaSuccess || count == 0) {
    throw PerfError(std::string("--device cuda: no usable GPU or driver here: ") +
                    (error != cudaSuccess ? cudaGetErrorString(error) : "CUDA sees none"));
  }
  if (device >= count) {
    throw PerfError("--device cuda:" + std::to_string(device) + ": there are GPUs 0 to " +
                    std::to_string(count - 1));
  }
}

DeviceFloors measure_device(int32_t wanted) {
  DeviceFloors floors;
  const int32_t device = std::max(wanted, 0);
  require_cuda(cudaSetDevice(device), "cudaSetDevice");
  cudaDeviceProp properties{};
  require_cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  floors.gpu = properties.name;
  require_cuda(load_floor_kernels(), "loading kernels");
  floors.copy_gbps = copy_gbps();
  floors.signal_us = signal_us();
  floors.launch_us = launch_us();
  int count = 0;
  require_cuda(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (wanted >= 0 || count < 2) return floors;
  int reaches[2] = {};
  require_cuda(cudaDeviceCanAccessPeer(&reaches[0], 0, 1), "cudaDeviceCanAccessPeer");
  require_cuda(cudaDeviceCanAccessPeer(&reaches[1], 1, 0), "cudaDeviceCanAccessPeer");
  if (reaches[0] == 0 || reaches[1] == 0) return floors;
  const Link link(0, 1);
  floors.link_gbps = link.copy_gbps();
  floors.link_signal_us = link.signal_us();
  return floors;
}

}  // namespace mep::perf

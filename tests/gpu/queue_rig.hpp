// Send queues in the memory of a GPU, whose rings and words lie in pinned memory of the host, where a software NIC serves
// them. The peer is another range of pinned memory.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "gpu_check.hpp"
#include "transport/gpu_queue/memory_executor.hpp"
#include "transport/gpu_queue/peer.hpp"
#include "transport/gpu_queue/soft_nic.hpp"

namespace queue_test {

using namespace gpu_test;        // NOLINT(google-build-using-namespace)
using namespace mep::gpu_queue;  // NOLINT(google-build-using-namespace)

constexpr uint64_t kRemoteName = 0x5000'0000;  // where posters say that the peer's memory begins
constexpr uint32_t kRemoteKey = 9;
constexpr uint32_t kLocalKey = 7;
constexpr uint32_t kFirstQueuePair = 100;
constexpr uint32_t kLanes = 32;
constexpr double kWatchdogSeconds = 60;  // above each deadline of a kernel

// Ends the process: a kernel that does not end by its deadline cannot be waited for.
[[noreturn]] inline void give_up(const char* why) {
  std::printf("FAILED: %s\n", why);
  std::fflush(stdout);
  std::_Exit(1);
}

// Zeroed; kernels reach it under the same address.
template <typename T>
class Pinned {
 public:
  explicit Pinned(size_t count) : count_(count) {
    void* memory = nullptr;
    cuda(cudaHostAlloc(&memory, count * sizeof(T), cudaHostAllocMapped | cudaHostAllocPortable));
    void* on_gpu = nullptr;
    cuda(cudaHostGetDevicePointer(&on_gpu, memory, 0));
    if (on_gpu != memory) give_up("pinned memory has another address on the GPU");
    std::memset(memory, 0, count * sizeof(T));
    all_ = static_cast<T*>(memory);
  }
  ~Pinned() { (void)cudaFreeHost(all_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  T* get() const { return all_; }
  T& operator[](size_t i) const { return all_[i]; }
  size_t bytes() const { return count_ * sizeof(T); }

 private:
  size_t count_;
  T* all_ = nullptr;
};

template <typename T>
class OnGpu {
 public:
  explicit OnGpu(size_t count) {
    cuda(cudaMalloc(&all_, count * sizeof(T)));
    cuda(cudaMemset(all_, 0, count * sizeof(T)));
    cuda(cudaDeviceSynchronize());
  }
  ~OnGpu() { (void)cudaFree(all_); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;
  T* get() const { return all_; }

 private:
  T* all_ = nullptr;
};

class Stream {
 public:
  Stream() { cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { (void)cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  void finish() const {
    const double end = now_s() + kWatchdogSeconds;
    for (;;) {
      const cudaError_t error = cudaStreamQuery(stream_);
      if (error != cudaErrorNotReady) return cuda(error);
      if (now_s() > end) give_up("a kernel has not ended");
      std::this_thread::yield();
    }
  }

 private:
  cudaStream_t stream_ = nullptr;
};

template <typename Task>
void launch(void (*kernel)(Task), uint32_t ctas, uint32_t warps, const Stream& stream,
            const Task& task) {
  mep::device::launch_kernel(kernel, ctas, warps * kLanes, 0, stream.get(), task);
  cuda(cudaGetLastError());
}

// A queue shares these with the NIC beside its ring, each on a line of its own.
struct QueueWords {
  CompletionEntry completion;
  alignas(64) DoorbellRecord record;
  alignas(64) uint64_t doorbell;
};

struct QueueShape {
  uint32_t queues = 1;
  uint32_t entries = 16;
  uint64_t first = 0;
};

// Outlives the NIC that serves them.
class Queues {
 public:
  explicit Queues(const QueueShape& shape)
      : shape_(shape),
        rings_(size_t{shape.queues} * shape.entries),
        words_(shape.queues),
        ready_(size_t{shape.queues} * shape.entries),
        on_gpu_(shape.queues) {
    std::vector<Queue> queues(shape.queues);
    for (uint32_t q = 0; q < shape.queues; ++q) {
      Queue& queue = queues[q];
      queue.ring = rings_.get() + size_t{q} * shape.entries;
      queue.ready = ready_.get() + size_t{q} * shape.entries;
      queue.record = &words_[q].record;
      queue.doorbell = &words_[q].doorbell;
      queue.queue_pair = kFirstQueuePair + q;
      queue.entries = shape.entries;
      make_empty(&queue, &words_[q].completion, shape.first);
    }
    cuda(cudaMemcpy(on_gpu_.get(), queues.data(), queues.size() * sizeof(Queue),
                    cudaMemcpyHostToDevice));
    cuda(cudaDeviceSynchronize());  // the streams do not wait for the copy
  }

  Queue* on_gpu() const { return on_gpu_.get(); }
  QueueWords* words() const { return words_.get(); }
  uint32_t count() const { return shape_.queues; }
  // While no kernel uses it.
  Queue read(uint32_t q) const {
    Queue queue;
    cuda(cudaMemcpy(&queue, on_gpu_.get() + q, sizeof queue, cudaMemcpyDeviceToHost));
    return queue;
  }
  QueueWiring wiring(uint32_t q, const Pinned<uint8_t>& source,
                     const Pinned<uint8_t>& target) const {
    QueueWiring wiring;
    wiring.ring = rings_.get() + size_t{q} * shape_.entries;
    wiring.entries = shape_.entries;
    wiring.completions = &words_[q].completion;
    wiring.record = &words_[q].record;
    wiring.doorbell = &words_[q].doorbell;
    wiring.queue_pair = kFirstQueuePair + q;
    wiring.first = shape_.first;
    wiring.local = {{kLocalKey, reinterpret_cast<uintptr_t>(source.get()), source.bytes(),
                     reinterpret_cast<std::byte*>(source.get()), false}};
    wiring.remote = {{kRemoteKey, kRemoteName, target.bytes(),
                      reinterpret_cast<uintptr_t>(target.get()), true, false}};
    return wiring;
  }
  void serve(SoftNic* nic, const Pinned<uint8_t>& source, const Pinned<uint8_t>& target,
             const QueueFaults& faults = {}) const {
    for (uint32_t q = 0; q < shape_.queues; ++q) {
      if (nic->add_queue(wiring(q, source, target), std::make_unique<MemoryExecutor>(), faults) !=
          MEP_SUCCESS) {
        give_up("the software NIC does not take a queue");
      }
    }
  }

 private:
  const QueueShape shape_;
  Pinned<Request> rings_;
  Pinned<QueueWords> words_;
  OnGpu<uint64_t> ready_;
  OnGpu<Queue> on_gpu_;
};

inline void start(SoftNic* nic) {
  if (nic->start() != MEP_SUCCESS) give_up("the software NIC does not start");
}

// --- Kernels ------------------------------------------------------------------------------------------

__device__ inline uint32_t warp_number() {
  return (blockIdx.x * blockDim.x + threadIdx.x) / kLanes;
}

// A warp waits until the word is `value` or more. False: the deadline has passed.
__device__ inline bool wait_signal(const uint64_t* word, uint64_t value, uint64_t deadline) {
  uint32_t seen = 0;
  if (SystemMemory::lane() == 0) {
    for (uint32_t polls = 1;; ++polls) {
      // Acquire: what was put before the signal.
      seen = mep::device::load_system_acquire(word) >= value ? 1 : 0;
      if (seen != 0) break;
      if (polls % SystemMemory::kPollsPerLook == 0 && SystemMemory::nanoseconds() > deadline) break;
      SystemMemory::pause(polls);
    }
  }
  const bool is_there = SystemMemory::from_first(seen) != 0;
  SystemMemory::meet();
  return is_there;
}

__device__ inline RemoteMemory remote_at(uint64_t offset) {
  return {kRemoteName + offset, kRemoteKey};
}

}  // namespace queue_test

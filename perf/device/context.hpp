// One rank's place on its GPU: a stream, memory, and how graphs are run and timed there. Several ranks
// of a process may share the GPU, so nothing is freed before the end: that would wait for the others.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "mep.h"

namespace mep::perf {

// Throws when a call of CUDA failed; `what` names the call.
void require_cuda(cudaError_t error, const char* what);

class DeviceContext {
 public:
  DeviceContext(mep_comm_t comm, int32_t device);
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  mep_comm_t comm() const { return comm_; }
  cudaStream_t stream() const { return stream_; }
  // Makes the GPU the calling thread's.
  void use() const;

  template <typename Type>
  Type* allocate(size_t count) {
    return static_cast<Type*>(allocate_bytes(count * sizeof(Type)));
  }
  // Everything that was allocated may be given out again.
  void recycle();
  // So many inputs of `bytes` (of all ranks together) that those of a graph do not stay in the L2.
  uint32_t rotation(double bytes) const;

  // In the order of the stream; host memory may be used again at once.
  void upload(void* to, const void* from, size_t bytes);
  void download(void* to, const void* from, size_t bytes);
  void fill(void* memory, uint8_t value, size_t bytes);
  // Waits for the stream; throws when an operation of the communicator failed.
  void synchronize();
  // Seconds of one run of the graph on this rank. The L2 is overwritten before, and all ranks begin
  // together.
  double time(cudaGraphExec_t graph);
  void launch(cudaGraphExec_t graph);

 private:
  struct Block {
    void* memory;
    size_t bytes;
    bool is_used;
  };
  void* allocate_bytes(size_t bytes);

  mep_comm_t comm_;
  int32_t device_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  std::vector<Block> blocks_;
  size_t l2_bytes_ = 0;
  void* flush_ = nullptr;  // twice the L2
};

// A graph of what a body enqueues on the stream.
class DeviceGraph {
 public:
  DeviceGraph() = default;
  template <typename Body>
  DeviceGraph(cudaStream_t stream, Body&& body) {
    begin(stream);
    body();
    end(stream);
  }
  cudaGraphExec_t get() const { return exec_.get(); }

 private:
  struct Destroy {
    void operator()(cudaGraphExec_t exec) const { (void)cudaGraphExecDestroy(exec); }
  };
  static void begin(cudaStream_t stream);
  void end(cudaStream_t stream);
  std::unique_ptr<CUgraphExec_st, Destroy> exec_;
};

}  // namespace mep::perf

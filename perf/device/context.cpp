#include "device/context.hpp"

#include <algorithm>
#include <string>

#include "device_side.hpp"
#include "error.hpp"

namespace mep::perf {

void require_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();
  throw PerfError(std::string(what) + ": " + cudaGetErrorString(error));
}

DeviceContext::DeviceContext(mep_comm_t comm, int32_t device) : comm_(comm), device_(device) {
  use();
  require_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  require_cuda(cudaEventCreate(&begin_), "cudaEventCreate");
  require_cuda(cudaEventCreate(&end_), "cudaEventCreate");
  int l2_bytes = 0;
  require_cuda(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device),
               "the size of the L2");
  l2_bytes_ = static_cast<size_t>(std::max(l2_bytes, 1 << 20));
  require_cuda(cudaMalloc(&flush_, 2 * l2_bytes_), "cudaMalloc");
}

// All ranks are done with the GPU, or have given up.
DeviceContext::~DeviceContext() {
  (void)cudaSetDevice(device_);
  for (const Block& block : blocks_) (void)cudaFree(block.memory);
  (void)cudaFree(flush_);
  if (begin_ != nullptr) (void)cudaEventDestroy(begin_);
  if (end_ != nullptr) (void)cudaEventDestroy(end_);
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
}

void DeviceContext::use() const {
  require_cuda(cudaSetDevice(device_), "cudaSetDevice");
}

void* DeviceContext::allocate_bytes(size_t bytes) {
  Block* best = nullptr;
  for (Block& block : blocks_) {
    if (block.is_used || block.bytes < bytes) continue;
    if (best == nullptr || block.bytes < best->bytes) best = &block;
  }
  if (best == nullptr) {
    void* memory = nullptr;
    bytes = std::max<size_t>(bytes, 256);
    require_cuda(cudaMalloc(&memory, bytes),
                 ("cudaMalloc of " + std::to_string(bytes) + " bytes").c_str());
    best = &blocks_.emplace_back(Block{memory, bytes, false});
  }
  best->is_used = true;
  return best->memory;
}

void DeviceContext::recycle() {
  for (Block& block : blocks_) block.is_used = false;
}

uint32_t DeviceContext::rotation(double bytes) const {
  const auto most = static_cast<double>(kDeviceOperations);
  if (bytes <= 0) return 1;
  return static_cast<uint32_t>(
      std::clamp(2 * static_cast<double>(l2_bytes_) / bytes + 2, 2.0, most));
}

void DeviceContext::upload(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  require_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "upload");
  require_cuda(cudaStreamSynchronize(stream_), "upload");
}

void DeviceContext::download(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  require_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "download");
  require_cuda(cudaStreamSynchronize(stream_), "download");
}

void DeviceContext::fill(void* memory, uint8_t value, size_t bytes) {
  if (bytes == 0) return;
  require_cuda(cudaMemsetAsync(memory, value, bytes, stream_), "cudaMemsetAsync");
}

void DeviceContext::synchronize() {
  require_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  require(mep_comm_async_result(comm_), "mep_comm_async_result");
}

void DeviceContext::launch(cudaGraphExec_t graph) {
  require_cuda(cudaGraphLaunch(graph, stream_), "cudaGraphLaunch");
}

// While the GPU overwrites the L2 all of this is enqueued, so that nothing waits for the host.
double DeviceContext::time(cudaGraphExec_t graph) {
  fill(flush_, 0, 2 * l2_bytes_);
  require(mep_barrier(comm_, stream_), "mep_barrier");
  require_cuda(cudaEventRecord(begin_, stream_), "cudaEventRecord");
  launch(graph);
  require_cuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
  synchronize();
  float milliseconds = 0;
  require_cuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
  return milliseconds / 1e3;
}

void DeviceGraph::begin(cudaStream_t stream) {
  require_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
}

void DeviceGraph::end(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  require_cuda(cudaStreamEndCapture(stream, &graph), "capture");
  cudaGraphExec_t exec = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&exec, graph, 0);
  (void)cudaGraphDestroy(graph);
  require_cuda(error, "cudaGraphInstantiate");
  exec_.reset(exec);
  require_cuda(cudaGraphUpload(exec, stream), "cudaGraphUpload");
  require_cuda(cudaStreamSynchronize(stream), "cudaGraphUpload");
}

}  // namespace mep::perf

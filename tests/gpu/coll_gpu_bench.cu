// How long stream collectives of ranks that share a GPU take: graphs of 50 operations back to back, the slowest rank counts, the
// median of 9 replays. Inputs of one size rotate through more memory than the L2 holds. Beside them
// what the same run measured: a copy on the device, an empty kernel, a one-way signal.
#include <algorithm>

#include "coll_oracle.hpp"
#include "coll_rig.hpp"

namespace gpu_test {
namespace {

constexpr int kOperations = 50;
constexpr size_t kRotation = size_t{256} << 20;

__global__ void empty() {}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Microseconds of one replay of each graph, all at once; the slowest.
double replay(const std::vector<cudaGraphExec_t>& execs, const std::vector<cudaStream_t>& streams) {
  std::vector<cudaEvent_t> begins(execs.size()), ends(execs.size());
  std::vector<double> times;
  for (size_t i = 0; i < execs.size(); ++i) {
    cuda(cudaEventCreate(&begins[i]));
    cuda(cudaEventCreate(&ends[i]));
    cuda(cudaGraphLaunch(execs[i], streams[i]));
  }
  cuda(cudaDeviceSynchronize());
  for (int round = 0; round < 9; ++round) {
    for (size_t i = 0; i < execs.size(); ++i) {
      cuda(cudaEventRecord(begins[i], streams[i]));
      cuda(cudaGraphLaunch(execs[i], streams[i]));
      cuda(cudaEventRecord(ends[i], streams[i]));
    }
    cuda(cudaDeviceSynchronize());
    float slowest = 0;
    for (size_t i = 0; i < execs.size(); ++i) {
      float ms = 0;
      // From the last begin, so that one rank's head start is not counted.
      cuda(cudaEventElapsedTime(&ms, begins[execs.size() - 1], ends[i]));
      slowest = std::max(slowest, ms);
    }
    times.push_back(slowest * 1e3);
  }
  for (size_t i = 0; i < execs.size(); ++i) {
    cuda(cudaEventDestroy(begins[i]));
    cuda(cudaEventDestroy(ends[i]));
  }
  return median(times);
}

template <typename Body>
cudaGraphExec_t capture(cudaStream_t stream, Body&& body) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  body();
  cuda(cudaStreamEndCapture(stream, &graph));
  cuda(cudaGraphInstantiate(&exec, graph, 0));
  cuda(cudaGraphUpload(exec, stream));
  cuda(cudaGraphDestroy(graph));
  return exec;
}

__global__ void copy_words(const uint4* from, uint4* to, size_t count) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    to[i] = from[i];
  }
}

// The better of the copy engine's and a kernel's.
double copy_bandwidth() {
  uint8_t *from = nullptr, *to = nullptr;
  const size_t bytes = size_t{2} << 30;
  cuda(cudaMalloc(&from, bytes));
  cuda(cudaMalloc(&to, bytes));
  cuda(cudaMemset(from, 0x5a, bytes));
  cudaStream_t stream = nullptr;
  cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const cudaGraphExec_t exec = capture(stream, [&] {
    for (int i = 0; i < 4; ++i) {
      cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
    }
  });
  const cudaGraphExec_t by_kernel = capture(stream, [&] {
    for (int i = 0; i < 4; ++i) {
      copy_words<<<132 * 16, 512, 0, stream>>>(reinterpret_cast<const uint4*>(from),
                                               reinterpret_cast<uint4*>(to), bytes / 16);
    }
  });
  const double us = std::min(replay({exec}, {stream}), replay({by_kernel}, {stream})) / 4;
  cuda(cudaGraphExecDestroy(exec));
  cuda(cudaGraphExecDestroy(by_kernel));
  cuda(cudaStreamDestroy(stream));
  cuda(cudaFree(from));
  cuda(cudaFree(to));
  return 2.0 * static_cast<double>(bytes) / us / 1e6;  // TB/s
}

double empty_kernel() {
  cudaStream_t stream = nullptr;
  cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const cudaGraphExec_t exec = capture(stream, [&] {
    for (int i = 0; i < kOperations; ++i) empty<<<1, 32, 0, stream>>>();
  });
  const double us = replay({exec}, {stream}) / kOperations;
  cuda(cudaGraphExecDestroy(exec));
  cuda(cudaStreamDestroy(stream));
  return us;
}

// bytes: of one block.
double measure(const Rig& rig, Collective kind, size_t bytes, const std::vector<uint8_t*>& sends,
               const std::vector<uint8_t*>& receives) {
  std::vector<cudaGraphExec_t> execs;
  std::vector<cudaStream_t> streams;
  const size_t blocks = std::max<size_t>(shares_of(kind, true, rig.ranks()).send, 1);
  const size_t span = std::max<size_t>(blocks * bytes, 4096);
  for (uint32_t rank = 0; rank < rig.ranks(); ++rank) {
    streams.push_back(rig.stream(rank));
    execs.push_back(capture(rig.stream(rank), [&] {
      size_t at = 0;
      for (int i = 0; i < kOperations; ++i) {
        CollCall call{};
        call.kind = kind;
        call.dtype = MEP_BFLOAT16;
        call.op = MEP_SUM;
        call.bytes = bytes;
        call.send = sends[rank] + at;
        call.receive = receives[rank];
        rig.launch(rank, call);
        at = at + 2 * span <= kRotation ? at + span : 0;
      }
    }));
  }
  const double us = replay(execs, streams) / kOperations;
  for (const cudaGraphExec_t exec : execs) cuda(cudaGraphExecDestroy(exec));
  return us;
}

void table(uint32_t ranks) {
  Rig rig(ranks, 20'000);
  std::vector<uint8_t*> sends(ranks), receives(ranks);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    cuda(cudaMalloc(&sends[rank], kRotation));
    cuda(cudaMalloc(&receives[rank], size_t{64} << 20));
    std::vector<uint8_t> bytes(1 << 20);
    std::mt19937_64 random(rank);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random()) & 0x3f;
    for (size_t at = 0; at < kRotation; at += bytes.size()) {
      cuda(cudaMemcpy(sends[rank] + at, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
    }
  }
  std::printf("bench %2u ranks: barrier %.2f us\n", ranks,
              measure(rig, Collective::k_barrier, 0, sends, receives));
  for (const size_t bytes : {size_t{1} << 10, size_t{16} << 10, size_t{64} << 10, size_t{256} << 10,
                             size_t{1} << 20, size_t{8} << 20, size_t{64} << 20}) {
    const double reduce = measure(rig, Collective::k_allreduce, bytes, sends, receives);
    std::printf("bench %2u ranks: %8zu KiB  allreduce bf16 %9.2f us", ranks, bytes >> 10, reduce);
    if (bytes * ranks <= size_t{64} << 20) {
      std::printf("  allgather %9.2f us  broadcast %9.2f us",
                  measure(rig, Collective::k_allgather, bytes, sends, receives),
                  measure(rig, Collective::k_broadcast, bytes, sends, receives));
    }
    std::printf("\n");
    if (bytes * ranks > size_t{64} << 20) continue;
    std::printf("bench %2u ranks: %8zu KiB each", ranks, bytes >> 10);
    for (const Collective kind : {Collective::k_reduce, Collective::k_gather, Collective::k_scatter,
                                  Collective::k_reduce_scatter, Collective::k_alltoall}) {
      std::printf("  %s %9.2f us", mep::name_of(kind), measure(rig, kind, bytes, sends, receives));
    }
    std::printf("\n");
  }
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    cuda(cudaFree(sends[rank]));
    cuda(cudaFree(receives[rank]));
  }
}

}  // namespace
}  // namespace gpu_test

int main() {
  using namespace gpu_test;
  (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  (void)setenv("CUDA_VISIBLE_DEVICES", "0", 0);  // its events are of one GPU
  (void)std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (!gpu_is_there()) return kSkipped;
  cuda(cudaSetDevice(0));
  std::printf("bench: device copy %.2f TB/s (read + written), empty kernel in a graph %.2f us\n",
              copy_bandwidth(), empty_kernel());
  for (const uint32_t ranks : {1u, 2u, 4u, 8u}) table(ranks);
  return 0;
}

// Asks two GPUs of this machine what they do with each other: one line a finding. Skipped where there is one GPU.
//
// Every kernel here ends by itself: waits have a deadline on the GPU's own clock.
#include <string>

#include "gpu_check.hpp"

namespace gpu_test {
namespace {

constexpr uint64_t kWaitNs = 3'000'000'000;
constexpr int kRounds = 2000;
constexpr size_t kCopyBytes = size_t{1} << 30;

void finding(const char* question, const std::string& answer) {
  std::printf("%-72s %s\n", question, answer.c_str());
}

__device__ uint64_t gpu_time_ns() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

// Half of a ping between two GPUs: waits for a word in its own memory, writes one in the other's, both as
// the library does.
__global__ void ping_across(unsigned* far, const unsigned* near, bool begins, unsigned* late,
                            uint64_t* ns) {
  const uint64_t begin = gpu_time_ns();
  for (unsigned i = 1; i <= static_cast<unsigned>(kRounds); ++i) {
    if (begins) asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(far), "r"(i) : "memory");
    unsigned seen = 0;
    while (seen != i) {
      asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(near) : "memory");
      if (gpu_time_ns() - begin < kWaitNs) continue;
      *late = 1;
      return;
    }
    asm volatile("fence.acq_rel.sys;" ::: "memory");
    if (!begins) asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(far), "r"(i) : "memory");
  }
  *ns = (gpu_time_ns() - begin) / (2 * uint64_t{kRounds});
}

// GPUs 0 and 1, with access to each other's memory.
struct Pair {
  unsigned* words[2] = {};
  cudaStream_t streams[2] = {};

  Pair() {
    for (const int gpu : {0, 1}) {
      cuda(cudaSetDevice(gpu));
      cuda(cudaDeviceEnablePeerAccess(1 - gpu, 0));
      cuda(cudaMalloc(&words[gpu], 4096));
      cuda(cudaMemset(words[gpu], 0, 4096));
      cuda(cudaStreamCreateWithFlags(&streams[gpu], cudaStreamNonBlocking));
      cudaFuncAttributes attributes{};
      cuda(cudaFuncGetAttributes(&attributes, ping_across));
      cuda(cudaDeviceSynchronize());
    }
  }
  ~Pair() {
    for (const int gpu : {0, 1}) {
      (void)cudaStreamDestroy(streams[gpu]);
      (void)cudaFree(words[gpu]);
    }
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
};

void ask_signal(const Pair& pair) {
  uint64_t* ns = nullptr;
  cuda(cudaMallocHost(&ns, 2 * sizeof *ns));
  for (const int gpu : {1, 0}) {
    cuda(cudaSetDevice(gpu));
    ping_across<<<1, 1, 0, pair.streams[gpu]>>>(pair.words[1 - gpu], pair.words[gpu], gpu == 0,
                                                pair.words[gpu] + 512, ns + gpu);
    cuda(cudaGetLastError());
  }
  synchronize_all();
  unsigned late[2] = {};
  for (const int gpu : {0, 1}) {
    cuda(cudaMemcpy(&late[gpu], pair.words[gpu] + 512, sizeof late[gpu], cudaMemcpyDefault));
  }
  GPU_CHECK(late[0] + late[1] == 0, "a signal did not come");
  finding("one-way signal between GPUs 0 and 1, into the waiting GPU's memory",
          std::to_string(*ns) + " ns");
  cuda(cudaFreeHost(ns));
}

void ask_copy(const Pair& pair) {
  void* memory[2] = {};
  for (const int gpu : {0, 1}) {
    cuda(cudaSetDevice(gpu));
    cuda(cudaMalloc(&memory[gpu], kCopyBytes));
    cuda(cudaMemset(memory[gpu], gpu, kCopyBytes));
    cuda(cudaDeviceSynchronize());
  }
  cuda(cudaSetDevice(0));
  cudaEvent_t begin, end;
  cuda(cudaEventCreate(&begin));
  cuda(cudaEventCreate(&end));
  float least_ms = 1e9f;
  for (int trial = 0; trial < 5; ++trial) {
    cuda(cudaEventRecord(begin, pair.streams[0]));
    cuda(cudaMemcpyPeerAsync(memory[1], 1, memory[0], 0, kCopyBytes, pair.streams[0]));
    cuda(cudaEventRecord(end, pair.streams[0]));
    cuda(cudaStreamSynchronize(pair.streams[0]));
    float ms = 0;
    cuda(cudaEventElapsedTime(&ms, begin, end));
    if (ms < least_ms) least_ms = ms;
  }
  char text[64];
  (void)std::snprintf(text, sizeof text, "%.0f GB/s",
                      static_cast<double>(kCopyBytes) / static_cast<double>(least_ms) / 1e6);
  finding("cudaMemcpyPeer of 1 GiB from GPU 0 to GPU 1, the best of 5", text);
  for (void* each : memory) cuda(cudaFree(each));
}

}  // namespace
}  // namespace gpu_test

int main() {
  using namespace gpu_test;
  if (gpu_count() < 2) {
    std::printf("there are not two GPUs: skipped\n");
    return kSkipped;
  }
  int reaches[2] = {};
  cuda(cudaDeviceCanAccessPeer(&reaches[0], 0, 1));
  cuda(cudaDeviceCanAccessPeer(&reaches[1], 1, 0));
  const bool mapped = reaches[0] != 0 && reaches[1] != 0;
  finding("GPUs 0 and 1 reach each other's memory", mapped ? "yes" : "no");
  if (!mapped) return 0;
  int atomics = 0;
  cuda(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, 0, 1));
  finding("atomics between GPUs 0 and 1 are native", atomics != 0 ? "yes" : "no");
  const Pair pair;
  ask_signal(pair);
  ask_copy(pair);
  return failure_count() == 0 ? 0 : 1;
}

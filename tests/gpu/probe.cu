// Asks this GPU and driver for what the stream operations rest on. It prints one line a finding and
// fails only when nothing can be asked; the choices made from one GPU's answers are in docs/measurements/one-h200.md.
//
// Every kernel here ends by itself: waits have a deadline on the GPU's own clock.
#include <cuda.h>
#include <cuda_runtime.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kSkipped = 77;
constexpr uint64_t kWaitNs = 300'000'000;

void finding(const char* question, const std::string& answer) {
  std::printf("%-72s %s\n", question, answer.c_str());
  (void)std::fflush(stdout);
}

bool works(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return true;
  finding(what, std::string("FAILED: ") + cudaGetErrorString(error));
  (void)cudaGetLastError();
  return false;
}

__device__ uint64_t gpu_time_ns() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

// Counts in, then waits until `expected` blocks have: out[block] says whether they did.
__global__ void meet(unsigned* arrived, unsigned expected, unsigned* met, uint64_t wait_ns) {
  if (threadIdx.x != 0) return;
  atomicAdd_system(arrived, 1u);
  const uint64_t end = gpu_time_ns() + wait_ns;
  while (atomicAdd_system(arrived, 0u) < expected) {
    if (gpu_time_ns() > end) return;
  }
  atomicAdd_system(met, 1u);
}

__global__ void spin_for(uint64_t wait_ns, const volatile unsigned* stop) {
  const uint64_t end = gpu_time_ns() + wait_ns;
  while (gpu_time_ns() < end && *stop == 0) {
  }
}

// Never launched before the question about lazy loading.
__global__ void first_use(unsigned* word) {
  atomicAdd(word, 7u);
}

__global__ void empty() {}

// Adds up what is in `memory` again and again, and counts the rounds.
__global__ void read_for(const volatile unsigned* memory, size_t words, uint64_t wait_ns,
                         volatile unsigned* rounds) {
  const uint64_t end = gpu_time_ns() + wait_ns;
  unsigned sum = 0;
  while (gpu_time_ns() < end) {
    for (size_t i = threadIdx.x; i < words; i += blockDim.x) sum += memory[i];
    if (threadIdx.x == 0) {
      *rounds = *rounds + 1;
      __threadfence_system();
    }
  }
  if (sum == 1) *rounds = 0;
}

__global__ void host_word_latency(volatile uint64_t* host, uint64_t* ns, int rounds) {
  uint64_t value = 0;
  const uint64_t begin = gpu_time_ns();
  for (int i = 0; i < rounds; ++i) value += *host;
  *ns = (gpu_time_ns() - begin) / static_cast<uint64_t>(rounds) + (value & 0);
}

// Two blocks throw a word to and fro; the one-way time.
__global__ void ping(volatile unsigned* words, int rounds, uint64_t* ns) {
  const unsigned me = blockIdx.x;
  const uint64_t begin = gpu_time_ns();
  for (int i = 1; i <= rounds; ++i) {
    if (me == 0) {
      words[0] = static_cast<unsigned>(i);
      while (words[64] != static_cast<unsigned>(i) && gpu_time_ns() - begin < kWaitNs) {
      }
    } else {
      while (words[0] != static_cast<unsigned>(i) && gpu_time_ns() - begin < kWaitNs) {
      }
      words[64] = static_cast<unsigned>(i);
    }
  }
  if (me == 0) *ns = (gpu_time_ns() - begin) / (2 * static_cast<uint64_t>(rounds));
}

// How many of `streams` one-block kernels, each in a stream of its own, meet.
unsigned meet_in_streams(int streams, bool cooperative, bool threads) {
  unsigned* words = nullptr;
  if (!works(cudaMalloc(&words, 64), "memory")) return 0;
  (void)cudaMemset(words, 0, 64);
  (void)cudaDeviceSynchronize();
  std::vector<cudaStream_t> all(static_cast<size_t>(streams));
  for (cudaStream_t& stream : all) {
    (void)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  }
  const auto launch = [&](cudaStream_t stream) {
    unsigned expected = static_cast<unsigned>(streams);
    unsigned* met = words + 1;
    uint64_t wait = kWaitNs;
    if (cooperative) {
      void* args[] = {&words, &expected, &met, &wait};
      (void)cudaLaunchCooperativeKernel(reinterpret_cast<void*>(meet), dim3(1), dim3(32), args, 0,
                                        stream);
    } else {
      meet<<<1, 32, 0, stream>>>(words, expected, met, wait);
    }
  };
  std::vector<std::thread> launchers;
  for (cudaStream_t stream : all) {
    if (threads) {
      launchers.emplace_back([&, stream] {
        (void)cudaSetDevice(0);
        launch(stream);
      });
    } else {
      launch(stream);
    }
  }
  for (std::thread& launcher : launchers) launcher.join();
  (void)cudaDeviceSynchronize();
  unsigned result[2] = {};
  works(cudaMemcpy(result, words, sizeof result, cudaMemcpyDeviceToHost), "copy");
  for (cudaStream_t stream : all) (void)cudaStreamDestroy(stream);
  (void)cudaFree(words);
  return result[1];
}

void ask_streams() {
  for (const bool cooperative : {false, true}) {
    for (const bool threads : {false, true}) {
      const unsigned met = meet_in_streams(2, cooperative, threads);
      std::string question = "kernels of two streams run together";
      question += cooperative ? ", cooperative" : ", ordinary";
      question += threads ? ", launched by two threads" : ", launched by one thread";
      finding(question.c_str(), met == 2 ? "yes" : "no");
    }
  }
  std::string counts;
  int most = 0;
  for (const int streams : {4, 8, 9, 16, 24, 32, 33, 48, 64, 100, 128}) {
    const unsigned met = meet_in_streams(streams, false, false);
    counts += " " + std::to_string(streams) + ":" + std::to_string(met);
    if (met == static_cast<unsigned>(streams)) most = streams;
  }
  const char* connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  finding((std::string("streams whose one-block kernels all meet, CUDA_DEVICE_MAX_CONNECTIONS ") +
           (connections == nullptr ? "unset" : connections))
              .c_str(),
          "up to " + std::to_string(most) + " (asked:met" + counts + ")");
}

void ask_lazy_loading() {
  unsigned* stop = nullptr;
  unsigned* word = nullptr;
  (void)cudaHostAlloc(&stop, 64, cudaHostAllocMapped);
  (void)cudaMalloc(&word, 64);
  *stop = 0;
  cudaStream_t a, b;
  (void)cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
  (void)cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
  spin_for<<<1, 1, 0, a>>>(1, stop);  // loads it
  (void)cudaDeviceSynchronize();
  spin_for<<<1, 1, 0, a>>>(kWaitNs, stop);
  timespec begin{}, end{};
  (void)clock_gettime(CLOCK_MONOTONIC, &begin);
  first_use<<<1, 1, 0, b>>>(word);
  (void)clock_gettime(CLOCK_MONOTONIC, &end);
  const double launch_ms = static_cast<double>(end.tv_sec - begin.tv_sec) * 1e3 +
                           static_cast<double>(end.tv_nsec - begin.tv_nsec) / 1e6;
  (void)cudaStreamSynchronize(b);
  (void)clock_gettime(CLOCK_MONOTONIC, &end);
  const double done_ms = static_cast<double>(end.tv_sec - begin.tv_sec) * 1e3 +
                         static_cast<double>(end.tv_nsec - begin.tv_nsec) / 1e6;
  *static_cast<volatile unsigned*>(stop) = 1;
  (void)cudaDeviceSynchronize();
  char text[160];
  (void)std::snprintf(text, sizeof text, "launch call %.2f ms, done after %.2f ms: %s", launch_ms,
                      done_ms, done_ms > 200 ? "it WAITS" : "it does not wait");
  const char* mode = std::getenv("CUDA_MODULE_LOADING");
  finding((std::string("a kernel's first launch beside a spinning kernel (loading ") +
           (mode == nullptr ? "default" : mode) + ")")
              .c_str(),
          text);
  // Other calls beside a spinning kernel.
  *stop = 0;
  spin_for<<<1, 1, 0, a>>>(kWaitNs, stop);
  const auto timed = [&](const char* name, auto&& body) {
    timespec t0{}, t1{};
    (void)clock_gettime(CLOCK_MONOTONIC, &t0);
    body();
    (void)clock_gettime(CLOCK_MONOTONIC, &t1);
    const double ms = static_cast<double>(t1.tv_sec - t0.tv_sec) * 1e3 +
                      static_cast<double>(t1.tv_nsec - t0.tv_nsec) / 1e6;
    char line[96];
    (void)std::snprintf(line, sizeof line, "%.2f ms%s", ms, ms > 100 ? ": it WAITS" : "");
    finding((std::string("beside a spinning kernel: ") + name).c_str(), line);
  };
  void* memory = nullptr;
  void* pinned = nullptr;
  timed("cudaMalloc", [&] { (void)cudaMalloc(&memory, 1 << 20); });
  timed("cudaHostAlloc", [&] { (void)cudaHostAlloc(&pinned, 1 << 20, cudaHostAllocMapped); });
  timed("cudaMemsetAsync in another stream", [&] {
    (void)cudaMemsetAsync(memory, 0, 1 << 20, b);
    (void)cudaStreamSynchronize(b);
  });
  *stop = 0;
  timed("cudaFree", [&] { (void)cudaFree(memory); });
  *static_cast<volatile unsigned*>(stop) = 1;
  (void)cudaDeviceSynchronize();
}

void ask_latencies() {
  uint64_t* host = nullptr;
  uint64_t* ns = nullptr;
  unsigned* words = nullptr;
  (void)cudaHostAlloc(&host, 64, cudaHostAllocMapped);
  (void)cudaMallocHost(&ns, 64);
  (void)cudaMalloc(&words, 4096);
  (void)cudaMemset(words, 0, 4096);
  *host = 0;
  host_word_latency<<<1, 1>>>(host, ns, 1000);
  if (!works(cudaDeviceSynchronize(), "host word")) return;
  finding("the GPU reads a word of pinned host memory", std::to_string(*ns) + " ns");
  ping<<<2, 1>>>(words, 1000, ns);
  if (!works(cudaDeviceSynchronize(), "ping")) return;
  finding("one-way signal between two blocks through device memory", std::to_string(*ns) + " ns");
  cudaStream_t stream;
  (void)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  (void)cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  for (int i = 0; i < 100; ++i) empty<<<1, 32, 0, stream>>>();
  (void)cudaStreamEndCapture(stream, &graph);
  (void)cudaGraphInstantiate(&exec, graph, 0);
  (void)cudaGraphLaunch(exec, stream);
  (void)cudaStreamSynchronize(stream);
  cudaEvent_t begin, end;
  (void)cudaEventCreate(&begin);
  (void)cudaEventCreate(&end);
  (void)cudaEventRecord(begin, stream);
  (void)cudaGraphLaunch(exec, stream);
  (void)cudaEventRecord(end, stream);
  (void)cudaStreamSynchronize(stream);
  float ms = 0;
  (void)cudaEventElapsedTime(&ms, begin, end);
  char text[64];
  (void)std::snprintf(text, sizeof text, "%.2f us", static_cast<double>(ms) * 10);
  finding("an empty kernel in a graph of 100", text);
}

// --- Two processes --------------------------------------------------------------------------------

constexpr size_t kShareBytes = 8u << 20;

bool send_fd(int socket, int fd) {
  char byte = 'f';
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  return sendmsg(socket, &message, 0) == 1;
}

int receive_fd(int socket) {
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, 0) != 1) return -1;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return -1;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

// Driver calls without linking libcuda.
template <typename Function>
Function driver(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult status{};
  (void)cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &status);
  return reinterpret_cast<Function>(function);
}
#define DRIVER(name) driver<decltype(&name)>(#name)

CUmemAllocationProp allocation_kind() {
  CUmemAllocationProp kind{};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  kind.location.id = 0;
  return kind;
}

void* map_allocation(CUmemGenericAllocationHandle handle) {
  CUdeviceptr address = 0;
  if (DRIVER(cuMemAddressReserve)(&address, kShareBytes, 0, 0, 0) != CUDA_SUCCESS) return nullptr;
  if (DRIVER(cuMemMap)(address, kShareBytes, 0, handle, 0) != CUDA_SUCCESS) return nullptr;
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = 0;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (DRIVER(cuMemSetAccess)(address, kShareBytes, &access, 1) != CUDA_SUCCESS) return nullptr;
  return reinterpret_cast<void*>(address);
}

// Until read_for() runs; false: it does not within 10 s.
bool wait_for_rounds(const volatile unsigned* rounds) {
  timespec begin{}, now{};
  (void)clock_gettime(CLOCK_MONOTONIC, &begin);
  do {
    if (*rounds != 0) return true;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
  } while (now.tv_sec - begin.tv_sec < 10);
  return false;
}

// The process that owns the memory: shares it, then works on it until it is killed.
[[noreturn]] void owner_process(int socket, bool by_fd) {
  (void)cudaSetDevice(0);
  (void)cudaFree(nullptr);
  void* memory = nullptr;
  if (by_fd) {
    const CUmemAllocationProp kind = allocation_kind();
    CUmemGenericAllocationHandle handle{};
    int fd = -1;
    const bool made = DRIVER(cuMemCreate)(&handle, kShareBytes, &kind, 0) == CUDA_SUCCESS &&
                      DRIVER(cuMemExportToShareableHandle)(
                          &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS;
    memory = made ? map_allocation(handle) : nullptr;
    if (memory == nullptr || !send_fd(socket, fd)) _exit(3);
  } else {
    cudaIpcMemHandle_t handle{};
    if (cudaMalloc(&memory, kShareBytes) != cudaSuccess ||
        cudaIpcGetMemHandle(&handle, memory) != cudaSuccess ||
        write(socket, &handle, sizeof handle) != sizeof handle) {
      _exit(3);
    }
  }
  (void)cudaMemset(memory, 1, kShareBytes);
  (void)cudaDeviceSynchronize();
  unsigned* rounds = nullptr;
  (void)cudaHostAlloc(&rounds, 64, cudaHostAllocMapped);
  *rounds = 0;
  // Busy in a kernel of its own when the signal comes.
  read_for<<<1, 128>>>(static_cast<unsigned*>(memory), kShareBytes / 4, 20'000'000'000u, rounds);
  if (!wait_for_rounds(rounds)) _exit(3);
  char byte = 0;
  if (write(socket, &byte, 1) != 1) _exit(3);
  (void)cudaDeviceSynchronize();
  _exit(0);
}

void ask_killed_owner(const char* program, bool by_fd) {
  const std::string name = by_fd ? "cuMemCreate + descriptor" : "CUDA IPC";
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return;
  const pid_t child = fork();
  if (child == 0) {
    (void)dup2(pair[1], 100);
    (void)execl(program, program, by_fd ? "--own-fd" : "--own-ipc", nullptr);
    _exit(4);
  }
  (void)close(pair[1]);
  const timeval limit{20, 0};
  (void)setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  void* memory = nullptr;
  bool open = false;
  if (by_fd) {
    int fd = receive_fd(pair[0]);
    CUmemGenericAllocationHandle handle{};
    open = fd >= 0 &&
           DRIVER(cuMemImportFromShareableHandle)(
               &handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS &&
           (memory = map_allocation(handle)) != nullptr;
  } else {
    cudaIpcMemHandle_t handle{};
    open = read(pair[0], &handle, sizeof handle) == sizeof handle &&
           cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
  }
  char byte = 0;
  if (!open || read(pair[0], &byte, 1) != 1) {
    finding((name + " between two processes").c_str(), "FAILED");
    (void)cudaGetLastError();
    (void)kill(child, SIGKILL);
    (void)waitpid(child, nullptr, 0);
    return;
  }
  finding((name + " between two processes").c_str(), "works");
  unsigned* rounds = nullptr;
  (void)cudaHostAlloc(&rounds, 64, cudaHostAllocMapped);
  *rounds = 0;
  // Reads the owner's memory for 1.5 s; the owner dies in the middle of both kernels.
  read_for<<<1, 128>>>(static_cast<unsigned*>(memory), kShareBytes / 4, 1'500'000'000, rounds);
  if (!wait_for_rounds(rounds)) finding((name + ": the survivor's kernel").c_str(), "did not run");
  const unsigned before = *static_cast<volatile unsigned*>(rounds);
  (void)kill(child, SIGKILL);
  (void)waitpid(child, nullptr, 0);
  const cudaError_t error = cudaDeviceSynchronize();
  const unsigned after = *static_cast<volatile unsigned*>(rounds);
  finding((name + ": the survivor's kernel when the owner is killed in mid-kernel").c_str(),
          error == cudaSuccess ? "goes on, no error (rounds before " + std::to_string(before) +
                                     ", in all " + std::to_string(after) + ")"
                               : std::string("error: ") + cudaGetErrorString(error));
  unsigned value = 0;
  const cudaError_t copied = cudaMemcpy(&value, memory, sizeof value, cudaMemcpyDeviceToHost);
  finding((name + ": the dead owner's bytes afterwards").c_str(),
          copied == cudaSuccess ? (value == 0x01010101u ? "as they were" : "changed")
                                : std::string("error: ") + cudaGetErrorString(copied));
  unsigned* fresh = nullptr;
  const bool alive = cudaMalloc(&fresh, 64) == cudaSuccess;
  first_use<<<1, 1>>>(fresh);
  finding((name + ": new work of the survivor").c_str(),
          alive && cudaDeviceSynchronize() == cudaSuccess ? "runs" : "FAILS: sticky error");
  (void)close(pair[0]);
}

// Do kernels of two processes advance together, without MPS?
void ask_processes(const char* program) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return;
  const pid_t child = fork();
  if (child == 0) {
    (void)dup2(pair[1], 100);
    (void)execl(program, program, "--own-fd", nullptr);
    _exit(4);
  }
  (void)close(pair[1]);
  int fd = receive_fd(pair[0]);
  char byte = 0;
  if (fd < 0 || read(pair[0], &byte, 1) != 1) {
    finding("kernels of two processes", "FAILED to start");
    return;
  }
  (void)close(fd);
  // The child's kernel runs for 20 s. How long do 20 short kernels of this process take beside it?
  timespec begin{}, end{};
  (void)clock_gettime(CLOCK_MONOTONIC, &begin);
  for (int i = 0; i < 20; ++i) {
    empty<<<1, 32>>>();
    (void)cudaDeviceSynchronize();
  }
  (void)clock_gettime(CLOCK_MONOTONIC, &end);
  const double ms = (static_cast<double>(end.tv_sec - begin.tv_sec) * 1e3 +
                     static_cast<double>(end.tv_nsec - begin.tv_nsec) / 1e6) /
                    20;
  char text[128];
  (void)std::snprintf(text, sizeof text, "%.2f ms each: %s", ms,
                      ms < 0.2 ? "together" : "time slices");
  finding("a short kernel beside another process that spins, without MPS", text);
  (void)kill(child, SIGKILL);
  (void)waitpid(child, nullptr, 0);
  (void)close(pair[0]);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--own-fd") == 0) owner_process(100, true);
  if (argc > 1 && std::strcmp(argv[1], "--own-ipc") == 0) owner_process(100, false);
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("probe: no usable GPU, skipped\n");
    return kSkipped;
  }
  cudaDeviceProp about{};
  if (!works(cudaGetDeviceProperties(&about, 0), "properties")) return 1;
  int driver_version = 0;
  (void)cudaDriverGetVersion(&driver_version);
  finding("GPU", std::string(about.name) + ", " + std::to_string(about.multiProcessorCount) +
                     " multiprocessors, " + std::to_string(about.totalGlobalMem >> 20) +
                     " MiB, driver API " + std::to_string(driver_version));
  int value = 0;
  (void)cudaDeviceGetAttribute(&value, cudaDevAttrHostNativeAtomicSupported, 0);
  finding("atomics on host memory are native", value != 0 ? "yes" : "no");
  (void)cudaDeviceGetAttribute(&value, cudaDevAttrComputePreemptionSupported, 0);
  finding("compute preemption", value != 0 ? "yes" : "no");
  ask_latencies();
  ask_lazy_loading();
  ask_streams();
  if (argc > 1 && std::strcmp(argv[1], "--streams-only") == 0) return 0;
  ask_processes(argv[0]);
  ask_killed_owner(argv[0], true);
  ask_killed_owner(argv[0], false);
  std::printf("probe: done\n");
  return 0;
}

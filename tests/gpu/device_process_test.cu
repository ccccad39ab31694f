// Communicators on one GPU whose ranks are processes: right, if not fast (without MPS they take turns).
// The last rank is killed while its kernel runs; the others are told and go on with their old graphs.
// Started without arguments it starts the ranks.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "coll_rig.hpp"

namespace gpu_test {
namespace {

constexpr size_t kCount = 20'000;

__global__ void busy_for(uint64_t ns) {
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < ns);
}

void expect_sum(const uint32_t* receive, uint32_t members, const char* where) {
  uint32_t sum = 0;
  for (uint32_t rank = 0; rank < members; ++rank) sum += 1u << (3 * rank);
  size_t wrong = 0;
  for (size_t i = 0; i < kCount; ++i) wrong += receive[i] != sum ? 1 : 0;
  GPU_CHECK(wrong == 0, "%s: %zu values are not %u, the first is %u", where, wrong, sum,
            receive[0]);
}

int rank_main() {
  mep_comm_config_t config;
  mep_comm_config_defaults(&config);
  config.flags = MEP_COMM_SET_DEVICE;
  config.timeout_ms = 20'000;
  mep_comm_t comm = nullptr;
  if (mep_comm_init(&config, &comm) != MEP_SUCCESS) {
    std::printf("FAILED: mep_comm_init: %s\n", mep_last_error());
    return 1;
  }
  int32_t rank = 0, size = 0;
  (void)mep_comm_rank(comm, &rank);
  (void)mep_comm_size(comm, &size);
  uint32_t *send = nullptr, *receive = nullptr;
  cuda(cudaMallocHost(&send, kCount * 4));
  cuda(cudaMallocHost(&receive, kCount * 4));
  for (size_t i = 0; i < kCount; ++i) send[i] = 1u << (3 * rank);
  cudaStream_t stream = nullptr;
  cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  mep_ok(mep_allreduce(send, receive, kCount, MEP_UINT32, MEP_SUM, comm, stream));
  cuda(cudaStreamEndCapture(stream, &graph));
  cuda(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 20; ++i) {
    std::memset(receive, 0xa5, kCount * 4);
    cuda(cudaGraphLaunch(exec, stream));
    cuda(cudaStreamSynchronize(stream));
    expect_sum(receive, static_cast<uint32_t>(size), "together");
  }
  if (rank == size - 1) {
    busy_for<<<1, 1, 0, stream>>>(5'000'000'000);
    (void)usleep(200'000);
    (void)kill(getpid(), SIGKILL);
  }
  const double begin = now_s();
  cuda(cudaGraphLaunch(exec, stream));
  cuda(cudaStreamSynchronize(stream));
  const mep_result_t told = mep_comm_async_result(comm);
  GPU_CHECK(told == MEP_ERR_PEER_FAILED, "rank %d: %s: %s", rank, mep_result_string(told),
            mep_last_error());
  const double took = now_s() - begin;
  for (int i = 0; i < 20; ++i) {
    std::memset(receive, 0xa5, kCount * 4);
    cuda(cudaGraphLaunch(exec, stream));
    cuda(cudaStreamSynchronize(stream));
    expect_sum(receive, static_cast<uint32_t>(size - 1), "without the killed rank");
  }
  GPU_CHECK(mep_comm_async_result(comm) == MEP_SUCCESS, "later: %s", mep_last_error());
  cuda(cudaDeviceSynchronize());
  const mep_result_t left = mep_comm_destroy(comm);
  GPU_CHECK(left == MEP_SUCCESS, "destroy: %s", mep_last_error());
  if (rank == 0) {
    std::printf(
        "  %d processes: collectives; one killed in mid-kernel, told after %.0f ms, 20 replays "
        "of the old graph\n",
        size, took * 1e3);
  }
  return failure_count() == 0 ? 0 : 1;
}

int start(const char* program, int ranks) {
  std::vector<pid_t> children;
  (void)setenv("MEP_SIZE", std::to_string(ranks).c_str(), 1);
  (void)setenv("MEP_JOB", ("gpu" + std::to_string(getpid()) + "." + std::to_string(ranks)).c_str(),
               1);
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      (void)setenv("MEP_RANK", std::to_string(rank).c_str(), 1);
      (void)execl(program, program, "--rank", nullptr);
      _exit(2);
    }
    children.push_back(child);
  }
  int failed = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    int status = 0;
    (void)waitpid(children[static_cast<size_t>(rank)], &status, 0);
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    const bool good = rank == ranks - 1 ? killed : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!good) {
      std::printf("FAILED: rank %d of %d ended with status 0x%x\n", rank, ranks, status);
      failed = 1;
    }
  }
  return failed;
}

}  // namespace
}  // namespace gpu_test

int main(int argc, char** argv) {
  using namespace gpu_test;
  (void)std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc > 1 && std::strcmp(argv[1], "--rank") == 0) return rank_main();
  if (!gpu_is_there()) return kSkipped;
  int failed = 0;
  for (const int ranks : {2, 3, 8}) failed |= start(argv[0], ranks);
  std::printf(failed == 0 ? "device_process_test: passed\n" : "device_process_test: FAILED\n");
  return failed;
}

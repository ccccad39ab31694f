// Communicators on GPUs whose ranks are processes: right, if not fast where several have one GPU (without
// MPS they take turns). They split; the last rank is killed while its kernel runs; the others are told and
// go on with their old graphs. They call kinds that give ranks different things before and after.
// Started without arguments it starts the ranks.
#include <cuda.h>

#include <cstring>
#include <thread>

#include "abi_rig.hpp"

namespace gpu_test {
namespace {

constexpr size_t kCount = 20'000;

// members: a bitmap.
void expect_sum(const uint32_t* receive, uint32_t members, const char* where) {
  uint32_t sum = 0;
  for (uint32_t rank = 0; rank < 10; ++rank) {
    if ((members >> rank & 1) != 0) sum += 1u << (3 * rank);
  }
  size_t wrong = 0;
  for (size_t i = 0; i < kCount; ++i) wrong += receive[i] != sum ? 1 : 0;
  GPU_CHECK(wrong == 0, "%s: %zu values are not %u, the first is %u", where, wrong, sum,
            receive[0]);
}

// Ranks 0 and 3 of each four together, so that with two GPUs ranks of both are.
void splits(mep_comm_t comm, cudaStream_t stream, const uint32_t* send, uint32_t* receive) {
  const auto color_of = [](int32_t rank) { return rank % 4 == 0 || rank % 4 == 3 ? 0 : 1; };
  int32_t rank = 0, size = 0;
  (void)mep_comm_rank(comm, &rank);
  (void)mep_comm_size(comm, &size);
  uint32_t members = 0;
  for (int32_t other = 0; other < size; ++other) {
    if (color_of(other) == color_of(rank)) members |= 1u << other;
  }
  mep_comm_t half = nullptr;
  need(mep_comm_set_timeout(comm, 10'000), "mep_comm_set_timeout");
  need(mep_comm_split(comm, color_of(rank), 0, &half), "mep_comm_split");
  for (int i = 0; i < 3; ++i) {
    std::memset(receive, 0xa5, kCount * 4);
    need(mep_allreduce(send, receive, kCount, MEP_UINT32, MEP_SUM, half, stream), "mep_allreduce");
    cuda(cudaStreamSynchronize(stream));
    expect_sum(receive, members, "half of the processes");
  }
  need(mep_comm_destroy(half), "mep_comm_destroy of a half");
  need(mep_comm_set_timeout(comm, 20'000), "mep_comm_set_timeout");
}

// A number for each pair of ranks.
uint32_t pair_value(uint32_t from, uint32_t to) {
  return (from + 1) * 1000 + to;
}

// Reduce, gather, scatter, reduce_scatter and alltoall one after the other; each gets a part of `receive`. members: a
// bitmap. Its last rank is the root.
void kinds(mep_comm_t comm, cudaStream_t stream, uint32_t members, const char* where) {
  constexpr size_t kBlock = 3001;
  int32_t rank = 0, size = 0;
  (void)mep_comm_rank(comm, &rank);
  (void)mep_comm_size(comm, &size);
  const auto me = static_cast<uint32_t>(rank), ranks = static_cast<uint32_t>(size);
  const int32_t root = 31 - __builtin_clz(members);
  const size_t part = kBlock * ranks;
  uint32_t *send = nullptr, *receive = nullptr;
  cuda(cudaMallocHost(&send, part * 4));
  cuda(cudaMallocHost(&receive, 5 * part * 4));
  for (size_t i = 0; i < part; ++i) send[i] = pair_value(me, static_cast<uint32_t>(i / kBlock));
  std::memset(receive, 0xa5, 5 * part * 4);
  need(mep_reduce(send, receive, kBlock, MEP_UINT32, MEP_SUM, root, comm, stream), "mep_reduce");
  need(mep_gather(send, receive + part, kBlock, MEP_UINT32, root, comm, stream), "mep_gather");
  need(mep_scatter(send, receive + 2 * part, kBlock, MEP_UINT32, root, comm, stream),
       "mep_scatter");
  need(mep_reduce_scatter(send, receive + 3 * part, kBlock, MEP_UINT32, MEP_SUM, comm, stream),
       "mep_reduce_scatter");
  need(mep_alltoall(send, receive + 4 * part, kBlock, MEP_UINT32, comm, stream), "mep_alltoall");
  cuda(cudaStreamSynchronize(stream));
  uint32_t sum_of_first = 0, sum_of_mine = 0;
  for (uint32_t other = 0; other < ranks; ++other) {
    if ((members >> other & 1) == 0) continue;
    sum_of_first += pair_value(other, 0);
    sum_of_mine += pair_value(other, me);
  }
  for (uint32_t block = 0; block < ranks; ++block) {
    constexpr uint32_t kUntouched = 0xa5a5a5a5;
    const bool first = block == 0, is_root = rank == root, is_in = (members >> block & 1) != 0;
    const uint32_t right[] = {is_root && first ? sum_of_first : kUntouched,
                              is_root && is_in ? pair_value(block, 0) : kUntouched,
                              first ? pair_value(static_cast<uint32_t>(root), me) : kUntouched,
                              first ? sum_of_mine : kUntouched,
                              is_in ? pair_value(block, me) : kUntouched};
    for (size_t call = 0; call < 5; ++call) {
      const uint32_t* got = receive + call * part + block * kBlock;
      size_t wrong = 0;
      for (size_t i = 0; i < kBlock; ++i) wrong += got[i] != right[call] ? 1 : 0;
      GPU_CHECK(wrong == 0, "%s, rank %d: call %zu, block %u: %zu values are not %x, one is %x",
                where, rank, call, block, wrong, right[call], got[0]);
    }
  }
  cuda(cudaFreeHost(send));
  cuda(cudaFreeHost(receive));
}

// A context takes some 530 MiB of a GPU: this process has one on its rank's alone.
void expect_one_context(int32_t own) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult how{};
  cuda(cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &found, 12000,
                                        cudaEnableDefault, &how));
  const auto state = reinterpret_cast<decltype(&cuDevicePrimaryCtxGetState)>(found);
  for (int32_t gpu = 0; gpu < gpu_count(); ++gpu) {
    unsigned int flags = 0;
    int active = 0;
    (void)state(gpu, &flags, &active);
    GPU_CHECK((active != 0) == (gpu == own), "the process on GPU %d has %s context on GPU %d", own,
              active != 0 ? "a" : "no", gpu);
  }
}

int rank_main() {
  const mep_comm_t comm = open_own_comm();
  int32_t rank = 0, size = 0;
  (void)mep_comm_rank(comm, &rank);
  (void)mep_comm_size(comm, &size);
  const uint32_t all = (1u << size) - 1;
  uint32_t *send = nullptr, *receive = nullptr;
  cuda(cudaMallocHost(&send, kCount * 4));
  cuda(cudaMallocHost(&receive, kCount * 4));
  for (size_t i = 0; i < kCount; ++i) send[i] = 1u << (3 * rank);
  cudaStream_t stream = nullptr;
  cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  need(mep_allreduce(send, receive, kCount, MEP_UINT32, MEP_SUM, comm, stream), "mep_allreduce");
  cuda(cudaStreamEndCapture(stream, &graph));
  cuda(cudaGraphInstantiate(&exec, graph, 0));
  cuda(cudaGraphDestroy(graph));
  for (int i = 0; i < 20; ++i) {
    std::memset(receive, 0xa5, kCount * 4);
    cuda(cudaGraphLaunch(exec, stream));
    cuda(cudaStreamSynchronize(stream));
    expect_sum(receive, all, "together");
  }
  kinds(comm, stream, all, "together");
  // A thread whose device is GPU 0.
  std::thread([&] { need(mep_barrier(comm, stream), "mep_barrier"); }).join();
  splits(comm, stream, send, receive);
  if (rank == size - 1) {
    const Mark begun;
    mep::device::launch_kernel(busy_for, 1, 1, 0, stream, 5'000'000'000, begun.word());
    begun.wait();
    die_now();
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
    expect_sum(receive, all >> 1, "without the killed rank");
  }
  kinds(comm, stream, all >> 1, "without the killed rank");
  GPU_CHECK(mep_comm_async_result(comm) == MEP_SUCCESS, "later: %s", mep_last_error());
  cuda(cudaDeviceSynchronize());
  const mep_result_t left = mep_comm_destroy(comm);
  GPU_CHECK(left == MEP_SUCCESS, "destroy: %s", mep_last_error());
  expect_one_context(gpu_of(static_cast<uint32_t>(rank)));
  cuda(cudaGraphExecDestroy(exec));
  cuda(cudaStreamDestroy(stream));
  cuda(cudaFreeHost(send));
  cuda(cudaFreeHost(receive));
  if (rank == 0) {
    std::printf(
        "  %d processes: collectives, halves; one killed in mid-kernel, told after %.0f ms, 20 "
        "replays "
        "of the old graph\n",
        size, took * 1e3);
  }
  return failure_count() == 0 ? 0 : 1;
}

// The last rank dies before its kernel meets the others': the start fails on all, and names it.
int start_main() {
  const auto rank = static_cast<uint32_t>(std::atoi(std::getenv("MEP_RANK")));
  const auto last = static_cast<uint32_t>(std::atoi(std::getenv("MEP_SIZE")) - 1);
  if (rank == last) (void)setenv("MEP_FAILPOINT", "gpus meet=kill", 1);
  play_host();
  cuda(cudaSetDevice(gpu_of(rank)));
  const mep_comm_config_t config = comm_config(true, 20'000);
  mep_comm_t comm = nullptr;
  const mep_result_t started = mep_comm_init(&config, &comm);
  const std::string name = "rank " + std::to_string(last);
  GPU_CHECK(started == MEP_ERR_BOOTSTRAP && std::strstr(mep_last_error(), name.c_str()) != nullptr,
            "started without %s: %s, %s", name.c_str(), mep_result_string(started),
            mep_last_error());
  return failure_count() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace gpu_test

int main(int argc, char** argv) {
  using namespace gpu_test;
  (void)std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc > 1 && std::strcmp(argv[1], "--rank") == 0) return rank_main();
  if (argc > 1 && std::strcmp(argv[1], "--start") == 0) return start_main();
  if (!gpu_is_there()) return kSkipped;
  int failed = start_ranks(argv[0], 3, "gpus", {"--start"});
  std::printf("ranks are dealt to %d GPU(s)\n", gpu_count());
  for (const uint32_t ranks : {2u, 3u, 4u, 8u}) {
    failed |= start_ranks(argv[0], ranks, "gpu" + std::to_string(ranks) + ".", {"--rank"});
  }
  std::printf(failed == 0 ? "device_process_test: passed\n" : "device_process_test: FAILED\n");
  return failed;
}

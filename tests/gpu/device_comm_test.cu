// Communicators on a GPU through the C ABI: ranks as threads of this process, each with a stream. What
// is refused, what collectives give, and what happens when a rank aborts, with graphs captured before.
#include <thread>

#include "coll_oracle.hpp"
#include "coll_rig.hpp"

namespace gpu_test {
namespace {

constexpr size_t kCount = 20'000;

struct Rank {
  mep_comm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  uint32_t* send = nullptr;
  uint32_t* receive = nullptr;
};

std::vector<Rank> open_ranks(uint32_t count, uint32_t timeout_ms) {
  mep_comm_config_t config;
  mep_comm_config_defaults(&config);
  config.flags = MEP_COMM_SET_DEVICE;
  config.device = 0;
  config.timeout_ms = timeout_ms;
  config.heartbeat_ms = 20;
  std::vector<mep_comm_t> comms(count);
  const mep_result_t result = mep_comm_init_all(static_cast<int32_t>(count), &config, comms.data());
  if (result != MEP_SUCCESS) {
    std::printf("FAILED: mep_comm_init_all: %s: %s\n", mep_result_string(result), mep_last_error());
    std::exit(1);
  }
  std::vector<Rank> ranks(count);
  for (uint32_t i = 0; i < count; ++i) {
    ranks[i].comm = comms[i];
    cuda(cudaStreamCreateWithFlags(&ranks[i].stream, cudaStreamNonBlocking));
    cuda(cudaMallocHost(&ranks[i].send, kCount * 4));
    cuda(cudaMallocHost(&ranks[i].receive, kCount * 4 * count));
    for (size_t k = 0; k < kCount; ++k) ranks[i].send[k] = 1u << (3 * i);
  }
  return ranks;
}

// Ranks leave as threads do: each waits for nobody.
void close_ranks(std::vector<Rank>* ranks) {
  std::vector<std::thread> threads;
  for (Rank& rank : *ranks) {
    threads.emplace_back([&rank] {
      const mep_result_t result = mep_comm_destroy(rank.comm);
      GPU_CHECK(result == MEP_SUCCESS, "destroy: %s: %s", mep_result_string(result),
                mep_last_error());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (Rank& rank : *ranks) {
    cuda(cudaStreamDestroy(rank.stream));
    cuda(cudaFreeHost(rank.send));
    cuda(cudaFreeHost(rank.receive));
  }
}

void enqueue(const Rank& rank) {
  const mep_result_t result =
      mep_allreduce(rank.send, rank.receive, kCount, MEP_UINT32, MEP_SUM, rank.comm, rank.stream);
  GPU_CHECK(result == MEP_SUCCESS, "allreduce: %s", mep_last_error());
}

void expect_sum(const Rank& rank, uint64_t members, const char* where) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < 10; ++i) {
    if ((members >> i & 1) != 0) sum += 1u << (3 * i);
  }
  size_t wrong = 0;
  for (size_t k = 0; k < kCount; ++k) wrong += rank.receive[k] != sum ? 1 : 0;
  GPU_CHECK(wrong == 0, "%s: %zu values are not %u, the first is %u", where, wrong, sum,
            rank.receive[0]);
}

void refusals() {
  mep_comm_config_t config;
  mep_comm_config_defaults(&config);
  config.flags = MEP_COMM_SET_DEVICE;
  config.device = 999;
  mep_comm_t comms[2] = {};
  GPU_CHECK(mep_comm_init_all(2, &config, comms) == MEP_ERR_INVALID_ARGUMENT, "device 999: %s",
            mep_last_error());
  std::vector<Rank> ranks = open_ranks(2, 5000);
  GPU_CHECK(mep_barrier(ranks[0].comm, nullptr) == MEP_ERR_INVALID_ARGUMENT, "NULL stream");
  mep_request_t request = nullptr;
  GPU_CHECK(mep_ibarrier(ranks[0].comm, &request) == MEP_ERR_UNSUPPORTED, "nonblocking");
  GPU_CHECK(mep_allreduce(ranks[0].send, ranks[0].receive, 4, MEP_BOOL, MEP_SUM, ranks[0].comm,
                          ranks[0].stream) == MEP_ERR_UNSUPPORTED,
            "sum of bools");
  std::vector<uint32_t> pageable(4);
  int reads_all = 0;
  cuda(cudaDeviceGetAttribute(&reads_all, cudaDevAttrPageableMemoryAccess, 0));
  GPU_CHECK(
      reads_all != 0 || mep_allreduce(pageable.data(), ranks[0].receive, 4, MEP_UINT32, MEP_SUM,
                                      ranks[0].comm, ranks[0].stream) == MEP_ERR_INVALID_ARGUMENT,
      "ordinary host memory");
  GPU_CHECK(mep_comm_async_result(ranks[0].comm) == MEP_SUCCESS, "nothing has failed");
  close_ranks(&ranks);
  std::printf("  what is refused is refused\n");
}

void collectives(uint32_t count) {
  std::vector<Rank> ranks = open_ranks(count, 20'000);
  const uint64_t all = (uint64_t{1} << count) - 1;
  for (int round = 0; round < 20; ++round) {
    for (const Rank& rank : ranks) {
      std::memset(rank.receive, 0xa5, kCount * 4 * count);
      enqueue(rank);
    }
    cuda(cudaDeviceSynchronize());
    for (const Rank& rank : ranks) expect_sum(rank, all, "allreduce");
    for (const Rank& rank : ranks) {
      GPU_CHECK(mep_allgather(rank.send, rank.receive, kCount, MEP_UINT32, rank.comm,
                              rank.stream) == MEP_SUCCESS,
                "allgather: %s", mep_last_error());
    }
    cuda(cudaDeviceSynchronize());
    for (const Rank& rank : ranks) {
      for (uint32_t block = 0; block < count; ++block) {
        GPU_CHECK(rank.receive[block * kCount] == 1u << (3 * block) &&
                      rank.receive[block * kCount + kCount - 1] == 1u << (3 * block),
                  "allgather block %u", block);
      }
      GPU_CHECK(
          mep_broadcast(rank.send, rank.receive, kCount, MEP_UINT32,
                        static_cast<int32_t>(count - 1), rank.comm, rank.stream) == MEP_SUCCESS,
          "broadcast: %s", mep_last_error());
    }
    cuda(cudaDeviceSynchronize());
    for (const Rank& rank : ranks) expect_sum(rank, uint64_t{1} << (count - 1), "broadcast");
    for (const Rank& rank : ranks) {
      GPU_CHECK(mep_barrier(rank.comm, rank.stream) == MEP_SUCCESS, "barrier");
    }
    cuda(cudaDeviceSynchronize());
  }
  for (const Rank& rank : ranks) {
    GPU_CHECK(mep_comm_async_result(rank.comm) == MEP_SUCCESS, "failure: %s", mep_last_error());
  }
  close_ranks(&ranks);
  std::printf("  %u ranks: collectives of the ABI\n", count);
}

cudaGraphExec_t capture(const Rank& rank) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cuda(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal));
  enqueue(rank);
  cuda(cudaStreamEndCapture(rank.stream, &graph));
  cuda(cudaGraphInstantiate(&exec, graph, 0));
  cuda(cudaGraphDestroy(graph));
  return exec;
}

// The last rank aborts, or only stops calling, while the others wait for it on the GPU.
void fault(uint32_t count, bool aborts) {
  std::vector<Rank> ranks = open_ranks(count, aborts ? 20'000 : 500);
  const uint32_t gone = count - 1;
  const uint64_t all = (uint64_t{1} << count) - 1;
  std::vector<cudaGraphExec_t> graphs;
  for (const Rank& rank : ranks) graphs.push_back(capture(rank));
  for (uint32_t i = 0; i < count; ++i) cuda(cudaGraphLaunch(graphs[i], ranks[i].stream));
  cuda(cudaDeviceSynchronize());
  for (const Rank& rank : ranks) expect_sum(rank, all, "before");
  const double begin = now_s();
  for (uint32_t i = 0; i < gone; ++i) cuda(cudaGraphLaunch(graphs[i], ranks[i].stream));
  if (aborts) GPU_CHECK(mep_comm_abort(ranks[gone].comm) == MEP_SUCCESS, "abort");
  cuda(cudaDeviceSynchronize());
  const double took = now_s() - begin;
  for (uint32_t i = 0; i < gone; ++i) {
    const mep_result_t told = mep_comm_async_result(ranks[i].comm);
    const mep_result_t wanted = aborts ? MEP_ERR_PEER_FAILED : MEP_ERR_TIMEOUT;
    GPU_CHECK(told == wanted, "rank %u of %u: %s: %s", i, count, mep_result_string(told),
              mep_last_error());
    int32_t live = 0;
    GPU_CHECK(mep_comm_live(ranks[i].comm, &live) == MEP_SUCCESS &&
                  live == static_cast<int32_t>(aborts ? gone : count),
              "rank %u: %d live", i, live);
  }
  if (!aborts) {
    // Late, not dead: its next call tells it, and then all go on together.
    cuda(cudaGraphLaunch(graphs[gone], ranks[gone].stream));
    cuda(cudaDeviceSynchronize());
    GPU_CHECK(mep_comm_async_result(ranks[gone].comm) == MEP_ERR_TIMEOUT, "the late rank: %s",
              mep_last_error());
  }
  const uint32_t members = aborts ? gone : count;
  for (int replay = 0; replay < 50; ++replay) {
    for (uint32_t i = 0; i < members; ++i) {
      std::memset(ranks[i].receive, 0xa5, kCount * 4);
      cuda(cudaGraphLaunch(graphs[i], ranks[i].stream));
    }
    cuda(cudaDeviceSynchronize());
    for (uint32_t i = 0; i < members; ++i) {
      expect_sum(ranks[i], (uint64_t{1} << members) - 1, "replayed after the view change");
    }
  }
  for (uint32_t i = 0; i < members; ++i) {
    GPU_CHECK(mep_comm_async_result(ranks[i].comm) == MEP_SUCCESS, "later: %s", mep_last_error());
  }
  if (aborts) {
    GPU_CHECK(mep_barrier(ranks[gone].comm, ranks[gone].stream) == MEP_ERR_ABORTED,
              "the aborted rank");
  }
  for (const cudaGraphExec_t graph : graphs) cuda(cudaGraphExecDestroy(graph));
  close_ranks(&ranks);
  std::printf("  %u ranks: one %s; told after %.0f ms, 50 replays of the old graphs\n", count,
              aborts ? "aborts" : "stops calling", took * 1e3);
}

void split(uint32_t count) {
  std::vector<Rank> ranks = open_ranks(count, 20'000);
  std::vector<mep_comm_t> children(count);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      const mep_result_t result =
          mep_comm_split(ranks[i].comm, static_cast<int32_t>(i % 2), 0, &children[i]);
      GPU_CHECK(result == MEP_SUCCESS, "split: %s", mep_last_error());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint32_t i = 0; i < count; ++i) {
    const Rank child{children[i], ranks[i].stream, ranks[i].send, ranks[i].receive};
    enqueue(child);
  }
  cuda(cudaDeviceSynchronize());
  for (uint32_t i = 0; i < count; ++i) {
    expect_sum(ranks[i], (i % 2 == 0 ? 0x55u : 0xaau) & ((1u << count) - 1), "split");
  }
  for (const mep_comm_t child : children) {
    GPU_CHECK(mep_comm_destroy(child) == MEP_SUCCESS, "destroy of a split: %s", mep_last_error());
  }
  close_ranks(&ranks);
  std::printf("  %u ranks: two communicators from mep_comm_split at once\n", count);
}

}  // namespace
}  // namespace gpu_test

int main() {
  using namespace gpu_test;
  (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  (void)std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (!gpu_is_there()) {
    mep_comm_config_t config;
    mep_comm_config_defaults(&config);
    config.flags = MEP_COMM_SET_DEVICE;
    mep_comm_t comm = nullptr;
    const mep_result_t result = mep_comm_init_all(1, &config, &comm);
    std::printf("without a GPU a communicator on one answers %s: %s\n", mep_result_string(result),
                mep_last_error());
    return result == MEP_ERR_UNSUPPORTED || result == MEP_ERR_DEVICE ? kSkipped : 1;
  }
  cuda(cudaSetDevice(0));
  refusals();
  for (const uint32_t ranks : {1u, 2u, 4u, 8u}) collectives(ranks);
  for (const uint32_t ranks : {3u, 8u}) fault(ranks, true);
  for (const uint32_t ranks : {3u, 8u}) fault(ranks, false);
  split(4);
  cuda(cudaDeviceSynchronize());
  std::printf(failure_count() == 0 ? "device_comm_test: passed\n" : "device_comm_test: FAILED\n");
  return failure_count() == 0 ? 0 : 1;
}

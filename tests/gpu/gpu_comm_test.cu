// Communicators on GPUs through the C ABI: ranks as threads of this process, each with a stream. Refused
// calls, the results of collectives, and what happens when a rank aborts, with graphs captured before. In files of their own:
// kinds in which ranks get different things (gpu_comm_kinds.cu), with counts (gpu_comm_counts.cu), messages (gpu_comm_messages.cu),
// requests (gpu_comm_requests.cu), and where calls are noted (gpu_comm_noted.cu).
#include <algorithm>
#include <cstring>
#include <functional>

#include "gpu_comm_rig.hpp"

namespace gpu_test {
namespace {

void refusals() {
  mep_comm_config_t config;
  mep_comm_config_defaults(&config);
  config.device_type = MEP_DEVICE_CUDA;
  config.device = 999;
  mep_comm_t comms[2] = {};
  GPU_CHECK(mep_comm_init_all(2, &config, comms) == MEP_ERR_INVALID_ARGUMENT, "device 999: %s",
            mep_last_error());
  // All on the last GPU, whatever the ranks.
  config.device = gpu_count() - 1;
  need(mep_comm_init_all(2, &config, comms), "mep_comm_init_all");
  for (const mep_comm_t comm : comms) {
    GPU_CHECK(gpu_of_comm(comm) == config.device, "the comm is on GPU %d", gpu_of_comm(comm));
  }
  GPU_CHECK(mep_barrier(comms[0], nullptr) == MEP_ERR_INVALID_ARGUMENT, "NULL stream, shared GPU");
  close_comms({comms[0], comms[1]});
  std::vector<Rank> ranks = open_ranks(2, 5000);
  // With a GPU of its own a rank may use the NULL stream.
  if (gpu_count() == 1) {
    GPU_CHECK(mep_barrier(ranks[0].comm, nullptr) == MEP_ERR_INVALID_ARGUMENT, "NULL stream");
  }
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
  if (gpu_count() > 1) {
    uint32_t* far = nullptr;
    cuda(cudaSetDevice(1));
    cuda(cudaMalloc(&far, 64));
    GPU_CHECK(mep_allreduce(far, far, 4, MEP_UINT32, MEP_SUM, ranks[0].comm, ranks[0].stream) ==
                  MEP_ERR_INVALID_ARGUMENT,
              "memory of another GPU");
    GPU_CHECK(mep_barrier(ranks[0].comm, ranks[1].stream) == MEP_ERR_INVALID_ARGUMENT,
              "a stream of another GPU: %s", mep_last_error());
    cuda(cudaFree(far));
  }
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
    synchronize_all();
    for (const Rank& rank : ranks) expect_sum(rank, all, "allreduce");
    for (const Rank& rank : ranks) {
      GPU_CHECK(mep_allgather(rank.send, rank.receive, kCount, MEP_UINT32, rank.comm,
                              rank.stream) == MEP_SUCCESS,
                "allgather: %s", mep_last_error());
    }
    synchronize_all();
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
    synchronize_all();
    for (const Rank& rank : ranks) expect_sum(rank, uint64_t{1} << (count - 1), "broadcast");
    for (const Rank& rank : ranks) {
      GPU_CHECK(mep_barrier(rank.comm, rank.stream) == MEP_SUCCESS, "barrier");
    }
    synchronize_all();
  }
  for (const Rank& rank : ranks) {
    GPU_CHECK(mep_comm_async_result(rank.comm) == MEP_SUCCESS, "failure: %s", mep_last_error());
  }
  close_ranks(&ranks);
  std::printf("  %u ranks: collectives of the ABI\n", count);
}

// Larger than what goes through host memory at once, in place and captured too.
void large(uint32_t count) {
  constexpr size_t kLarge = (size_t{20} << 20) / 4 + 3;
  std::vector<Rank> ranks = open_ranks(count, 20'000);
  std::vector<uint32_t*> memory(count);
  std::vector<cudaGraphExec_t> graphs(count);
  for (uint32_t i = 0; i < count; ++i) {
    cuda(cudaSetDevice(gpu_of(i)));
    cuda(cudaMalloc(&memory[i], kLarge * 4));
    cudaGraph_t graph = nullptr;
    cuda(cudaStreamBeginCapture(ranks[i].stream, cudaStreamCaptureModeThreadLocal));
    need(mep_allreduce(memory[i], memory[i], kLarge, MEP_UINT32, MEP_SUM, ranks[i].comm,
                       ranks[i].stream),
         "mep_allreduce");
    cuda(cudaStreamEndCapture(ranks[i].stream, &graph));
    cuda(cudaGraphInstantiate(&graphs[i], graph, 0));
    cuda(cudaGraphDestroy(graph));
  }
  std::vector<uint32_t> values(kLarge);
  for (int round = 0; round < 2; ++round) {
    for (uint32_t i = 0; i < count; ++i) {
      for (size_t k = 0; k < kLarge; ++k) values[k] = static_cast<uint32_t>(k * (i + 1));
      cuda(cudaMemcpy(memory[i], values.data(), kLarge * 4, cudaMemcpyDefault));
    }
    for (uint32_t i = 0; i < count; ++i) cuda(cudaGraphLaunch(graphs[i], ranks[i].stream));
    synchronize_all();
    for (uint32_t i = 0; i < count; ++i) {
      cuda(cudaMemcpy(values.data(), memory[i], kLarge * 4, cudaMemcpyDefault));
      size_t wrong = 0;
      const uint32_t sum = count * (count + 1) / 2;
      for (size_t k = 0; k < kLarge; ++k) wrong += values[k] != static_cast<uint32_t>(k * sum);
      GPU_CHECK(wrong == 0, "rank %u: %zu values of a large allreduce are wrong", i, wrong);
    }
  }
  for (uint32_t i = 0; i < count; ++i) {
    cuda(cudaGraphExecDestroy(graphs[i]));
    cuda(cudaFree(memory[i]));
  }
  close_ranks(&ranks);
  std::printf("  %u ranks: a large allreduce in place\n", count);
}

cudaGraphExec_t capture(const Rank& rank) {
  return capture(rank, [&] { enqueue(rank); });
}

// Blocks of absent ranks stay as they were.
void gathers_without_absent(const std::vector<Rank>& ranks, uint32_t members) {
  for (uint32_t i = 0; i < members; ++i) {
    std::memset(ranks[i].receive, 0xa5, kCount * 4 * ranks.size());
    need(mep_allgather(ranks[i].send, ranks[i].receive, kCount, MEP_UINT32, ranks[i].comm,
                       ranks[i].stream),
         "mep_allgather");
  }
  synchronize_all();
  for (uint32_t i = 0; i < members; ++i) {
    for (uint32_t block = 0; block < ranks.size(); ++block) {
      const uint32_t right = block < members ? value(block, 0) : kUntouched;
      const uint32_t* got = ranks[i].receive + block * kCount;
      GPU_CHECK(got[0] == right && got[kCount - 1] == right, "rank %u: block %u is %x", i, block,
                got[0]);
    }
  }
}

// A call on a dead root is told so, each time.
void calls_on_dead_root(const std::vector<Rank>& ranks, uint32_t dead) {
  for (const Kind kind : kKinds) {
    if (!has_root(kind)) continue;
    poison(ranks);
    for (uint32_t i = 0; i < dead; ++i) {
      need(enqueue_kind(ranks[i], kind, i, dead), name_of(kind));
    }
    synchronize_all();
    for (uint32_t i = 0; i < dead; ++i) {
      const mep_result_t told = mep_comm_async_result(ranks[i].comm);
      GPU_CHECK(told == MEP_ERR_PEER_FAILED, "%s of a dead root, rank %u: %s", name_of(kind), i,
                mep_result_string(told));
    }
  }
}

using Call = std::function<mep_result_t(const Rank&)>;
constexpr size_t kLongCall = 5, kShortCall = 1;  // places in that list

std::vector<Call> different_calls(const std::vector<Rank>& ranks) {
  const auto count = static_cast<uint32_t>(ranks.size());
  const auto reduce = [](size_t values, mep_dtype_t dtype, mep_op_t op) {
    return [=](const Rank& r) {
      return mep_allreduce(r.send, r.receive, values, dtype, op, r.comm, r.stream);
    };
  };
  const auto broadcast = [](int32_t root) {
    return [=](const Rank& r) {
      return mep_broadcast(r.send, r.receive, kCount, MEP_UINT32, root, r.comm, r.stream);
    };
  };
  // Long enough to go in two steps where there are many ranks.
  const auto reduce_long = [count](size_t less) {
    return [=](const Rank& r) {
      return mep_allreduce(r.receive, r.receive, kCount * count - less, MEP_UINT32, MEP_SUM, r.comm,
                           r.stream);
    };
  };
  const auto of_kind = [&ranks](Kind kind, uint32_t root) {
    return [&ranks, kind, root](const Rank& r) {
      return enqueue_kind(r, kind, static_cast<uint32_t>(&r - ranks.data()), root);
    };
  };
  std::vector<Call> calls{[](const Rank& r) { return mep_barrier(r.comm, r.stream); },
                          reduce(kCount, MEP_UINT32, MEP_SUM),
                          reduce(kCount, MEP_UINT32, MEP_MAX),
                          reduce(kCount, MEP_INT32, MEP_SUM),
                          reduce(kCount / 2, MEP_UINT32, MEP_SUM),
                          reduce_long(0),
                          reduce_long(7),
                          broadcast(0),
                          broadcast(1),
                          [](const Rank& r) {
                            return mep_allgather(r.send, r.receive, kCount, MEP_UINT32, r.comm,
                                                 r.stream);
                          },
                          of_kind(Kind::kReduce, 0),
                          of_kind(Kind::kReduceScatter, 0),
                          of_kind(Kind::kGather, 0),
                          of_kind(Kind::kGather, 1),
                          of_kind(Kind::kScatter, 0),
                          of_kind(Kind::kAlltoall, 0)};
  calls.push_back(of_kind(Kind::kAlltoallv, 0));
  return calls;
}

// One rank calls something else than the others: all are told so, and the next calls go on. Pairs are those
// that are at most `apart` places from each other in the list, where calls alike are neighbours.
void differ(const std::vector<Rank>& ranks, size_t apart) {
  const auto count = static_cast<uint32_t>(ranks.size());
  const std::vector<Call> calls = different_calls(ranks);
  for (size_t pair = 0; pair < calls.size() * calls.size(); ++pair) {
    const size_t usual = pair / calls.size(), other = pair % calls.size();
    if (std::max(usual, other) - std::min(usual, other) > apart) continue;
    const uint32_t odd = static_cast<uint32_t>(pair) % count;
    // Some go on to their next call while others are still in this one.
    for (uint32_t i = 0; i < count; ++i) {
      need(calls[i == odd ? other : usual](ranks[i]), "a call");
      need(calls[pair % 2 == 0 ? kLongCall : kShortCall](ranks[i]), "the next call");
    }
    synchronize_all();
    for (uint32_t i = 0; i < count; ++i) {
      const mep_result_t told = mep_comm_async_result(ranks[i].comm);
      const mep_result_t wanted = usual == other ? MEP_SUCCESS : MEP_ERR_MISMATCH;
      GPU_CHECK(told == wanted, "calls %zu and %zu, rank %u of %u: %s", usual, other, i, count,
                mep_result_string(told));
      GPU_CHECK(mep_comm_async_result(ranks[i].comm) == MEP_SUCCESS,
                "the call after %zu and %zu, rank %u: %s", usual, other, i, mep_last_error());
    }
  }
}

// The last rank aborts, or only stops calling, while the others wait for it on the GPU.
void fault(uint32_t count, bool aborts, size_t apart) {
  std::vector<Rank> ranks = open_ranks(count, aborts ? 20'000 : kSoonMs);
  const uint32_t gone = count - 1;
  const uint64_t all = (uint64_t{1} << count) - 1;
  std::vector<cudaGraphExec_t> graphs;
  for (const Rank& rank : ranks) graphs.push_back(capture(rank));
  for (uint32_t i = 0; i < count; ++i) cuda(cudaGraphLaunch(graphs[i], ranks[i].stream));
  synchronize_all();
  for (const Rank& rank : ranks) expect_sum(rank, all, "before");
  if (aborts) differ(ranks, apart);
  const double begin = now_s();
  for (uint32_t i = 0; i < gone; ++i) cuda(cudaGraphLaunch(graphs[i], ranks[i].stream));
  if (aborts) GPU_CHECK(mep_comm_abort(ranks[gone].comm) == MEP_SUCCESS, "abort");
  synchronize_all();
  const double took = now_s() - begin;
  for (uint32_t i = 0; i < gone; ++i) {
    const mep_result_t told = mep_comm_async_result(ranks[i].comm);
    const mep_result_t wanted = aborts ? MEP_ERR_PEER_FAILED : MEP_ERR_TIMEOUT;
    GPU_CHECK(told == wanted, "rank %u of %u: %s: %s", i, count, mep_result_string(told),
              mep_last_error());
    int32_t live = 0;
    GPU_CHECK(mep_comm_live_count(ranks[i].comm, &live) == MEP_SUCCESS &&
                  live == static_cast<int32_t>(aborts ? gone : count),
              "rank %u: %d live", i, live);
  }
  if (!aborts) {
    // Late, not dead: its next call tells it, and then all go on together.
    cuda(cudaGraphLaunch(graphs[gone], ranks[gone].stream));
    synchronize_all();
    GPU_CHECK(mep_comm_async_result(ranks[gone].comm) == MEP_ERR_TIMEOUT, "the late rank: %s",
              mep_last_error());
  }
  const uint32_t members = aborts ? gone : count;
  for (int replay = 0; replay < 50; ++replay) {
    for (uint32_t i = 0; i < members; ++i) {
      std::memset(ranks[i].receive, 0xa5, kCount * 4);
      cuda(cudaGraphLaunch(graphs[i], ranks[i].stream));
    }
    synchronize_all();
    for (uint32_t i = 0; i < members; ++i) {
      expect_sum(ranks[i], (uint64_t{1} << members) - 1, "replayed after the view change");
    }
  }
  gathers_without_absent(ranks, members);
  each_kind(ranks, members, aborts ? "without the aborted rank" : "after a timeout");
  if (aborts) calls_on_dead_root(ranks, gone);
  for (uint32_t i = 0; i < members; ++i) {
    GPU_CHECK(mep_comm_async_result(ranks[i].comm) == MEP_SUCCESS, "later: %s", mep_last_error());
  }
  if (aborts) {
    GPU_CHECK(mep_barrier(ranks[gone].comm, ranks[gone].stream) == MEP_ERR_ABORTED,
              "the aborted rank");
  }
  for (const cudaGraphExec_t graph : graphs) cuda(cudaGraphExecDestroy(graph));
  close_ranks(&ranks);
  std::printf(
      "  %u ranks: different calls are found out; one %s; told after %.0f ms, 50 replays of the "
      "old graphs\n",
      count, aborts ? "aborts" : "stops calling", took * 1e3);
}

void few_blocks(uint32_t count) {
  setenv("MEP_NUM_SMS", "2", 1);
  large(count);
  std::vector<Rank> ranks = open_ranks(count, 20'000);
  unsetenv("MEP_NUM_SMS");
  mep_comm_info_t info;
  mep_comm_info_defaults(&info);
  need(mep_comm_query(ranks[0].comm, &info), "mep_comm_query");
  GPU_CHECK(info.num_sms == (has_windows() ? 2 : 0), "%u blocks of 2", info.num_sms);
  close_ranks(&ranks);
}

mep_reach_t expected_reach() {
  if (!has_windows()) return MEP_REACH_QUEUES;
  return asked_reach().empty() ? MEP_REACH_MAPPED : MEP_REACH_HOST;
}

// A message of as many bytes as mep_comm_query says is sent before anybody receives it.
void limits(uint32_t count) {
  std::vector<Rank> ranks = open_ranks(count, 20'000);
  mep_reach_t reach[kMostRanks];
  mep_comm_info_t info;
  mep_comm_info_defaults(&info);
  info.reach = reach;
  info.capacity = count;
  need(mep_comm_query(ranks[1].comm, &info), "mep_comm_query");
  GPU_CHECK(info.device == gpu_of(1), "mep_comm_query tells of GPU %d", info.device);
  for (uint32_t i = 0; i < count; ++i) {
    const mep_reach_t wanted = i == 1 ? mep_reach_t{MEP_REACH_SELF} : expected_reach();
    GPU_CHECK(reach[i] == wanted, "rank %u is reached by way %u, not %u", i, reach[i], wanted);
  }
  GPU_CHECK((info.num_sms > 0) == has_windows(), "%u blocks", info.num_sms);
  GPU_CHECK(info.max_group_messages == most_group_messages(), "a group has %u messages",
            info.max_group_messages);
  const size_t bytes = info.message_eager_bytes;
  GPU_CHECK(bytes >= (has_windows() ? 65536 : 1024), "%zu bytes need no receiver", bytes);
  uint8_t* sent = nullptr;
  uint8_t* got = nullptr;
  cuda(cudaMallocHost(&sent, bytes));
  cuda(cudaMallocHost(&got, bytes));
  for (size_t i = 0; i < bytes; ++i) sent[i] = static_cast<uint8_t>(i * 0x9e3779b1u >> 24);
  need(mep_send(sent, bytes, MEP_UINT8, 0, 0, ranks[1].comm, ranks[1].stream), "send");
  cuda(cudaStreamSynchronize(ranks[1].stream));
  need(mep_comm_async_result(ranks[1].comm), "a send without its receive");
  need(mep_recv(got, bytes, MEP_UINT8, 1, 0, ranks[0].comm, nullptr, ranks[0].stream), "receive");
  synchronize_all();
  GPU_CHECK(std::memcmp(sent, got, bytes) == 0, "wrong bytes");
  cuda(cudaFreeHost(sent));
  cuda(cudaFreeHost(got));
  close_ranks(&ranks);
  std::printf("  %u ranks: reach and limits\n", count);
}

// With two GPUs ranks of one and of both are in each half.
int32_t color_of(uint32_t rank) {
  return rank % 4 == 0 || rank % 4 == 3 ? 0 : 1;
}

void split(uint32_t count) {
  std::vector<Rank> ranks = open_ranks(count, 20'000);
  std::vector<mep_comm_t> children(count);
  in_threads(count, [&](uint32_t i) {
    need(mep_comm_split(ranks[i].comm, color_of(i), 0, &children[i]), "mep_comm_split");
  });
  for (uint32_t i = 0; i < count; ++i) {
    GPU_CHECK(gpu_of_comm(children[i]) == gpu_of(i), "the child is on GPU %d",
              gpu_of_comm(children[i]));
    const Rank child{children[i], ranks[i].stream, ranks[i].send, ranks[i].receive};
    enqueue(child);
  }
  synchronize_all();
  for (uint32_t i = 0; i < count; ++i) {
    uint64_t members = 0;
    for (uint32_t other = 0; other < count; ++other) {
      if (color_of(other) == color_of(i)) members |= uint64_t{1} << other;
    }
    expect_sum(ranks[i], members, "split");
  }
  for (const mep_comm_t child : children) {
    GPU_CHECK(mep_comm_destroy(child) == MEP_SUCCESS, "destroy of a split: %s", mep_last_error());
  }
  close_ranks(&ranks);
  std::printf("  %u ranks: two communicators from mep_comm_split at once\n", count);
}

}  // namespace
}  // namespace gpu_test

// --slice: the part that the gate has of a reach of its own.
int main(int argc, char** argv) {
  using namespace gpu_test;
  (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  (void)std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (!gpu_is_there()) {
    mep_comm_config_t config;
    mep_comm_config_defaults(&config);
    config.device_type = MEP_DEVICE_CUDA;
    mep_comm_t comm = nullptr;
    const mep_result_t result = mep_comm_init_all(1, &config, &comm);
    std::printf("without a GPU a communicator on one answers %s: %s\n", mep_result_string(result),
                mep_last_error());
    return result == MEP_ERR_UNSUPPORTED || result == MEP_ERR_DEVICE ? kSkipped : 1;
  }
  std::printf("ranks are dealt to %d GPU(s)\n", gpu_count());
  const uint64_t seed = seed_of_run();
  const bool is_slice = argc > 1 && std::strcmp(argv[1], "--slice") == 0;
  refusals();
  for (const uint32_t ranks : {1u, 2u, 4u, 8u}) collectives(ranks);
  for (const uint32_t ranks : {1u, 2u, 4u, 8u}) kinds(ranks);
  for (const uint32_t ranks : {2u, 5u}) kinds_in_place(ranks);
  for (const uint32_t ranks : {1u, 2u, 3u, 8u}) counts(ranks, seed + ranks);
  for (const uint32_t ranks : {1u, 2u, 4u}) messages(ranks, seed + ranks);
  for (const bool aborts : {true, false}) lost_messages(aborts, seed);
  for (const uint32_t ranks : {2u, 3u}) requests(ranks);
  for (const uint32_t ranks : {2u, 3u}) registered(ranks);
  noted();
  for (const uint32_t ranks : {2u, 8u}) limits(ranks);
  large(3);
  few_blocks(2);
  if (is_slice) {
    fault(8, true, 3);
    fault(3, false, 0);
  } else {
    for (const bool aborts : {true, false}) {
      for (const uint32_t ranks : {3u, 8u}) fault(ranks, aborts, SIZE_MAX);
    }
  }
  for (const uint32_t ranks : {4u, 8u}) split(ranks);
  synchronize_all();
  std::printf(failure_count() == 0 ? "gpu_comm_test: passed\n" : "gpu_comm_test: FAILED\n");
  return failure_count() == 0 ? 0 : 1;
}

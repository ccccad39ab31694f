// Shared by the parts of the test of communicators on GPUs: ranks with streams and buffers whose values are known,
// calls of the kinds in which ranks get different things and what those have to give, and graphs of calls.
#pragma once

#include <cstring>
#include <functional>
#include <vector>

#include "abi_rig.hpp"
#include "protocol/operation_calls.hpp"

namespace gpu_test {

constexpr size_t kCount = 20'000;
constexpr uint32_t kMostRanks = 8;
constexpr uint32_t kUntouched = 0xa5a5a5a5;

// The value of all elements of a block in a send buffer; a sum of them tells which ranks gave and which block it is.
inline uint32_t value(uint32_t rank, uint32_t block) {
  return block << 24 | 1u << (3 * rank);
}

struct Rank {
  mep_comm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  uint32_t* send = nullptr;
  uint32_t* receive = nullptr;
};

inline std::vector<Rank> open_ranks(uint32_t count, uint32_t timeout_ms) {
  const std::vector<mep_comm_t> comms = open_comms(count, true, timeout_ms);
  std::vector<Rank> ranks(count);
  for (uint32_t i = 0; i < count; ++i) {
    ranks[i].comm = comms[i];
    cuda(cudaSetDevice(gpu_of(i)));
    cuda(cudaStreamCreateWithFlags(&ranks[i].stream, cudaStreamNonBlocking));
    cuda(cudaMallocHost(&ranks[i].send, kCount * 4 * count));
    cuda(cudaMallocHost(&ranks[i].receive, kCount * 4 * count));
    for (size_t k = 0; k < kCount * count; ++k) {
      ranks[i].send[k] = value(i, static_cast<uint32_t>(k / kCount));
    }
  }
  return ranks;
}

inline void close_ranks(std::vector<Rank>* ranks) {
  std::vector<mep_comm_t> comms;
  for (const Rank& rank : *ranks) comms.push_back(rank.comm);
  close_comms(comms);
  for (Rank& rank : *ranks) {
    cuda(cudaStreamDestroy(rank.stream));
    cuda(cudaFreeHost(rank.send));
    cuda(cudaFreeHost(rank.receive));
  }
}

inline void enqueue(const Rank& rank) {
  const mep_result_t result =
      mep_allreduce(rank.send, rank.receive, kCount, MEP_UINT32, MEP_SUM, rank.comm, rank.stream);
  GPU_CHECK(result == MEP_SUCCESS, "allreduce: %s", mep_last_error());
}

inline void expect_sum(const Rank& rank, uint64_t members, const char* where) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < 10; ++i) {
    if ((members >> i & 1) != 0) sum += 1u << (3 * i);
  }
  size_t wrong = 0;
  for (size_t k = 0; k < kCount; ++k) wrong += rank.receive[k] != sum ? 1 : 0;
  GPU_CHECK(wrong == 0, "%s: %zu values are not %u, the first is %u", where, wrong, sum,
            rank.receive[0]);
}

// The kinds in which ranks get different things.
enum class Kind { kReduce, kGather, kScatter, kReduceScatter, kAlltoall, kAlltoallv };
constexpr Kind kKinds[] = {Kind::kReduce,        Kind::kGather,   Kind::kScatter,
                           Kind::kReduceScatter, Kind::kAlltoall, Kind::kAlltoallv};
constexpr const char* kNames[] = {"reduce",         "gather",   "scatter",
                                  "reduce_scatter", "alltoall", "alltoallv"};

// Whether GPUs reach each other by windows, not by queues.
inline bool has_windows() {
  return asked_reach() != "queues" && asked_reach() != "mixed";
}
// The limit of one group on one communicator.
inline uint32_t most_group_messages() {
  return has_windows() && CUDART_VERSION >= 12010 ? 1024 : 96;
}
inline const char* name_of(Kind kind) {
  return kNames[static_cast<size_t>(kind)];
}

inline bool has_root(Kind kind) {
  return kind == Kind::kReduce || kind == Kind::kGather || kind == Kind::kScatter;
}

constexpr mep::Collective kCollectives[] = {
    mep::Collective::k_reduce,         mep::Collective::k_gather,   mep::Collective::k_scatter,
    mep::Collective::k_reduce_scatter, mep::Collective::k_alltoall, mep::Collective::k_alltoallv};

// Each rank gives NULL for what it does not need. request: of the nonblocking form.
inline mep_result_t enqueue_kind(const Rank& r, Kind kind, uint32_t rank, uint32_t root,
                                 mep_request_t* request = nullptr) {
  const std::vector<uint64_t> counts(kMostRanks, kCount);
  const bool gets = rank == root || (kind != Kind::kReduce && kind != Kind::kGather);
  const mep::OperationCall call{.send = rank == root || kind != Kind::kScatter ? r.send : nullptr,
                                .receive = gets ? r.receive : nullptr,
                                .count = kCount,
                                .dtype = MEP_UINT32,
                                .root = static_cast<int32_t>(root),
                                .counts = counts.data(),
                                .recv_counts = counts.data()};
  const mep::Collective collective = kCollectives[static_cast<size_t>(kind)];
  if (request == nullptr) return mep::call_collective(collective, call, r.comm, r.stream);
  return mep::start_collective(collective, call, r.comm, r.stream, request);
}

// The value that a block of the receive buffer of `rank` has to have afterwards.
inline uint32_t wanted(Kind kind, uint32_t rank, uint32_t block, uint32_t root, uint64_t members) {
  const auto sum_of = [&](uint32_t sent) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < 10; ++i) sum += (members >> i & 1) != 0 ? value(i, sent) : 0;
    return sum;
  };
  const bool is_member = (members >> block & 1) != 0;
  switch (kind) {
    case Kind::kReduce:
      return rank == root && block == 0 ? sum_of(0) : kUntouched;
    case Kind::kGather:
      return rank == root && is_member ? value(block, 0) : kUntouched;
    case Kind::kScatter:
      return block == 0 ? value(root, rank) : kUntouched;
    case Kind::kReduceScatter:
      return block == 0 ? sum_of(rank) : kUntouched;
    default:
      return is_member ? value(block, rank) : kUntouched;
  }
}

inline void expect_kind(const std::vector<Rank>& ranks, Kind kind, uint32_t root, uint64_t members,
                        const char* where) {
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    if ((members >> rank & 1) == 0) continue;
    for (uint32_t block = 0; block < ranks.size(); ++block) {
      const uint32_t right = wanted(kind, rank, block, root, members);
      const uint32_t* got = ranks[rank].receive + block * kCount;
      size_t wrong = 0;
      for (size_t k = 0; k < kCount; ++k) wrong += got[k] != right ? 1 : 0;
      GPU_CHECK(wrong == 0, "%s: %s, rank %u, block %u: %zu values are not %x, the first is %x",
                where, name_of(kind), rank, block, wrong, right, got[0]);
    }
  }
}

inline void poison(const std::vector<Rank>& ranks) {
  for (const Rank& rank : ranks) std::memset(rank.receive, 0xa5, kCount * 4 * ranks.size());
}

// Each kind on the first `members` of the ranks, eagerly.
inline void each_kind(const std::vector<Rank>& ranks, uint32_t members, const char* where) {
  for (const Kind kind : kKinds) {
    for (const uint32_t root : {0u, members - 1}) {
      if (root != 0 && !has_root(kind)) continue;
      poison(ranks);
      for (uint32_t i = 0; i < members; ++i) {
        need(enqueue_kind(ranks[i], kind, i, root), name_of(kind));
      }
      synchronize_all();
      expect_kind(ranks, kind, root, (uint64_t{1} << members) - 1, where);
      for (uint32_t i = 0; i < members; ++i) {
        GPU_CHECK(mep_comm_async_result(ranks[i].comm) == MEP_SUCCESS, "%s: %s: %s", where,
                  name_of(kind), mep_last_error());
      }
    }
  }
}

// All calls of a graph on one rank, captured on its stream.
inline cudaGraphExec_t capture(const Rank& rank, const std::function<void()>& body) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cuda(cudaSetDevice(gpu_of_comm(rank.comm)));
  cuda(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal));
  body();
  cuda(cudaStreamEndCapture(rank.stream, &graph));
  cuda(cudaGraphInstantiate(&exec, graph, 0));
  cuda(cudaGraphDestroy(graph));
  return exec;
}

// --- The parts of the program ---

// In gpu_comm_kinds.cu: each kind of itself and in graphs, and its form in place.
void kinds(uint32_t count);
void kinds_in_place(uint32_t count);

// In gpu_comm_counts.cu: those with a length for each block.
void counts(uint32_t count, uint64_t seed);
// In gpu_comm_messages.cu: messages, and those with a rank that is gone or late.
void messages(uint32_t count, uint64_t seed);
void lost_messages(bool aborts, uint64_t seed);
// In gpu_comm_requests.cu: nonblocking forms, and what their requests tell.
void requests(uint32_t count);
// In gpu_comm_registered.cu: mep_comm_register.
void registered(uint32_t count);
// In gpu_comm_noted.cu: counters and records of calls.
void noted();

}  // namespace gpu_test

// Communicators on GPUs through the C ABI: ranks as threads of this process, each with a stream. What
// is refused, what collectives give, what they leave of themselves in memory of the caller, and what happens when a
// rank aborts, with graphs captured before.
#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>

#include "abi_rig.hpp"

namespace gpu_test {
namespace {

constexpr size_t kCount = 20'000;
constexpr uint32_t kUntouched = 0xa5a5a5a5;

// What all elements of a block in a send buffer are; a sum of them tells which ranks gave and which block it is.
uint32_t value(uint32_t rank, uint32_t block) {
  return block << 24 | 1u << (3 * rank);
}

struct Rank {
  mep_comm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  uint32_t* send = nullptr;
  uint32_t* receive = nullptr;
};

std::vector<Rank> open_ranks(uint32_t count, uint32_t timeout_ms) {
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

void close_ranks(std::vector<Rank>* ranks) {
  std::vector<mep_comm_t> comms;
  for (const Rank& rank : *ranks) comms.push_back(rank.comm);
  close_comms(comms);
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

// The kinds in which ranks get different things.
enum class Kind { kReduce, kGather, kScatter, kReduceScatter, kAlltoall };
constexpr Kind kKinds[] = {Kind::kReduce, Kind::kGather, Kind::kScatter, Kind::kReduceScatter,
                           Kind::kAlltoall};
constexpr const char* kNames[] = {"reduce", "gather", "scatter", "reduce_scatter", "alltoall"};

const char* name_of(Kind kind) {
  return kNames[static_cast<size_t>(kind)];
}

bool has_root(Kind kind) {
  return kind == Kind::kReduce || kind == Kind::kGather || kind == Kind::kScatter;
}

// Each rank gives NULL for what it does not need.
mep_result_t enqueue_kind(const Rank& r, Kind kind, uint32_t rank, uint32_t root) {
  const auto to = static_cast<int32_t>(root);
  uint32_t* root_receive = rank == root ? r.receive : nullptr;
  const uint32_t* root_send = rank == root ? r.send : nullptr;
  switch (kind) {
    case Kind::kReduce:
      return mep_reduce(r.send, root_receive, kCount, MEP_UINT32, MEP_SUM, to, r.comm, r.stream);
    case Kind::kGather:
      return mep_gather(r.send, root_receive, kCount, MEP_UINT32, to, r.comm, r.stream);
    case Kind::kScatter:
      return mep_scatter(root_send, r.receive, kCount, MEP_UINT32, to, r.comm, r.stream);
    case Kind::kReduceScatter:
      return mep_reduce_scatter(r.send, r.receive, kCount, MEP_UINT32, MEP_SUM, r.comm, r.stream);
    default:
      return mep_alltoall(r.send, r.receive, kCount, MEP_UINT32, r.comm, r.stream);
  }
}

// What a block of the receive buffer of `rank` has to be afterwards.
uint32_t wanted(Kind kind, uint32_t rank, uint32_t block, uint32_t root, uint64_t members) {
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

void expect_kind(const std::vector<Rank>& ranks, Kind kind, uint32_t root, uint64_t members,
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

void poison(const std::vector<Rank>& ranks) {
  for (const Rank& rank : ranks) std::memset(rank.receive, 0xa5, kCount * 4 * ranks.size());
}

// Each kind on the first `members` of the ranks, eagerly.
void each_kind(const std::vector<Rank>& ranks, uint32_t members, const char* where) {
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
cudaGraphExec_t capture(const Rank& rank, const std::function<void()>& body) {
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

// Each kind of itself and in a graph with a barrier behind it, which is replayed.
void kinds(uint32_t count) {
  std::vector<Rank> ranks = open_ranks(count, 20'000);
  const uint32_t root = count - 1;
  each_kind(ranks, count, "eager");
  for (const Kind kind : kKinds) {
    std::vector<cudaGraphExec_t> graphs;
    for (uint32_t i = 0; i < count; ++i) {
      graphs.push_back(capture(ranks[i], [&] {
        need(enqueue_kind(ranks[i], kind, i, root), name_of(kind));
        need(mep_barrier(ranks[i].comm, ranks[i].stream), "mep_barrier");
      }));
    }
    for (int replay = 0; replay < 5; ++replay) {
      poison(ranks);
      for (uint32_t i = 0; i < count; ++i) cuda(cudaGraphLaunch(graphs[i], ranks[i].stream));
      synchronize_all();
      expect_kind(ranks, kind, root, (uint64_t{1} << count) - 1, "replayed");
    }
    for (const cudaGraphExec_t graph : graphs) cuda(cudaGraphExecDestroy(graph));
  }
  close_ranks(&ranks);
  std::printf("  %u ranks: reduce, gather, scatter, reduce_scatter and alltoall\n", count);
}

// The forms in place, and what is refused of overlapping buffers.
void kinds_in_place(uint32_t count) {
  std::vector<Rank> ranks = open_ranks(count, 20'000);
  const uint64_t all = (uint64_t{1} << count) - 1;
  const uint32_t root = count / 2;
  const auto to = static_cast<int32_t>(root);
  GPU_CHECK(mep_alltoall(ranks[0].send, ranks[0].send, kCount, MEP_UINT32, ranks[0].comm,
                         ranks[0].stream) == MEP_ERR_INVALID_ARGUMENT,
            "alltoall has no form in place");
  const auto expect = [&](const char* name, uint32_t rank, uint32_t block, uint32_t right) {
    const uint32_t* got = ranks[rank].send + block * kCount;
    GPU_CHECK(got[0] == right && got[kCount - 1] == right,
              "%s in place, rank %u, block %u: %x, not %x", name, rank, block, got[0], right);
  };
  for (uint32_t i = 0; i < count; ++i) {
    const Rank& r = ranks[i];
    uint32_t* own = r.send + i * kCount;
    // One after the other on the same buffer: the root's block 0 becomes a sum, which it then scatters.
    need(mep_reduce(r.send, i == root ? r.send : nullptr, kCount, MEP_UINT32, MEP_SUM, to, r.comm,
                    r.stream),
         "mep_reduce");
    need(mep_scatter(r.send, i == root ? own : r.receive, kCount, MEP_UINT32, to, r.comm, r.stream),
         "mep_scatter");
  }
  synchronize_all();
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t sum = wanted(Kind::kReduce, root, 0, root, all);
    const uint32_t right = i == 0 ? sum : value(root, i);
    if (i != root) {
      GPU_CHECK(ranks[i].receive[0] == right && ranks[i].receive[kCount - 1] == right,
                "scatter of a sum, rank %u: %x, not %x", i, ranks[i].receive[0], right);
    }
    expect("scatter", root, i, right);
  }
  for (uint32_t i = 0; i < count; ++i) {
    for (size_t k = 0; k < kCount * count; ++k) {
      ranks[i].send[k] = value(i, static_cast<uint32_t>(k / kCount));
    }
    uint32_t* own = ranks[i].send + i * kCount;
    need(mep_reduce_scatter(ranks[i].send, own, kCount, MEP_UINT32, MEP_SUM, ranks[i].comm,
                            ranks[i].stream),
         "mep_reduce_scatter");
    need(mep_gather(own, i == root ? ranks[i].send : nullptr, kCount, MEP_UINT32, to, ranks[i].comm,
                    ranks[i].stream),
         "mep_gather");
  }
  synchronize_all();
  for (uint32_t block = 0; block < count; ++block) {
    expect("gather", root, block, wanted(Kind::kReduceScatter, block, 0, root, all));
  }
  for (const Rank& rank : ranks) {
    GPU_CHECK(mep_comm_async_result(rank.comm) == MEP_SUCCESS, "in place: %s", mep_last_error());
  }
  close_ranks(&ranks);
  std::printf("  %u ranks: the same in place\n", count);
}

// --- Records of how operations ended ------------------------------------------------------------------

// Memory for one rank's record, with some words behind it.
struct Record {
  static constexpr size_t kBytes = 128;
  void* memory = nullptr;
  bool is_device = false;

  Record(uint32_t rank, bool on_device) : is_device(on_device) {
    cuda(cudaSetDevice(gpu_of(rank)));
    cuda(on_device ? cudaMalloc(&memory, kBytes) : cudaMallocHost(&memory, kBytes));
    clear();
  }
  ~Record() { (void)(is_device ? cudaFree(memory) : cudaFreeHost(memory)); }
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;
  void clear() const {
    cuda(cudaMemset(memory, 0xa5, kBytes));
    synchronize_all();
  }
  mep_op_status_t* place() const { return static_cast<mep_op_status_t*>(memory); }
  // A copy; what lies behind the header comes with it.
  struct Copy {
    mep_op_status_t head;
    uint64_t behind[(kBytes - sizeof(mep_op_status_t)) / 8];
  };
  Copy read() const {
    Copy copy{};
    static_assert(sizeof copy == kBytes);
    cuda(cudaMemcpy(&copy, memory, kBytes, cudaMemcpyDefault));
    return copy;
  }
  bool is_untouched() const {
    uint8_t bytes[kBytes];
    cuda(cudaMemcpy(bytes, memory, kBytes, cudaMemcpyDefault));
    return std::all_of(bytes, bytes + kBytes, [](uint8_t byte) { return byte == 0xa5; });
  }
};
constexpr uint64_t kOldWord = 0xa5a5a5a5a5a5a5a5u;

using Records = std::vector<std::unique_ptr<Record>>;

void set_records(const std::vector<Rank>& ranks, const Records& records, size_t bytes) {
  for (size_t i = 0; i < ranks.size(); ++i) {
    records[i]->clear();
    need(mep_comm_set_op_status(ranks[i].comm, records[i]->place(), bytes),
         "mep_comm_set_op_status");
  }
}

// Of a success; words: of the bitmap that was given room. Gives the number of the operation.
uint64_t expect_success(const Rank& rank, const Record& record, uint32_t words, const char* where) {
  uint64_t epoch = 0;
  need(mep_comm_epoch(rank.comm, &epoch), "mep_comm_epoch");
  const Record::Copy got = record.read();
  GPU_CHECK(got.head.version == MEP_OP_STATUS_VERSION && got.head.result == MEP_SUCCESS &&
                got.head.failed_words == words && got.head.failed_count == 0 &&
                got.head.bad_entries == 0 && got.head.reserved == 0 && got.head.epoch == epoch,
            "%s: version %u, result %d, %u words, %u failed, epoch %llu of %llu", where,
            got.head.version, got.head.result, got.head.failed_words, got.head.failed_count,
            static_cast<unsigned long long>(got.head.epoch),
            static_cast<unsigned long long>(epoch));
  for (uint32_t word = 0; word < std::size(got.behind); ++word) {
    GPU_CHECK(got.behind[word] == (word < words ? 0 : kOldWord), "%s: word %u behind it is %llx",
              where, word, static_cast<unsigned long long>(got.behind[word]));
  }
  return got.head.seq;
}

void refused_records(const std::vector<Rank>& ranks, const Records& records) {
  const mep_comm_t comm = ranks[0].comm;
  mep_op_status_t* place = records[0]->place();
  const auto set = [&](void* memory, size_t bytes) {
    return mep_comm_set_op_status(comm, static_cast<mep_op_status_t*>(memory), bytes);
  };
  GPU_CHECK(set(place, sizeof *place - 1) == MEP_ERR_INVALID_ARGUMENT, "a record cut short");
  GPU_CHECK(set(reinterpret_cast<uint8_t*>(place) + 4, 64) == MEP_ERR_INVALID_ARGUMENT,
            "a record that lies askew");
  GPU_CHECK(mep_comm_set_op_status(nullptr, place, 64) == MEP_ERR_INVALID_ARGUMENT, "no comm");
  int reads_all = 0;
  cuda(cudaDeviceGetAttribute(&reads_all, cudaDevAttrPageableMemoryAccess, 0));
  alignas(8) static uint8_t pageable[64];
  GPU_CHECK(reads_all != 0 || set(pageable, sizeof pageable) == MEP_ERR_INVALID_ARGUMENT,
            "a record in ordinary host memory");
  if (gpu_count() > 1) {
    const Record far(1, true);
    GPU_CHECK(set(far.memory, Record::kBytes) == MEP_ERR_INVALID_ARGUMENT,
              "a record on another GPU");
  }
  const std::vector<mep_comm_t> hosts = open_comms(1, false);
  GPU_CHECK(mep_comm_set_op_status(hosts[0], place, 64) == MEP_ERR_UNSUPPORTED,
            "a record of a host communicator");
  close_comms(hosts);
}

// Each kind tells of itself, numbers rise by one, and where nothing is set nothing is written.
void successes_recorded(const std::vector<Rank>& ranks, const Records& records) {
  const auto count = static_cast<uint32_t>(ranks.size());
  const size_t whole = mep_op_status_size(static_cast<int32_t>(count));
  std::vector<uint64_t> before(count, 0);
  for (size_t call = 0; call < 2 * std::size(kKinds); ++call) {
    const Kind kind = kKinds[call / 2];
    // Once with a bitmap, more than that, and once the header alone.
    const bool has_bitmap = call % 2 == 0;
    set_records(ranks, records, has_bitmap ? whole + 8 : sizeof(mep_op_status_t));
    for (uint32_t i = 0; i < count; ++i) {
      need(enqueue_kind(ranks[i], kind, i, 0), name_of(kind));
    }
    synchronize_all();
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t seq = expect_success(ranks[i], *records[i], has_bitmap ? 1 : 0, name_of(kind));
      GPU_CHECK(seq == before[i] + 1 || before[i] == 0, "rank %u: operation %llu after %llu", i,
                static_cast<unsigned long long>(seq), static_cast<unsigned long long>(before[i]));
      before[i] = seq;
    }
  }
  for (uint32_t i = 0; i < count; ++i) {
    records[i]->clear();
    need(mep_comm_set_op_status(ranks[i].comm, nullptr, 0), "mep_comm_set_op_status");
    enqueue(ranks[i]);
  }
  synchronize_all();
  for (uint32_t i = 0; i < count; ++i) {
    GPU_CHECK(records[i]->is_untouched(), "rank %u: a record was written, which none had set", i);
  }
}

// A graph keeps the record that was set when it was captured. The last rank aborts; the others find that told there.
void graphs_recorded(const std::vector<Rank>& ranks, const Records& records) {
  const auto count = static_cast<uint32_t>(ranks.size());
  const uint32_t gone = count - 1;
  set_records(ranks, records, mep_op_status_size(static_cast<int32_t>(count)));
  std::vector<cudaGraphExec_t> graphs;
  for (uint32_t i = 0; i < count; ++i) {
    graphs.push_back(capture(
        ranks[i], [&] { need(enqueue_kind(ranks[i], Kind::kAlltoall, i, 0), "mep_alltoall"); }));
    need(mep_comm_set_op_status(ranks[i].comm, nullptr, 0), "mep_comm_set_op_status");
  }
  std::vector<uint64_t> before(count, 0);
  for (int replay = 0; replay < 3; ++replay) {
    for (uint32_t i = 0; i < count; ++i) {
      records[i]->clear();
      enqueue(ranks[i]);
      cuda(cudaGraphLaunch(graphs[i], ranks[i].stream));
    }
    synchronize_all();
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t seq = expect_success(ranks[i], *records[i], 1, "in a graph");
      GPU_CHECK(seq == before[i] + 2 || before[i] == 0, "rank %u: operation %llu in a graph", i,
                static_cast<unsigned long long>(seq));
      before[i] = seq;
    }
  }
  for (uint32_t i = 0; i < gone; ++i) {
    records[i]->clear();
    cuda(cudaGraphLaunch(graphs[i], ranks[i].stream));
  }
  need(mep_comm_abort(ranks[gone].comm), "mep_comm_abort");
  synchronize_all();
  for (uint32_t i = 0; i < gone; ++i) {
    const Record::Copy got = records[i]->read();
    GPU_CHECK(got.head.version == MEP_OP_STATUS_VERSION && got.head.result == MEP_ERR_PEER_FAILED &&
                  got.head.failed_words == 1 && got.head.failed_count == 1 &&
                  got.behind[0] == uint64_t{1} << gone,
              "rank %u: result %d, %u failed: %llx", i, got.head.result, got.head.failed_count,
              static_cast<unsigned long long>(got.behind[0]));
    GPU_CHECK(mep_comm_async_result(ranks[i].comm) == MEP_ERR_PEER_FAILED, "rank %u: %s", i,
              mep_last_error());
  }
  for (uint32_t i = 0; i < gone; ++i) {
    records[i]->clear();
    cuda(cudaGraphLaunch(graphs[i], ranks[i].stream));
  }
  synchronize_all();
  for (uint32_t i = 0; i < gone; ++i) {
    (void)expect_success(ranks[i], *records[i], 1, "after the view change");
  }
  for (const cudaGraphExec_t graph : graphs) cuda(cudaGraphExecDestroy(graph));
}

void records(uint32_t count, bool on_device) {
  std::vector<Rank> ranks = open_ranks(count, 20'000);
  Records places;
  for (uint32_t i = 0; i < count; ++i) places.push_back(std::make_unique<Record>(i, on_device));
  refused_records(ranks, places);
  successes_recorded(ranks, places);
  graphs_recorded(ranks, places);
  close_ranks(&ranks);
  std::printf("  %u ranks: records of operations in %s memory\n", count,
              on_device ? "device" : "pinned");
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

// Who calls on a dead root is told so, each time.
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
  return {[](const Rank& r) { return mep_barrier(r.comm, r.stream); },
          reduce(kCount, MEP_UINT32, MEP_SUM),
          reduce(kCount, MEP_UINT32, MEP_MAX),
          reduce(kCount, MEP_INT32, MEP_SUM),
          reduce(kCount / 2, MEP_UINT32, MEP_SUM),
          reduce_long(0),
          reduce_long(7),
          broadcast(0),
          broadcast(1),
          [](const Rank& r) {
            return mep_allgather(r.send, r.receive, kCount, MEP_UINT32, r.comm, r.stream);
          },
          of_kind(Kind::kReduce, 0),
          of_kind(Kind::kReduceScatter, 0),
          of_kind(Kind::kGather, 0),
          of_kind(Kind::kGather, 1),
          of_kind(Kind::kScatter, 0),
          of_kind(Kind::kAlltoall, 0)};
}

// One rank calls something else than the others: all are told so, and the next calls go on.
void differ(const std::vector<Rank>& ranks) {
  const auto count = static_cast<uint32_t>(ranks.size());
  const std::vector<Call> calls = different_calls(ranks);
  for (size_t pair = 0; pair < calls.size() * calls.size(); ++pair) {
    const size_t usual = pair / calls.size(), other = pair % calls.size();
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
void fault(uint32_t count, bool aborts) {
  std::vector<Rank> ranks = open_ranks(count, aborts ? 20'000 : 500);
  const uint32_t gone = count - 1;
  const uint64_t all = (uint64_t{1} << count) - 1;
  std::vector<cudaGraphExec_t> graphs;
  for (const Rank& rank : ranks) graphs.push_back(capture(rank));
  for (uint32_t i = 0; i < count; ++i) cuda(cudaGraphLaunch(graphs[i], ranks[i].stream));
  synchronize_all();
  for (const Rank& rank : ranks) expect_sum(rank, all, "before");
  differ(ranks);
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
    GPU_CHECK(mep_comm_live(ranks[i].comm, &live) == MEP_SUCCESS &&
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
  std::printf("ranks are dealt to %d GPU(s)\n", gpu_count());
  refusals();
  for (const uint32_t ranks : {1u, 2u, 4u, 8u}) collectives(ranks);
  for (const uint32_t ranks : {1u, 2u, 4u, 8u}) kinds(ranks);
  for (const uint32_t ranks : {2u, 5u}) kinds_in_place(ranks);
  records(3, false);
  records(3, true);
  large(3);
  for (const uint32_t ranks : {3u, 8u}) fault(ranks, true);
  for (const uint32_t ranks : {3u, 8u}) fault(ranks, false);
  for (const uint32_t ranks : {4u, 8u}) split(ranks);
  synchronize_all();
  std::printf(failure_count() == 0 ? "device_comm_test: passed\n" : "device_comm_test: FAILED\n");
  return failure_count() == 0 ? 0 : 1;
}

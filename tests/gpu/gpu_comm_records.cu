// Records that collectives on GPUs leave in memory of the caller: how each operation ended, whether it was called
// eagerly or in a graph, and also when a rank aborts.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>

#include "gpu_comm_rig.hpp"

namespace gpu_test {
namespace {

// Memory for one rank's record, with some words behind it.
struct Record {
  static constexpr size_t kBytes = 128;
  void* memory = nullptr;
  int32_t gpu;
  bool is_device = false;

  Record(uint32_t rank, bool on_device) : gpu(gpu_of(rank)), is_device(on_device) {
    cuda(cudaSetDevice(gpu));
    cuda(on_device ? cudaMalloc(&memory, kBytes) : cudaMallocHost(&memory, kBytes));
    clear();
  }
  ~Record() { (void)(is_device ? cudaFree(memory) : cudaFreeHost(memory)); }
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;
  void clear() const {
    cuda(cudaSetDevice(gpu));
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

// While no rank has work on the GPU: it waits for all that runs there.
void clear_all(const Records& records) {
  for (const auto& record : records) record->clear();
}

void set_records(const std::vector<Rank>& ranks, const Records& records, size_t bytes) {
  clear_all(records);
  for (size_t i = 0; i < ranks.size(); ++i) {
    need(mep_comm_set_op_status(ranks[i].comm, records[i]->place(), bytes),
         "mep_comm_set_op_status");
  }
}

// Checks the record of a success; words: of the bitmap that was given room. Gives the number of the operation.
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
  for (size_t call = 0; call < 2 * kinds_here().size(); ++call) {
    const Kind kind = kinds_here()[call / 2];
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
  clear_all(records);
  for (uint32_t i = 0; i < count; ++i) {
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
    clear_all(records);
    for (uint32_t i = 0; i < count; ++i) {
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
  clear_all(records);
  for (uint32_t i = 0; i < gone; ++i) {
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
  clear_all(records);
  for (uint32_t i = 0; i < gone; ++i) {
    cuda(cudaGraphLaunch(graphs[i], ranks[i].stream));
  }
  synchronize_all();
  for (uint32_t i = 0; i < gone; ++i) {
    (void)expect_success(ranks[i], *records[i], 1, "after the view change");
  }
  for (const cudaGraphExec_t graph : graphs) cuda(cudaGraphExecDestroy(graph));
}

}  // namespace

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

}  // namespace gpu_test

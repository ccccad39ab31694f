#include "collectives.hpp"

#include <chrono>
#include <iterator>
#include <vector>

#include "collective_check.hpp"
#include "error.hpp"
#include "protocol/operation_calls.hpp"

namespace mep::perf {
namespace {

double one_block(int) {
  return 1;
}
double all_blocks(int size) {
  return size;
}
double others_part(int size) {
  return static_cast<double>(size - 1) / size;
}
double twice_others_part(int size) {
  return 2 * others_part(size);
}

double no_block(int) {
  return 0;
}
double nothing(int, int) {
  return 0;
}
double one_if_far(int, int gpus) {
  return gpus > 1 ? 1 : 0;
}
double blocks_of_others(int size, int gpus) {
  return static_cast<double>(size) * (gpus - 1) / gpus;
}
// The parts of this GPU's share from the others, then the others' shares.
double twice_part_of_others(int, int gpus) {
  return 2.0 * (gpus - 1) / gpus;
}
double one_read(int size) {
  return 1 + size;
}
double all_read_all_written(int size) {
  return static_cast<double>(size) * (1 + size);
}
double each_read_and_written(int size) {
  return 2.0 * size;
}
double all_read_and_written(int size) {
  return 2.0 * size * size;
}
double blocks_of_far_root(int size, int gpus) {
  return gpus > 1 ? static_cast<double>(size) / gpus : 0;
}
double far_blocks_for_all(int size, int gpus) {
  return blocks_of_others(size, gpus) * size / gpus;
}

// Where this rank's block begins in what a rank gives to each.
size_t own_block(const CollectiveCall& call) {
  return static_cast<size_t>(call.rank) * call.count;
}

// In the order of the table of operations.
constexpr CollectiveEntry kCollectives[] = {
    {Collective::k_barrier, one_block, one_block, no_block, nothing,
     [](const CollectiveCall&, size_t) {
       return Source{kNobody, 0};
     }},
    {Collective::k_broadcast, one_block, one_block, one_read, one_if_far,
     [](const CollectiveCall&, size_t i) {
       return Source{kRoot, i};
     }},
    {Collective::k_allgather, all_blocks, others_part, all_read_all_written, blocks_of_others,
     [](const CollectiveCall& c, size_t i) {
       return Source{static_cast<int>(i / c.count), i % c.count};
     }},
    {Collective::k_allreduce, one_block, twice_others_part, each_read_and_written,
     twice_part_of_others,
     [](const CollectiveCall&, size_t i) {
       return Source{kAllRanks, i};
     }},
    {Collective::k_reduce, one_block, one_block, one_read, one_if_far,
     [](const CollectiveCall& c, size_t i) {
       return c.rank == kRoot ? Source{kAllRanks, i} : Source{kNobody, 0};
     }},
    {Collective::k_gather, all_blocks, others_part, each_read_and_written, blocks_of_others,
     [](const CollectiveCall& c, size_t i) {
       return c.rank == kRoot ? Source{static_cast<int>(i / c.count), i % c.count}
                              : Source{kNobody, 0};
     }},
    {Collective::k_scatter, all_blocks, others_part, each_read_and_written, blocks_of_far_root,
     [](const CollectiveCall& c, size_t i) {
       return Source{kRoot, own_block(c) + i};
     }},
    {Collective::k_reduce_scatter, all_blocks, others_part, all_read_all_written, blocks_of_others,
     [](const CollectiveCall& c, size_t i) {
       return Source{kAllRanks, own_block(c) + i};
     }},
    {Collective::k_alltoall, all_blocks, others_part, all_read_and_written, far_blocks_for_all,
     [](const CollectiveCall& c, size_t i) {
       return Source{static_cast<int>(i / c.count), own_block(c) + i % c.count};
     }},
    // With counts: all the same here.
    {Collective::k_allgatherv, all_blocks, others_part, all_read_all_written, blocks_of_others,
     [](const CollectiveCall& c, size_t i) {
       return Source{static_cast<int>(i / c.count), i % c.count};
     }},
    {Collective::k_gatherv, all_blocks, others_part, each_read_and_written, blocks_of_others,
     [](const CollectiveCall& c, size_t i) {
       return c.rank == kRoot ? Source{static_cast<int>(i / c.count), i % c.count}
                              : Source{kNobody, 0};
     }},
    {Collective::k_scatterv, all_blocks, others_part, each_read_and_written, blocks_of_far_root,
     [](const CollectiveCall& c, size_t i) {
       return Source{kRoot, own_block(c) + i};
     }},
    {Collective::k_reduce_scatterv, all_blocks, others_part, all_read_all_written, blocks_of_others,
     [](const CollectiveCall& c, size_t i) {
       return Source{kAllRanks, own_block(c) + i};
     }},
    {Collective::k_alltoallv, all_blocks, others_part, all_read_and_written, far_blocks_for_all,
     [](const CollectiveCall& c, size_t i) {
       return Source{static_cast<int>(i / c.count), own_block(c) + i % c.count};
     }},
};

constexpr bool is_whole() {
  for (uint32_t i = 0; i < std::size(kCollectives); ++i) {
    if (static_cast<uint32_t>(kCollectives[i].kind) != i) return false;
  }
  return std::size(kCollectives) == kCollectiveCount;
}
static_assert(is_whole(), "each collective of protocol/operations.def wants its line above");

class MepCollective : public Case {
 public:
  MepCollective(const CollectiveCall& call, mep_comm_t comm) : call_(call), comm_(comm) {}
  void sync() override { require(mep_barrier(comm_, nullptr), "mep_barrier"); }
  void run(uint64_t iterations, double* seconds) override {
    const auto start = std::chrono::steady_clock::now();
    for (uint64_t i = 0; i < iterations; ++i) {
      const mep_result_t result = call_.entry->mep_call(call_, comm_, nullptr);
      if (result != MEP_SUCCESS) fail(result);
    }
    *seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  uint64_t verify(uint32_t round) override {
    fill_collective(call_, round);
    const mep_result_t result = call_.entry->mep_call(call_, comm_, nullptr);
    if (result != MEP_SUCCESS) fail(result);
    return count_collective_errors(call_, round);
  }
  void reset() override { fill_collective(call_, 0); }

 private:
  void fail(mep_result_t result) const {
    require(result, call_.entry->name());
    throw PerfError(std::string(call_.entry->name()) + ": unexpected " + mep_result_string(result));
  }
  CollectiveCall call_;
  mep_comm_t comm_;
};

}  // namespace

mep_result_t CollectiveEntry::mep_call(const CollectiveCall& call, mep_comm_t comm,
                                       mep_stream_t stream) const {
  OperationCall c{call.send, call.recv, call.count, call.dtype, call.reduction, kRoot};
  if (facts_of(kind).has_counts) {
    static thread_local std::vector<uint64_t> counts;
    counts.assign(static_cast<size_t>(call.size), call.count);
    c.counts = c.recv_counts = counts.data();
  }
  return call_collective(kind, c, comm, stream);
}

const CollectiveEntry* find_collective(const std::string& name) {
  for (const CollectiveEntry& entry : kCollectives) {
    if (name == entry.name()) return &entry;
  }
  return nullptr;
}

std::string all_collective_names() {
  std::string names;
  for (const CollectiveEntry& entry : kCollectives) {
    if (!names.empty()) names += ' ';
    names += entry.name();
  }
  return names;
}

std::unique_ptr<Case> make_mep_collective(const CollectiveCall& call, mep_comm_t comm) {
  return std::make_unique<MepCollective>(call, comm);
}

}  // namespace mep::perf

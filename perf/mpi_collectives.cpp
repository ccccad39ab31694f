// The same collectives by MPI. Where MPI has no type for the elements they are moved as bytes;
// bfloat16 sums go through a user-defined operation, which is what an MPI program has to do.
#include <mpi.h>

#include <chrono>
#include <climits>
#include <string>
#include <vector>

#include "collective_check.hpp"
#include "error.hpp"
#include "moe_kernels.hpp"
#include "mpi_side.hpp"
#include "types.hpp"

namespace mep::perf {
namespace {

// How a block is described to MPI.
struct MpiElements {
  int count = 0;
  MPI_Datatype type = MPI_BYTE;
  MPI_Op op = MPI_OP_NULL;
};

// The same count for each rank.
class MpiCounts {
 public:
  MpiCounts(const CollectiveCall& call, const MpiElements& elements) {
    const auto size = static_cast<size_t>(call.size);
    counts_.assign(size, elements.count);
    for (int rank = 0; rank < call.size; ++rank) displs_.push_back(rank * elements.count);
  }
  const int* counts() const { return counts_.data(); }
  const int* displs() const { return displs_.data(); }

 private:
  std::vector<int> counts_;
  std::vector<int> displs_;
};

struct MpiEntry {
  Collective kind;
  void (*call)(const CollectiveCall& call, const MpiElements& elements);
};

const MpiEntry kMpiCollectives[] = {
    {Collective::k_barrier,
     [](const CollectiveCall&, const MpiElements&) { MPI_Barrier(MPI_COMM_WORLD); }},
    {Collective::k_broadcast,
     [](const CollectiveCall& c, const MpiElements& e) {
       // One buffer in MPI: the root's input, everybody else's result.
       MPI_Bcast(c.rank == kRoot ? c.send : c.recv, e.count, e.type, kRoot, MPI_COMM_WORLD);
     }},
    {Collective::k_allgather,
     [](const CollectiveCall& c, const MpiElements& e) {
       MPI_Allgather(c.send, e.count, e.type, c.recv, e.count, e.type, MPI_COMM_WORLD);
     }},
    {Collective::k_allreduce,
     [](const CollectiveCall& c, const MpiElements& e) {
       MPI_Allreduce(c.send, c.recv, e.count, e.type, e.op, MPI_COMM_WORLD);
     }},
    {Collective::k_reduce,
     [](const CollectiveCall& c, const MpiElements& e) {
       MPI_Reduce(c.send, c.recv, e.count, e.type, e.op, kRoot, MPI_COMM_WORLD);
     }},
    {Collective::k_gather,
     [](const CollectiveCall& c, const MpiElements& e) {
       MPI_Gather(c.send, e.count, e.type, c.recv, e.count, e.type, kRoot, MPI_COMM_WORLD);
     }},
    {Collective::k_scatter,
     [](const CollectiveCall& c, const MpiElements& e) {
       MPI_Scatter(c.send, e.count, e.type, c.recv, e.count, e.type, kRoot, MPI_COMM_WORLD);
     }},
    {Collective::k_reduce_scatter,
     [](const CollectiveCall& c, const MpiElements& e) {
       MPI_Reduce_scatter_block(c.send, c.recv, e.count, e.type, e.op, MPI_COMM_WORLD);
     }},
    {Collective::k_alltoall,
     [](const CollectiveCall& c, const MpiElements& e) {
       MPI_Alltoall(c.send, e.count, e.type, c.recv, e.count, e.type, MPI_COMM_WORLD);
     }},
    {Collective::k_allgatherv,
     [](const CollectiveCall& c, const MpiElements& e) {
       const MpiCounts all(c, e);
       MPI_Allgatherv(c.send, e.count, e.type, c.recv, all.counts(), all.displs(), e.type,
                      MPI_COMM_WORLD);
     }},
    {Collective::k_gatherv,
     [](const CollectiveCall& c, const MpiElements& e) {
       const MpiCounts all(c, e);
       MPI_Gatherv(c.send, e.count, e.type, c.recv, all.counts(), all.displs(), e.type, kRoot,
                   MPI_COMM_WORLD);
     }},
    {Collective::k_scatterv,
     [](const CollectiveCall& c, const MpiElements& e) {
       const MpiCounts all(c, e);
       MPI_Scatterv(c.send, all.counts(), all.displs(), e.type, c.recv, e.count, e.type, kRoot,
                    MPI_COMM_WORLD);
     }},
    {Collective::k_reduce_scatterv,
     [](const CollectiveCall& c, const MpiElements& e) {
       const MpiCounts all(c, e);
       MPI_Reduce_scatter(c.send, c.recv, all.counts(), e.type, e.op, MPI_COMM_WORLD);
     }},
    {Collective::k_alltoallv,
     [](const CollectiveCall& c, const MpiElements& e) {
       const MpiCounts all(c, e);
       MPI_Alltoallv(c.send, all.counts(), all.displs(), e.type, c.recv, all.counts(), all.displs(),
                     e.type, MPI_COMM_WORLD);
     }},
};

MPI_Datatype mpi_type(mep_dtype_t dtype) {
  switch (dtype) {
    case MEP_INT8:
      return MPI_INT8_T;
    case MEP_UINT8:
      return MPI_UINT8_T;
    case MEP_INT16:
      return MPI_INT16_T;
    case MEP_UINT16:
    case MEP_BFLOAT16:  // with the operation below
      return MPI_UINT16_T;
    case MEP_INT32:
      return MPI_INT32_T;
    case MEP_UINT32:
      return MPI_UINT32_T;
    case MEP_INT64:
      return MPI_INT64_T;
    case MEP_UINT64:
      return MPI_UINT64_T;
    case MEP_FLOAT32:
      return MPI_FLOAT;
    case MEP_FLOAT64:
      return MPI_DOUBLE;
    case MEP_BOOL:
      return MPI_C_BOOL;
    default:
      return MPI_DATATYPE_NULL;
  }
}

void add_bf16_rows(void* input, void* result, int* count, MPI_Datatype*) {
  add_bf16(static_cast<const uint16_t*>(input), static_cast<uint16_t*>(result),
           static_cast<size_t>(*count));
}

MPI_Op mpi_op(mep_dtype_t dtype, mep_op_t reduction) {
  if (dtype == MEP_BFLOAT16) {
    if (reduction != MEP_SUM) return MPI_OP_NULL;
    static const MPI_Op sum = [] {
      MPI_Op made = MPI_OP_NULL;
      MPI_Op_create(add_bf16_rows, 1, &made);
      return made;
    }();
    return sum;
  }
  const bool is_bool = dtype == MEP_BOOL;
  const bool is_bitwise = reduction == MEP_AND || reduction == MEP_OR || reduction == MEP_XOR;
  const bool is_floating = dtype == MEP_FLOAT32 || dtype == MEP_FLOAT64;
  if ((is_bool && !is_bitwise) || (is_floating && is_bitwise)) return MPI_OP_NULL;
  switch (reduction) {
    case MEP_SUM:
      return MPI_SUM;
    case MEP_PROD:
      return MPI_PROD;
    case MEP_MIN:
      return MPI_MIN;
    case MEP_MAX:
      return MPI_MAX;
    case MEP_AND:
      return is_bool ? MPI_LAND : MPI_BAND;
    case MEP_OR:
      return is_bool ? MPI_LOR : MPI_BOR;
    case MEP_XOR:
      return is_bool ? MPI_LXOR : MPI_BXOR;
    default:
      return MPI_OP_NULL;
  }
}

class MpiCollective : public Case {
 public:
  MpiCollective(const CollectiveCall& call, const MpiEntry& entry, const MpiElements& elements)
      : call_(call), entry_(entry), elements_(elements) {}
  void sync() override { MPI_Barrier(MPI_COMM_WORLD); }
  void run(uint64_t iterations, double* seconds) override {
    const auto start = std::chrono::steady_clock::now();
    for (uint64_t i = 0; i < iterations; ++i) entry_.call(call_, elements_);
    *seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  uint64_t verify(uint32_t round) override {
    fill_collective(call_, round);
    entry_.call(call_, elements_);
    if (facts_of(entry_.kind).send == Blocks::kRoot && call_.rank == kRoot) return 0;
    // The user-defined sum rounds at every step, the reference once: the same while sums are small.
    if (call_.dtype == MEP_BFLOAT16 && call_.entry->has_reduction() && call_.size > 64) return 0;
    return count_collective_errors(call_, round);
  }
  void reset() override { fill_collective(call_, 0); }

 private:
  CollectiveCall call_;
  const MpiEntry& entry_;
  MpiElements elements_;
};

}  // namespace

std::unique_ptr<Case> make_mpi_collective(const CollectiveCall& call) {
  MpiElements elements;
  if (call.entry->has_reduction()) {
    elements.type = mpi_type(call.dtype);
    elements.op = mpi_op(call.dtype, call.reduction);
    if (elements.type == MPI_DATATYPE_NULL || elements.op == MPI_OP_NULL) {
      throw PerfError(std::string("MPI has no ") + reduction_name(call.reduction) + " of " +
                      dtype_name(call.dtype) + "; leave --vs mpi away");
    }
    elements.count = static_cast<int>(call.count);
  } else {
    elements.count = static_cast<int>(call.count * mep_dtype_size(call.dtype));
  }
  for (const MpiEntry& entry : kMpiCollectives) {
    if (entry.kind == call.entry->kind) {
      return std::make_unique<MpiCollective>(call, entry, elements);
    }
  }
  throw PerfError(std::string("no MPI version of ") + call.entry->name() + " is written yet");
}

}  // namespace mep::perf

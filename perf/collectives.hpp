// The collectives that can be timed: all of the table of operations, with what the rates and the check need
// of each; and one line in mpi_collectives.cpp for the same by MPI.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "mep.h"
#include "protocol/operations.hpp"
#include "timing.hpp"

namespace mep::perf {

struct CollectiveEntry;

// One operation of one size, as both sides are called with it.
struct CollectiveCall {
  const CollectiveEntry* entry = nullptr;
  void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;  // elements of one block
  mep_dtype_t dtype = 0;
  mep_op_t reduction = 0;
  int rank = 0;
  int size = 0;
};

// Which input an element of the receive buffer comes from.
struct Source {
  int rank;  // kAllRanks: the reduction over all ranks; kNobody: the element is not written
  size_t index;
};
constexpr int kAllRanks = -1;
constexpr int kNobody = -2;
constexpr int kRoot = 0;

struct CollectiveEntry {
  Collective kind;
  // Algorithm bandwidth is data(size) * block bytes / time; bus bandwidth is bus(size) times that.
  double (*data)(int size);
  double (*bus)(int size);
  // Blocks that all ranks together read and write at least, each once; of the floor on a GPU.
  double (*traffic)(int size);
  // Blocks that each of several GPUs has to take in from others, if that many share the ranks evenly.
  double (*taken_in)(int size, int gpus);
  Source (*source)(const CollectiveCall& call, size_t index);

  const char* name() const { return facts_of(kind).name; }
  bool has_data() const { return facts_of(kind).has_data(); }
  bool has_reduction() const { return facts_of(kind).takes_op; }
  // Blocks of `count` elements in the buffers of one rank, the root's too.
  int send_blocks(int size) const { return blocks(facts_of(kind).send, size); }
  int recv_blocks(int size) const { return blocks(facts_of(kind).receive, size); }
  // Ranks through which as much goes as the bus bandwidth counts: of a broadcast all but the root, of a
  // gather the root.
  int busy_ranks(int size) const {
    const OperationFacts& facts = facts_of(kind);
    if (!facts.is_rooted) return size;
    return facts.gives_each_a_block() || facts.gets_a_block_of_each() ? 1 : size - 1;
  }
  mep_result_t mep_call(const CollectiveCall& call, mep_comm_t comm, mep_stream_t stream) const;

 private:
  static int blocks(Blocks of, int size) {
    return of == Blocks::kAll || of == Blocks::kAllOnRoot ? size : 1;
  }
};

const CollectiveEntry* find_collective(const std::string& name);
std::string all_collective_names();

std::unique_ptr<Case> make_mep_collective(const CollectiveCall& call, mep_comm_t comm);

}  // namespace mep::perf

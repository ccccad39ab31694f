// The collectives of pair_blocks.hpp, and allgather, with a length for each block. A rank knows the lengths of
// what it gives and gets itself, no others, so all begin with the same exchange:
//
//   contribution  u64 given, expected, most, bytes | u32 ends[size] | blocks
//
// `given` is the sum, over all live ranks that get something of this one, of a hash of (this rank, that rank,
// length), and `expected` the sum of such hashes of what this rank expects. If all that is given is expected,
// the sums over all ranks are equal; so each rank finds by itself, and all find the same, whether the lengths
// fit together. `ends` says where the blocks lie, of those that differ by rank.
//
//   Small  every rank's contribution fits into an eager slot: each takes its blocks out of them.
//   Large  some rank's does not. Its slot has the beginning alone, and a flag (EagerRing::kEntryOnly): the
//          blocks go from rank to rank as those of pair_blocks.hpp, in as many sections as the longest
//          has (`most`). A pair of ranks exchanges words of those sections only that its block has. Where some ranks
//          do not map each other the numbers of targets follow the beginning, by rank (landings.hpp).
#pragma once

#include "core/coll/operation.hpp"

namespace mep {

[[nodiscard]] mep_result_t check_counted_blocks(Collective kind, const Collectives& comm,
                                                const CollectiveArgs& args);
[[nodiscard]] mep_result_t prepare_counted_blocks(const Collectives& comm, Operation& operation);
[[nodiscard]] Step step_counted_blocks(Collectives& comm, Operation& operation);
[[nodiscard]] Step settle_counted_blocks(Collectives& comm, Operation& operation);

// Where the blocks of a call lie, whose arguments were checked. The counts are read for the last time.
void lay_out_counted_blocks(Collective kind, const Collectives& comm, const CollectiveArgs& args,
                            CountedBlocks* blocks);

// The length of a contribution in an eager slot of at most `most` bytes; its beginning is there in any case.
[[nodiscard]] size_t counted_contribution_bytes(const std::byte* contribution, size_t most);
// The numbers of targets in one that has no blocks, by rank; null: it has none.
[[nodiscard]] const std::byte* numbers_in_counted(const Collectives& comm,
                                                  const std::byte* contribution);

template <Collective kKind>
constexpr CollectiveType counted_blocks_type() {
  return {facts_of(kKind),
          [](const Collectives& comm, const CollectiveArgs& args) {
            return check_counted_blocks(kKind, comm, args);
          },
          step_counted_blocks, settle_counted_blocks, prepare_counted_blocks};
}

}  // namespace mep

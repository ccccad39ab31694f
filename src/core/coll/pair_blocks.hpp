// Collectives in which each rank that gives has a block for each rank that gets: alltoall, gather, scatter,
// and with an operator reduce_scatter and reduce; allgather and broadcast where ranks of one host do not map each
// other. They differ in what the table says of them: who gives, who gets, whether a buffer has a block for each rank,
// whether blocks are reduced.
//
//   Small  flat: every rank gives its whole contribution to all and takes its blocks out of those that
//          come. In a scatter only the root gives; it is done then, like a broadcast's.
//   Large  section by section of a block: whoever gives puts a section of each rank's block into that
//          rank's in area and signals "posted"; whoever gets copies them out, or reduces them in rank
//          order, and acknowledges by "taken". Reuse of areas: section c + 2 is put after "taken" of c
//          has come from all that get. For the last two sections "finished" is the acknowledgement.
//          All of this is between any two ranks, on any placement. Where each rank sends its entry to each other, the
//          first two sections go before it, and its word stands for their "posted".
//   Landing  between two ranks whose transport has targets the block, or the sections of it behind those, goes
//          straight into the receive buffer (landings.hpp), and one "posted" follows it.
//
//   Ended at the root  where the root is the leader of the only host, whose ranks do not map each other, and a block has
//          at most two sections. Each other rank puts its entry to the root alone: behind its data, or once it has its
//          own. The root has put its entry behind the data, if it gives. Once it has all entries and what it gets, it
//          puts a rooted word without data to all, and that ends the operation. The word is retained like a
//          contribution, so a rank that lacks it gets it in a view change, and has its data already.
//
// All are replicated in their decision: of a small one everybody has all contributions, and a large one is
// done only when all have what they get.
#pragma once

#include "core/coll/operation.hpp"

namespace mep {

[[nodiscard]] mep_result_t check_pair_blocks(Collective kind, const Collectives& comm,
                                             const CollectiveArgs& args);
[[nodiscard]] mep_result_t prepare_pair_blocks(const Collectives& comm, Operation& operation);
[[nodiscard]] Step step_pair_blocks(Collectives& comm, Operation& operation);
[[nodiscard]] Step settle_pair_blocks(Collectives& comm, Operation& operation);

// For those of them whose blocks have a length each as well (counted_blocks.hpp).
// Keeps the input where the result is made in its place, if it is not too long for that.
[[nodiscard]] mep_result_t save_pair_block_input(const Collectives& comm, Operation& operation);
// Reduces `bytes` of each input into the receive buffer, `offset` bytes from its beginning.
void reduce_pair_blocks(const Collectives& comm, Operation& operation,
                        const std::vector<const void*>& inputs, size_t offset, size_t bytes);
// For a communicator in which this rank is alone.
void take_own_pair_block(Collectives& comm, Operation& operation);
// Opens targets in the receive buffer for what has not gone before the entry.
void open_pair_landings(Collectives& comm, Operation& operation);
// Whether the root's word may end a large one.
[[nodiscard]] bool may_end_at_root(const Collectives& comm, const Operation& operation);
// All of a large one whose blocks have one length.
[[nodiscard]] Step step_large_pairs(Collectives& comm, Operation& operation);
// The data of a large one, of which no block has more than so many sections.
[[nodiscard]] Step move_pair_blocks(Collectives& comm, Operation& operation, uint64_t sections);

template <Collective kKind>
constexpr CollectiveType pair_blocks_type() {
  return {facts_of(kKind),
          [](const Collectives& comm, const CollectiveArgs& args) {
            return check_pair_blocks(kKind, comm, args);
          },
          step_pair_blocks, settle_pair_blocks, prepare_pair_blocks};
}

}  // namespace mep

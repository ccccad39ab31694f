// The collectives whose ranks exchange blocks, of one length (pair_blocks.hpp) or each of its own (counted_blocks.hpp),
// and the table of all collectives.
#include "core/coll/counted_blocks.hpp"
#include "core/coll/pair_blocks.hpp"

namespace mep {

// Each rank has a block for each.
const CollectiveType CollectiveTypes::alltoall = pair_blocks_type<Collective::k_alltoall>();
const CollectiveType CollectiveTypes::alltoallv = counted_blocks_type<Collective::k_alltoallv>();
// Each rank has one block for all.
const CollectiveType CollectiveTypes::allgatherv = counted_blocks_type<Collective::k_allgatherv>();
// Each rank has a block for the root.
const CollectiveType CollectiveTypes::gather = pair_blocks_type<Collective::k_gather>();
const CollectiveType CollectiveTypes::gatherv = counted_blocks_type<Collective::k_gatherv>();
// The root has a block for each rank. In a small scatter it gives all blocks to all and is done, as in a broadcast: any
// rank that has them can give another its own. In scatterv the others give what they expect, so the root waits for them.
const CollectiveType CollectiveTypes::scatter = pair_blocks_type<Collective::k_scatter>();
const CollectiveType CollectiveTypes::scatterv = counted_blocks_type<Collective::k_scatterv>();
// The root gets all blocks, section by section, and reduces them in rank order.
const CollectiveType CollectiveTypes::reduce = pair_blocks_type<Collective::k_reduce>();
// Each rank gets the blocks that are its own of all, and reduces them in rank order.
const CollectiveType CollectiveTypes::reduce_scatter =
    pair_blocks_type<Collective::k_reduce_scatter>();
const CollectiveType CollectiveTypes::reduce_scatterv =
    counted_blocks_type<Collective::k_reduce_scatterv>();

const CollectiveType& collective_type(Collective collective) {
  static constexpr const CollectiveType* kTable[] = {
#define MEP_OPERATION(name, ...) &CollectiveTypes::name,
#include "protocol/operations.def"
#undef MEP_OPERATION
  };
  return *kTable[static_cast<size_t>(collective)];
}

}  // namespace mep

// Reduce-scatter: each rank gets the blocks that are its own of all, and reduces them in rank order
// (pair_blocks.hpp).
#include "core/coll/pair_blocks.hpp"

namespace mep {

const CollectiveType CollectiveTypes::reduce_scatter =
    pair_blocks_type<Collective::k_reduce_scatter>();

}  // namespace mep

// Reduce-scatterv: each rank gets the blocks that are its own of all, and reduces them in rank order
// (counted_blocks.hpp).
#include "core/coll/counted_blocks.hpp"

namespace mep {

const CollectiveType CollectiveTypes::reduce_scatterv =
    counted_blocks_type<Collective::k_reduce_scatterv>();

}  // namespace mep

// Scatter: the root has a block for each rank (pair_blocks.hpp). In a small one the root gives all blocks to all and
// is done, as in a broadcast: any rank that has them can give another its own.
#include "core/coll/pair_blocks.hpp"

namespace mep {

const CollectiveType CollectiveTypes::scatter = pair_blocks_type<Collective::k_scatter>();

}  // namespace mep

// Scatter: the root has a block for each rank (pair_blocks.hpp). Of a small one the root gives all blocks to
// all and is done, as of a broadcast: whoever has them can give a rank its own.
#include "core/coll/pair_blocks.hpp"

namespace mep {

const CollectiveType CollectiveTypes::scatter = pair_blocks_type<Collective::k_scatter>();

}  // namespace mep

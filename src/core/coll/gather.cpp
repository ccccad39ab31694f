// Gather: each rank has a block for the root (pair_blocks.hpp).
#include "core/coll/pair_blocks.hpp"

namespace mep {

const CollectiveType CollectiveTypes::gather = pair_blocks_type<Collective::k_gather>();

}  // namespace mep

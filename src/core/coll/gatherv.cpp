// Gatherv: each rank has a block for the root, of its own length (counted_blocks.hpp).
#include "core/coll/counted_blocks.hpp"

namespace mep {

const CollectiveType CollectiveTypes::gatherv = counted_blocks_type<Collective::k_gatherv>();

}  // namespace mep

// Scatterv: the root has a block for each rank, each of its own length. The others give what they expect, so
// the root waits for them, unlike that of a scatter (counted_blocks.hpp).
#include "core/coll/counted_blocks.hpp"

namespace mep {

const CollectiveType CollectiveTypes::scatterv = counted_blocks_type<Collective::k_scatterv>();

}  // namespace mep

// Alltoallv: each rank has a block for each, all of their own lengths (counted_blocks.hpp).
#include "core/coll/counted_blocks.hpp"

namespace mep {

const CollectiveType CollectiveTypes::alltoallv = counted_blocks_type<Collective::k_alltoallv>();

}  // namespace mep

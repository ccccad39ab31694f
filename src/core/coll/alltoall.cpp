// Alltoall: each rank has a block for each (pair_blocks.hpp).
#include "core/coll/pair_blocks.hpp"

namespace mep {

const CollectiveType CollectiveTypes::alltoall = pair_blocks_type<Collective::k_alltoall>();

}  // namespace mep

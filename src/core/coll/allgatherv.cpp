// Allgatherv: each rank has one block, of its own length, for all (counted_blocks.hpp).
#include "core/coll/counted_blocks.hpp"

namespace mep {

const CollectiveType CollectiveTypes::allgatherv = counted_blocks_type<Collective::k_allgatherv>();

}  // namespace mep

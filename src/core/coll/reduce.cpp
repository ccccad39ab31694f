// Reduce: the root gets all blocks, section by section, and reduces them in rank order (pair_blocks.hpp).
#include "core/coll/pair_blocks.hpp"

namespace mep {

const CollectiveType CollectiveTypes::reduce = pair_blocks_type<Collective::k_reduce>();

}  // namespace mep

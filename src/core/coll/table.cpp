#include "core/coll/operation.hpp"

namespace mep {

#define MEP_COLLECTIVE(name, type) extern const CollectiveType type;
#include "core/coll/collectives.def"
#undef MEP_COLLECTIVE

const CollectiveType& collective_type(Collective collective) {
  static constexpr const CollectiveType* kTable[] = {
#define MEP_COLLECTIVE(name, type) &(type),
#include "core/coll/collectives.def"
#undef MEP_COLLECTIVE
  };
  return *kTable[static_cast<size_t>(collective)];
}

}  // namespace mep

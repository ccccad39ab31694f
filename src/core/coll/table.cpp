#include "core/coll/operation.hpp"

namespace mep {

const CollectiveType& collective_type(Collective collective) {
  static constexpr const CollectiveType* kTable[] = {
#define MEP_OPERATION(name, ...) &CollectiveTypes::name,
#include "protocol/operations.def"
#undef MEP_OPERATION
  };
  return *kTable[static_cast<size_t>(collective)];
}

}  // namespace mep

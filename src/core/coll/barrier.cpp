// Barrier: an exchange of empty contributions.
#include "core/coll/steps.hpp"

namespace mep {
namespace {

mep_result_t check(const Collectives&, const CollectiveArgs&) {
  return MEP_SUCCESS;
}

Step step(Collectives& comm, Operation& operation) {
  return exchange_small(comm, operation, [] {});
}

Step settle(Collectives&, Operation&) {
  return Step::kDone;
}

}  // namespace

const CollectiveType CollectiveTypes::barrier = {facts_of(Collective::k_barrier), check, step,
                                                 settle};

}  // namespace mep

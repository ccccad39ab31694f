// Barrier: an exchange of empty contributions.
#include "core/coll/steps.hpp"

namespace mep {
namespace {

mep_result_t check_barrier(const Collectives&, const CollectiveArgs&) {
  return MEP_SUCCESS;
}

Step step_barrier(Collectives& comm, Operation& operation) {
  return exchange_small(comm, operation, [] {});
}

Step settle_barrier(Collectives&, Operation&) {
  return Step::kDone;
}

}  // namespace

const CollectiveType CollectiveTypes::barrier = {facts_of(Collective::k_barrier), check_barrier,
                                                 step_barrier, settle_barrier};

}  // namespace mep

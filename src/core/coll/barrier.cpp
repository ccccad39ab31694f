// Barrier: an exchange of empty cells.
#include "core/coll/steps.hpp"

namespace mep {
namespace {

mep_result_t check(const Collectives&, const CollectiveArgs&) {
  return MEP_SUCCESS;
}

Step step(Collectives& comm, Operation& operation) {
  if (operation.phase == 0) {
    const Step entered = enter_small(comm, operation, nullptr, 0);
    if (entered != Step::kDone) return entered;
    operation.phase = 1;
  }
  const Step collected = collect_small(comm, operation);
  if (collected == Step::kDone) comm.cells().note_all_entered(operation.seq);
  return collected;
}

Step settle(Collectives&, Operation&) {
  return Step::kDone;
}

}  // namespace

const CollectiveType CollectiveTypes::barrier = {facts_of(Collective::k_barrier), check, step,
                                                 settle};

}  // namespace mep

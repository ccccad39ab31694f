#include "core/staged/stage_plan.hpp"

#include "base/status.hpp"

namespace mep {

mep_result_t plan_stage(Collective kind, uint32_t rank, uint32_t ranks, uint32_t root,
                        StagePlan* plan) {
  *plan = {};
  if (!runs_on(kind, backends::kStaged)) {
    return fail(MEP_ERR_UNSUPPORTED, "%s through host memory is not built", name_of(kind));
  }
  const OperationFacts& facts = facts_of(kind);
  plan->gives = facts.gives(rank, root);
  plan->gets = facts.gets(rank, root);
  const bool one_gives = facts.send == Blocks::kOne || facts.send == Blocks::kRoot;
  if (!facts.has_data()) return MEP_SUCCESS;
  if (one_gives && facts.receive == Blocks::kOne) {
    // A reduction's input must stay as it is while others read it.
    plan->is_output_apart = facts.takes_op;
    plan->blocks = facts.takes_op ? 2 : 1;
    return MEP_SUCCESS;
  }
  if (facts.send == Blocks::kOne && facts.receive == Blocks::kAll && !facts.takes_op) {
    plan->blocks = ranks;
    plan->send_row = rank;
    plan->receive_rows = ranks;
    return MEP_SUCCESS;
  }
  return fail(MEP_ERR_UNSUPPORTED, "%s through host memory has no place in the staging",
              name_of(kind));
}

}  // namespace mep

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
  if (facts.has_counts) {
    return fail(MEP_ERR_UNSUPPORTED, "%s through host memory has no place in the staging",
                name_of(kind));
  }
  plan->gives = facts.gives(rank, root);
  plan->gets = facts.gets(rank, root);
  if (!facts.has_data()) return MEP_SUCCESS;
  plan->send_rows = facts.send_blocks(ranks);
  plan->receive_rows = facts.receive_blocks(ranks);
  const bool gives_each = facts.gives_each_a_block();
  const bool gets_of_each = facts.gets_a_block_of_each();
  // A reduction's input must stay as it is while others read it; an alltoall has no in-place form.
  plan->is_output_apart = facts.takes_op || (gives_each && gets_of_each);
  if (plan->is_output_apart) {
    plan->blocks = plan->send_rows + plan->receive_rows;
    return MEP_SUCCESS;
  }
  plan->blocks = gives_each || gets_of_each ? ranks : 1;
  if (gets_of_each) plan->send_row = rank;
  if (gives_each) plan->receive_row = rank;
  return MEP_SUCCESS;
}

}  // namespace mep

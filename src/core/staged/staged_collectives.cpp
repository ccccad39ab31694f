#include "core/staged/staged_collectives.hpp"

#include <algorithm>
#include <bit>
#include <vector>

#include "base/status.hpp"

namespace mep {
namespace {

// How the operation ended. seen: the number of the last one before it; the same now: it took none.
void tell_status(const Comm& comm, uint64_t seen, mep_result_t result, device::OpStatus* status) {
  const OperationRecord& last = comm.collectives().record();
  if (last.any && last.seq != seen) return last.fill_status(&status->head, sizeof *status);
  OperationRecord refused;
  refused.epoch = comm.latest_view()->epoch;
  refused.result = result;
  refused.fill_status(&status->head, sizeof *status);
}

// The call took no operation but only told of a rank that was lost before: see OperationRecord::is_report. Since then
// others were let in, whose first call is this one.
bool only_tells(const Comm& comm, uint64_t seen, mep_result_t result) {
  const OperationRecord& last = comm.collectives().record();
  if ((result != MEP_ERR_PEER_FAILED && result != MEP_ERR_PEER_LEFT) || last.seq == seen ||
      !last.is_report) {
    return false;
  }
  const auto latest = comm.latest_view();
  const std::vector<uint64_t>& known = comm.adopted().incarnations;
  return std::any_of(latest->live.begin(), latest->live.end(),
                     [&](uint32_t rank) { return latest->incarnations[rank] != known[rank]; });
}

}  // namespace

mep_result_t run_staged(Comm& comm, Collective kind, const CollectiveArgs& args, bool begins,
                        const TellStaged& tell, device::StageAnswer* answer) {
  // For the control thread: windows of peers may be in use. Nobody else calls this comm.
  (void)comm.enter_call();
  uint64_t seen = comm.collectives().record().seq;
  mep_result_t result = comm.run(kind, args);
  while (begins && only_tells(comm, seen, result)) {
    tell(result);
    seen = comm.collectives().record().seq;
    result = comm.run(kind, args);
  }
  if (result != MEP_SUCCESS) tell_status(comm, seen, result, &answer->status);
  comm.leave_call();
  return result;
}

void tell_last_status(const Comm& comm, device::StageAnswer* answer) {
  comm.collectives().record().fill_status(&answer->status.head, sizeof answer->status);
}

mep_result_t serve_staged_collective(Comm& comm, const device::StageRequest& request,
                                     device::StageAnswer* answer, const TellStaged& tell) {
  const device::StageCollective& given = request.collective;
  const Collective kind = given.kind;
  if (!runs_on(kind, backends::kStaged) || facts_of(kind).has_counts) {
    return fail(MEP_ERR_UNSUPPORTED, "%s through host memory is not built (kind %u)", name_of(kind),
                static_cast<uint32_t>(kind));
  }
  CollectiveArgs args;
  args.send = std::bit_cast<const void*>(given.send);
  args.receive = std::bit_cast<void*>(given.receive);
  args.count = given.count;
  args.dtype = given.dtype;
  args.op = given.op;
  args.root = given.root;
  // Not where parts of it ran in the old view.
  MEP_TRY(run_staged(comm, kind, args, request.continues == 0, tell, answer));
  tell_last_status(comm, answer);
  answer->delivers = 1;
  mep_op_info_t info{};
  info.contributors = answer->live;
  info.contributors_words = device::kStageRankWords;
  return comm.collectives().last_op(&info);
}

}  // namespace mep

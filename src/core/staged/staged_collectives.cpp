#include "core/staged/staged_collectives.hpp"

#include <bit>

#include "base/status.hpp"

namespace mep {
namespace {

Collective collective_of(device::StageKind kind) {
  switch (kind) {
    case device::StageKind::kBarrier:
      return Collective::k_barrier;
    case device::StageKind::kBroadcast:
      return Collective::k_broadcast;
    case device::StageKind::kAllgather:
      return Collective::k_allgather;
    default:
      return Collective::k_allreduce;
  }
}

}  // namespace

mep_result_t serve_staged_collective(Comm& comm, const device::StageRequest& request,
                                     device::StageAnswer* answer) {
  const device::StageCollective& given = request.collective;
  CollectiveArgs args;
  args.send = std::bit_cast<const void*>(given.send);
  args.receive = std::bit_cast<void*>(given.receive);
  args.count = given.count;
  args.dtype = given.dtype;
  args.op = given.op;
  args.root = given.root;
  // For the control thread: windows of peers may be in use. Nobody else calls this comm.
  (void)comm.enter_call();
  const mep_result_t result = comm.run(collective_of(request.kind), args);
  comm.leave_call();
  if (result != MEP_SUCCESS) return result;
  answer->delivers = 1;
  mep_op_info_t info{};
  info.contributors = answer->live;
  info.contributors_words = device::kStageRankWords;
  return comm.collectives().last_op(&info);
}

}  // namespace mep

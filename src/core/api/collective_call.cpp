#include "core/api/collective_call.hpp"

#include "core/api/recover.hpp"

namespace mep {

bool admits_joiners(mep_comm_t comm) {
  return comm != nullptr && (comm->is_world || comm->is_grown) &&
         (comm->comm->world().config().flags & MEP_COMM_AUTO_RECOVER) != 0;
}

uint64_t counted_bytes(Collective kind, const CollectiveArgs& args, const Comm& comm) {
  const BlockCounts& given = *args.counts;
  uint64_t elements = 0;
  if (facts_of(kind).gives_each_a_block()) {
    for (uint32_t rank = 0; rank < comm.size(); ++rank) elements += given.counts[rank];
  } else {
    elements = given.own != nullptr ? *given.own : given.counts[comm.rank()];
  }
  return elements * mep_dtype_size(args.dtype);
}

uint64_t record_enqueueing(Collective kind, const CollectiveArgs& args, mep_comm_t comm) {
  if (comm->backend->device() < 0) return 0;
  return comm->comm->identity().flight().begin({.epoch = comm->comm->latest_view()->epoch,
                                                .bytes = args.count * mep_dtype_size(args.dtype),
                                                .kind = flight::kind_of(kind),
                                                .dtype = args.dtype,
                                                .flags = flight::kEnqueued,
                                                .peer = facts_of(kind).is_rooted ? args.root : -1});
}

mep_result_t run_admitting(mep_comm_t comm, mep_stream_t stream) {
  MEP_TRY(check_comm(comm));
  MEP_TRY(check_no_stream(stream));
  return guarded([&]() -> mep_result_t {
    const CallScope scope(comm);
    MEP_TRY(scope.check());
    CountedCall counted(comm->comm->counters(), CallKind::kCollective, "barrier");
    return counted.end(barrier_with_admission(*comm->comm), 0);
  });
}

}  // namespace mep

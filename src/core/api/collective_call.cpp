#include "core/api/collective_call.hpp"

#include <numeric>

#include "core/api/recover.hpp"

namespace mep {
namespace {

// Where this rank's block begins in a buffer with a block for each rank.
size_t own_block(const CollectiveArgs& args, uint32_t rank) {
  const size_t element = mep_dtype_size(args.dtype);
  if (args.counts == nullptr) return rank * args.count * element;
  const BlockCounts& given = *args.counts;
  if (given.displs != nullptr) return given.displs[rank] * element;
  return std::accumulate(given.counts, given.counts + rank, uint64_t{0}) * element;
}

}  // namespace

mep_result_t resolve_in_place(Collective kind, const Comm& comm, CollectiveArgs* args) {
  const OperationFacts& facts = facts_of(kind);
  const bool is_of_send = is_in_place_mark(args->send);
  const char* const name = is_of_send ? "sendbuf" : "recvbuf";
  const bool lies_in_send = facts.gives_each_a_block();
  if ((lies_in_send && facts.gets_a_block_of_each()) || is_of_send == lies_in_send ||
      args->receive == args->send) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "mep_%s: %s is MEP_IN_PLACE, which has no meaning there",
                facts.name, name);
  }
  const auto root = static_cast<uint32_t>(args->root);
  if (is_of_send && !facts.gives(comm.rank(), root)) {
    args->send = nullptr;
    return MEP_SUCCESS;
  }
  if (!facts.gives(comm.rank(), root) || !facts.gets(comm.rank(), root)) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "mep_%s: %s is MEP_IN_PLACE on rank %u; only the root, %d, has both buffers",
                facts.name, name, comm.rank(), args->root);
  }
  if (facts.has_counts && args->counts->counts == nullptr) return null_argument("counts");
  if (lies_in_send) {
    args->receive = const_cast<std::byte*>(static_cast<const std::byte*>(args->send)) +
                    own_block(*args, comm.rank());
  } else {
    args->send = static_cast<std::byte*>(args->receive) +
                 (facts.gets_a_block_of_each() ? own_block(*args, comm.rank()) : 0);
  }
  return MEP_SUCCESS;
}

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

FlightCall flight_call(Collective kind, const CollectiveArgs& args) {
  return {.bytes = args.count * mep_dtype_size(args.dtype),
          .kind = flight::kind_of(kind),
          .dtype = args.dtype,
          .peer = facts_of(kind).is_rooted ? args.root : -1};
}

mep_result_t run_admitting(mep_comm_t comm, mep_stream_t stream) {
  MEP_TRY(check_comm(comm));
  MEP_TRY(check_no_stream(stream));
  return guarded([&]() -> mep_result_t {
    const CallScope scope(comm);
    MEP_TRY(scope.check());
    ObservedCall observed(*comm, "barrier", CallKind::kCollective);
    return observed.end(CallKind::kCollective, barrier_with_admission(*comm->comm), 0);
  });
}

}  // namespace mep

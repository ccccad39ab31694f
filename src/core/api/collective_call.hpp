// The body of the functions mep_NAME of the collectives, which collective_calls.cpp defines.
#pragma once

#include "core/api/api_guard.hpp"
#include "core/api/group.hpp"
#include "core/api/observed_call.hpp"
#include "core/api/requests.hpp"

namespace mep {

// Ready joiners enter at a barrier on this communicator.
bool admits_joiners(mep_comm_t comm);
// Bytes that this rank gives to a call whose arguments are right.
uint64_t counted_bytes(Collective kind, const CollectiveArgs& args, const Comm& comm);
inline uint64_t given_bytes(Collective kind, const CollectiveArgs& args, const Comm& comm) {
  const OperationFacts& facts = facts_of(kind);
  if (!facts.gives(comm.rank(), static_cast<uint32_t>(args.root))) return 0;
  if (facts.has_counts) return counted_bytes(kind, args, comm);
  return args.count * mep_dtype_size(args.dtype) * facts.send_blocks(comm.size());
}

FlightCall flight_call(Collective kind, const CollectiveArgs& args);

mep_result_t run_admitting(mep_comm_t comm, mep_stream_t stream);

inline bool is_in_place_mark(const void* buffer) {
  return buffer == MEP_IN_PLACE;  // NOLINT(performance-no-int-to-ptr): the header's, for C
}
inline bool is_in_place(const CollectiveArgs& args) {
  return is_in_place_mark(args.send) || is_in_place_mark(args.receive);
}
// Puts the address that MEP_IN_PLACE stands for into *args, or says why there is none.
[[nodiscard]] mep_result_t resolve_in_place(Collective kind, const Comm& comm,
                                            CollectiveArgs* args);

template <Collective kKind>
mep_result_t run(const CollectiveArgs& args, mep_comm_t comm, mep_stream_t stream) {
  if constexpr (kKind == Collective::k_barrier) {
    if (admits_joiners(comm)) [[unlikely]]
      return run_admitting(comm, stream);
  }
  MEP_TRY(check_comm(comm));
  if (is_in_place(args)) [[unlikely]] {
    CollectiveArgs resolved = args;
    MEP_TRY(resolve_in_place(kKind, *comm->comm, &resolved));
    return run<kKind>(resolved, comm, stream);
  }
  if (in_group() && !comm->backend->enqueues()) [[unlikely]] {
    MEP_TRY(check_no_stream(stream));
    return guarded([&] {
      return start_in_group([&](mep_request_t* request) {
        return start_request(comm, kKind, args, stream, request);
      });
    });
  }
  return guarded([&]() -> mep_result_t {
    const CallScope scope(comm);
    MEP_TRY(scope.check());
    ObservedCall observed(*comm, name_of(kKind), CallKind::kCollective);
    observed.record([&] { return flight_call(kKind, args); });
    const mep_result_t result = comm->backend->run(kKind, args, stream);
    return observed.end(CallKind::kCollective, result,
                        result == MEP_SUCCESS ? given_bytes(kKind, args, *comm->comm) : 0);
  });
}

}  // namespace mep

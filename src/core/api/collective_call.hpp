// The body of the functions mep_NAME of the collectives, which collective_calls.cpp defines.
#pragma once

#include "core/api/api_guard.hpp"
#include "core/api/group.hpp"
#include "core/api/requests.hpp"

namespace mep {

// Ready joiners enter at a barrier on this communicator.
bool admits_joiners(mep_comm_t comm);
mep_result_t run_admitting(mep_comm_t comm, mep_stream_t stream);

template <Collective kKind>
mep_result_t run(const CollectiveArgs& args, mep_comm_t comm, mep_stream_t stream) {
  if constexpr (kKind == Collective::k_barrier) {
    if (admits_joiners(comm)) [[unlikely]]
      return run_admitting(comm, stream);
  }
  MEP_TRY(check_comm(comm));
  if (in_group() && comm->backend->device() < 0) [[unlikely]] {
    MEP_TRY(check_no_stream(stream));
    return guarded([&] {
      return start_in_group(
          [&](mep_request_t* request) { return start_request(comm, kKind, args, request); });
    });
  }
  return guarded([&]() -> mep_result_t {
    const CallScope scope(comm);
    MEP_TRY(scope.check());
    return comm->backend->run(kKind, args, stream);
  });
}

}  // namespace mep

#include "core/api/collective_call.hpp"

#include "core/api/recover.hpp"

namespace mep {

bool admits_joiners(mep_comm_t comm) {
  return comm != nullptr && (comm->is_world || comm->is_grown) &&
         (comm->comm->world().config().flags & MEP_COMM_AUTO_RECOVER) != 0;
}

mep_result_t run_admitting(mep_comm_t comm, mep_stream_t stream) {
  MEP_TRY(check_comm(comm));
  MEP_TRY(check_no_stream(stream));
  return guarded([&]() -> mep_result_t {
    const CallScope scope(comm);
    MEP_TRY(scope.check());
    return barrier_with_admission(*comm->comm);
  });
}

}  // namespace mep

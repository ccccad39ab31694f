// The collectives: bodies of all functions of the table, mep_NAME and mep_iNAME. mep.h declares them; a line
// of the table that fits no declaration does not compile.
#include "core/api/api_guard.hpp"
#include "core/api/recover.hpp"
#include "core/api/requests.hpp"

namespace mep {
namespace {

// Ready newcomers enter at a barrier on the world.
bool admits_newcomers(mep_comm_t comm) {
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

template <Collective kKind>
mep_result_t run(mep_comm_t comm, mep_stream_t stream, const CollectiveArgs& args) {
  if constexpr (kKind == Collective::k_barrier) {
    if (admits_newcomers(comm)) [[unlikely]]
      return run_admitting(comm, stream);
  }
  MEP_TRY(check_comm(comm));
  return guarded([&]() -> mep_result_t {
    const CallScope scope(comm);
    MEP_TRY(scope.check());
    return comm->backend->run(kKind, args, stream);
  });
}

}  // namespace
}  // namespace mep

// What `takes` says: the parameters before `comm`, and the arguments that they make.
#define MEP_PARAMETERS_Nothing
#define MEP_PARAMETERS_Data const void *sendbuf, void *recvbuf, size_t count, mep_dtype_t dtype,
#define MEP_PARAMETERS_DataRoot MEP_PARAMETERS_Data int32_t root,
#define MEP_PARAMETERS_DataOp MEP_PARAMETERS_Data mep_op_t op,
#define MEP_PARAMETERS_DataOpRoot MEP_PARAMETERS_Data mep_op_t op, int32_t root,
#define MEP_ARGUMENTS_Nothing
#define MEP_ARGUMENTS_Data sendbuf, recvbuf, count, dtype, 0, 0
#define MEP_ARGUMENTS_DataRoot sendbuf, recvbuf, count, dtype, 0, root
#define MEP_ARGUMENTS_DataOp sendbuf, recvbuf, count, dtype, op, 0
#define MEP_ARGUMENTS_DataOpRoot sendbuf, recvbuf, count, dtype, op, root

#define MEP_DEFINE_Blocking(name, takes)                                                 \
  mep_result_t mep_##name(MEP_PARAMETERS_##takes mep_comm_t comm, mep_stream_t stream) { \
    return mep::run<mep::Collective::k_##name>(comm, stream, {MEP_ARGUMENTS_##takes});   \
  }
#define MEP_DEFINE_Both(name, takes)                                                              \
  MEP_DEFINE_Blocking(name, takes)                                                                \
      mep_result_t mep_i##name(MEP_PARAMETERS_##takes mep_comm_t comm, mep_request_t* request) {  \
    return mep::start_request(comm, mep::Collective::k_##name, {MEP_ARGUMENTS_##takes}, request); \
  }

#define MEP_OPERATION(name, class_, takes, send, receive, forms, backends) \
  MEP_DEFINE_##forms(name, takes)
#include "protocol/operations.def"
#undef MEP_OPERATION

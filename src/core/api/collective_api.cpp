// Blocking collectives: one function each, two lines of ABI.
#include "core/api/api_guard.hpp"
#include "core/api/recover.hpp"

namespace {

mep_result_t run(mep_comm_t comm, mep_stream_t stream, mep::Collective kind,
                 const mep::CollectiveArgs& args) {
  MEP_TRY(mep::check_comm(comm));
  if (comm->device == nullptr) MEP_TRY(mep::check_stream(stream));
  return mep::guarded([&]() -> mep_result_t {
    const mep::CallScope scope(comm);
    MEP_TRY(scope.check());
    if (comm->device != nullptr) return comm->device->enqueue(kind, args, stream);
    return comm->comm->run(kind, args);
  });
}

}  // namespace

mep_result_t mep_barrier(mep_comm_t comm, mep_stream_t stream) {
  if (comm != nullptr && (comm->is_world || comm->is_grown) &&
      (comm->comm->world().config().flags & MEP_COMM_AUTO_RECOVER) != 0) {
    MEP_TRY(mep::check_comm(comm));
    MEP_TRY(mep::check_stream(stream));
    return mep::guarded([&]() -> mep_result_t {
      const mep::CallScope scope(comm);
      MEP_TRY(scope.check());
      return mep::barrier_with_admission(*comm->comm);
    });
  }
  return run(comm, stream, mep::Collective::k_barrier, {});
}

mep_result_t mep_broadcast(const void* sendbuf, void* recvbuf, size_t count, mep_dtype_t dtype,
                           int32_t root, mep_comm_t comm, mep_stream_t stream) {
  return run(comm, stream, mep::Collective::k_broadcast, {sendbuf, recvbuf, count, dtype, 0, root});
}

mep_result_t mep_allgather(const void* sendbuf, void* recvbuf, size_t count, mep_dtype_t dtype,
                           mep_comm_t comm, mep_stream_t stream) {
  return run(comm, stream, mep::Collective::k_allgather, {sendbuf, recvbuf, count, dtype, 0, 0});
}

mep_result_t mep_allreduce(const void* sendbuf, void* recvbuf, size_t count, mep_dtype_t dtype,
                           mep_op_t op, mep_comm_t comm, mep_stream_t stream) {
  return run(comm, stream, mep::Collective::k_allreduce, {sendbuf, recvbuf, count, dtype, op, 0});
}

// The collectives of mep.h. Made by bindings/make_bindings.py from the table of operations; do not edit.
// clang-format off
#include "core/api/collective_call.hpp"

using mep::BlockCounts;
using mep::Collective;
using mep::CollectiveArgs;

mep_result_t mep_barrier(mep_comm_t comm, mep_stream_t stream) {
  return mep::run<Collective::k_barrier>(CollectiveArgs(), comm, stream);
}

mep_result_t mep_broadcast(const void* sendbuf, void* recvbuf, size_t count, mep_dtype_t dtype,
                           int32_t root, mep_comm_t comm, mep_stream_t stream) {
  const CollectiveArgs args{.send = sendbuf, .receive = recvbuf, .count = count, .dtype = dtype,
                            .root = root};
  return mep::run<Collective::k_broadcast>(args, comm, stream);
}

mep_result_t mep_allgather(const void* sendbuf, void* recvbuf, size_t count, mep_dtype_t dtype,
                           mep_comm_t comm, mep_stream_t stream) {
  const CollectiveArgs args{.send = sendbuf, .receive = recvbuf, .count = count, .dtype = dtype};
  return mep::run<Collective::k_allgather>(args, comm, stream);
}

mep_result_t mep_allreduce(const void* sendbuf, void* recvbuf, size_t count, mep_dtype_t dtype,
                           mep_op_t op, mep_comm_t comm, mep_stream_t stream) {
  const CollectiveArgs args{.send = sendbuf, .receive = recvbuf, .count = count, .dtype = dtype,
                            .op = op};
  return mep::run<Collective::k_allreduce>(args, comm, stream);
}

mep_result_t mep_reduce(const void* sendbuf, void* recvbuf, size_t count, mep_dtype_t dtype,
                        mep_op_t op, int32_t root, mep_comm_t comm, mep_stream_t stream) {
  const CollectiveArgs args{.send = sendbuf, .receive = recvbuf, .count = count, .dtype = dtype,
                            .op = op, .root = root};
  return mep::run<Collective::k_reduce>(args, comm, stream);
}

mep_result_t mep_gather(const void* sendbuf, void* recvbuf, size_t count, mep_dtype_t dtype,
                        int32_t root, mep_comm_t comm, mep_stream_t stream) {
  const CollectiveArgs args{.send = sendbuf, .receive = recvbuf, .count = count, .dtype = dtype,
                            .root = root};
  return mep::run<Collective::k_gather>(args, comm, stream);
}

mep_result_t mep_scatter(const void* sendbuf, void* recvbuf, size_t count, mep_dtype_t dtype,
                         int32_t root, mep_comm_t comm, mep_stream_t stream) {
  const CollectiveArgs args{.send = sendbuf, .receive = recvbuf, .count = count, .dtype = dtype,
                            .root = root};
  return mep::run<Collective::k_scatter>(args, comm, stream);
}

mep_result_t mep_reduce_scatter(const void* sendbuf, void* recvbuf, size_t count,
                                mep_dtype_t dtype, mep_op_t op, mep_comm_t comm,
                                mep_stream_t stream) {
  const CollectiveArgs args{.send = sendbuf, .receive = recvbuf, .count = count, .dtype = dtype,
                            .op = op};
  return mep::run<Collective::k_reduce_scatter>(args, comm, stream);
}

mep_result_t mep_alltoall(const void* sendbuf, void* recvbuf, size_t count, mep_dtype_t dtype,
                          mep_comm_t comm, mep_stream_t stream) {
  const CollectiveArgs args{.send = sendbuf, .receive = recvbuf, .count = count, .dtype = dtype};
  return mep::run<Collective::k_alltoall>(args, comm, stream);
}

mep_result_t mep_allgatherv(const void* sendbuf, void* recvbuf, const uint64_t* counts,
                            const uint64_t* displs, mep_dtype_t dtype, mep_comm_t comm,
                            mep_stream_t stream) {
  const BlockCounts blocks{.counts = counts, .displs = displs};
  const CollectiveArgs args{.send = sendbuf, .receive = recvbuf, .dtype = dtype,
                            .counts = &blocks};
  return mep::run<Collective::k_allgatherv>(args, comm, stream);
}

mep_result_t mep_gatherv(const void* sendbuf, void* recvbuf, size_t count, const uint64_t* counts,
                         const uint64_t* displs, mep_dtype_t dtype, int32_t root, mep_comm_t comm,
                         mep_stream_t stream) {
  const BlockCounts blocks{.own = &count, .counts = counts, .displs = displs};
  const CollectiveArgs args{.send = sendbuf, .receive = recvbuf, .dtype = dtype, .root = root,
                            .counts = &blocks};
  return mep::run<Collective::k_gatherv>(args, comm, stream);
}

mep_result_t mep_scatterv(const void* sendbuf, void* recvbuf, size_t count, const uint64_t* counts,
                          const uint64_t* displs, mep_dtype_t dtype, int32_t root, mep_comm_t comm,
                          mep_stream_t stream) {
  const BlockCounts blocks{.own = &count, .counts = counts, .displs = displs};
  const CollectiveArgs args{.send = sendbuf, .receive = recvbuf, .dtype = dtype, .root = root,
                            .counts = &blocks};
  return mep::run<Collective::k_scatterv>(args, comm, stream);
}

mep_result_t mep_reduce_scatterv(const void* sendbuf, void* recvbuf, const uint64_t* counts,
                                 const uint64_t* displs, mep_dtype_t dtype, mep_op_t op,
                                 mep_comm_t comm, mep_stream_t stream) {
  const BlockCounts blocks{.counts = counts, .displs = displs};
  const CollectiveArgs args{.send = sendbuf, .receive = recvbuf, .dtype = dtype, .op = op,
                            .counts = &blocks};
  return mep::run<Collective::k_reduce_scatterv>(args, comm, stream);
}

mep_result_t mep_alltoallv(const void* sendbuf, void* recvbuf, const uint64_t* sendcounts,
                           const uint64_t* senddispls, const uint64_t* recvcounts,
                           const uint64_t* recvdispls, mep_dtype_t dtype, mep_comm_t comm,
                           mep_stream_t stream) {
  const BlockCounts blocks{.counts = sendcounts, .displs = senddispls, .recv_counts = recvcounts, .recv_displs = recvdispls};
  const CollectiveArgs args{.send = sendbuf, .receive = recvbuf, .dtype = dtype,
                            .counts = &blocks};
  return mep::run<Collective::k_alltoallv>(args, comm, stream);
}

mep_result_t mep_ibarrier(mep_comm_t comm, mep_stream_t stream, mep_request_t* request) {
  return mep::start_request(comm, Collective::k_barrier, CollectiveArgs(), stream, request);
}

mep_result_t mep_ibroadcast(const void* sendbuf, void* recvbuf, size_t count, mep_dtype_t dtype,
                            int32_t root, mep_comm_t comm, mep_stream_t stream,
                            mep_request_t* request) {
  const CollectiveArgs args{.send = sendbuf, .receive = recvbuf, .count = count, .dtype = dtype,
                            .root = root};
  return mep::start_request(comm, Collective::k_broadcast, args, stream, request);
}

mep_result_t mep_iallgather(const void* sendbuf, void* recvbuf, size_t count, mep_dtype_t dtype,
                            mep_comm_t comm, mep_stream_t stream, mep_request_t* request) {
  const CollectiveArgs args{.send = sendbuf, .receive = recvbuf, .count = count, .dtype = dtype};
  return mep::start_request(comm, Collective::k_allgather, args, stream, request);
}

mep_result_t mep_iallreduce(const void* sendbuf, void* recvbuf, size_t count, mep_dtype_t dtype,
                            mep_op_t op, mep_comm_t comm, mep_stream_t stream,
                            mep_request_t* request) {
  const CollectiveArgs args{.send = sendbuf, .receive = recvbuf, .count = count, .dtype = dtype,
                            .op = op};
  return mep::start_request(comm, Collective::k_allreduce, args, stream, request);
}

mep_result_t mep_ireduce(const void* sendbuf, void* recvbuf, size_t count, mep_dtype_t dtype,
                         mep_op_t op, int32_t root, mep_comm_t comm, mep_stream_t stream,
                         mep_request_t* request) {
  const CollectiveArgs args{.send = sendbuf, .receive = recvbuf, .count = count, .dtype = dtype,
                            .op = op, .root = root};
  return mep::start_request(comm, Collective::k_reduce, args, stream, request);
}

mep_result_t mep_igather(const void* sendbuf, void* recvbuf, size_t count, mep_dtype_t dtype,
                         int32_t root, mep_comm_t comm, mep_stream_t stream,
                         mep_request_t* request) {
  const CollectiveArgs args{.send = sendbuf, .receive = recvbuf, .count = count, .dtype = dtype,
                            .root = root};
  return mep::start_request(comm, Collective::k_gather, args, stream, request);
}

mep_result_t mep_iscatter(const void* sendbuf, void* recvbuf, size_t count, mep_dtype_t dtype,
                          int32_t root, mep_comm_t comm, mep_stream_t stream,
                          mep_request_t* request) {
  const CollectiveArgs args{.send = sendbuf, .receive = recvbuf, .count = count, .dtype = dtype,
                            .root = root};
  return mep::start_request(comm, Collective::k_scatter, args, stream, request);
}

mep_result_t mep_ireduce_scatter(const void* sendbuf, void* recvbuf, size_t count,
                                 mep_dtype_t dtype, mep_op_t op, mep_comm_t comm,
                                 mep_stream_t stream, mep_request_t* request) {
  const CollectiveArgs args{.send = sendbuf, .receive = recvbuf, .count = count, .dtype = dtype,
                            .op = op};
  return mep::start_request(comm, Collective::k_reduce_scatter, args, stream, request);
}

mep_result_t mep_ialltoall(const void* sendbuf, void* recvbuf, size_t count, mep_dtype_t dtype,
                           mep_comm_t comm, mep_stream_t stream, mep_request_t* request) {
  const CollectiveArgs args{.send = sendbuf, .receive = recvbuf, .count = count, .dtype = dtype};
  return mep::start_request(comm, Collective::k_alltoall, args, stream, request);
}

mep_result_t mep_iallgatherv(const void* sendbuf, void* recvbuf, const uint64_t* counts,
                             const uint64_t* displs, mep_dtype_t dtype, mep_comm_t comm,
                             mep_stream_t stream, mep_request_t* request) {
  const BlockCounts blocks{.counts = counts, .displs = displs};
  const CollectiveArgs args{.send = sendbuf, .receive = recvbuf, .dtype = dtype,
                            .counts = &blocks};
  return mep::start_request(comm, Collective::k_allgatherv, args, stream, request);
}

// The blocking form's parameters and a request. NOLINTNEXTLINE(readability-function-size)
mep_result_t mep_igatherv(const void* sendbuf, void* recvbuf, size_t count, const uint64_t* counts,
                          const uint64_t* displs, mep_dtype_t dtype, int32_t root, mep_comm_t comm,
                          mep_stream_t stream, mep_request_t* request) {
  const BlockCounts blocks{.own = &count, .counts = counts, .displs = displs};
  const CollectiveArgs args{.send = sendbuf, .receive = recvbuf, .dtype = dtype, .root = root,
                            .counts = &blocks};
  return mep::start_request(comm, Collective::k_gatherv, args, stream, request);
}

// The blocking form's parameters and a request. NOLINTNEXTLINE(readability-function-size)
mep_result_t mep_iscatterv(const void* sendbuf, void* recvbuf, size_t count,
                           const uint64_t* counts, const uint64_t* displs, mep_dtype_t dtype,
                           int32_t root, mep_comm_t comm, mep_stream_t stream,
                           mep_request_t* request) {
  const BlockCounts blocks{.own = &count, .counts = counts, .displs = displs};
  const CollectiveArgs args{.send = sendbuf, .receive = recvbuf, .dtype = dtype, .root = root,
                            .counts = &blocks};
  return mep::start_request(comm, Collective::k_scatterv, args, stream, request);
}

mep_result_t mep_ireduce_scatterv(const void* sendbuf, void* recvbuf, const uint64_t* counts,
                                  const uint64_t* displs, mep_dtype_t dtype, mep_op_t op,
                                  mep_comm_t comm, mep_stream_t stream, mep_request_t* request) {
  const BlockCounts blocks{.counts = counts, .displs = displs};
  const CollectiveArgs args{.send = sendbuf, .receive = recvbuf, .dtype = dtype, .op = op,
                            .counts = &blocks};
  return mep::start_request(comm, Collective::k_reduce_scatterv, args, stream, request);
}

// The blocking form's parameters and a request. NOLINTNEXTLINE(readability-function-size)
mep_result_t mep_ialltoallv(const void* sendbuf, void* recvbuf, const uint64_t* sendcounts,
                            const uint64_t* senddispls, const uint64_t* recvcounts,
                            const uint64_t* recvdispls, mep_dtype_t dtype, mep_comm_t comm,
                            mep_stream_t stream, mep_request_t* request) {
  const BlockCounts blocks{.counts = sendcounts, .displs = senddispls, .recv_counts = recvcounts, .recv_displs = recvdispls};
  const CollectiveArgs args{.send = sendbuf, .receive = recvbuf, .dtype = dtype,
                            .counts = &blocks};
  return mep::start_request(comm, Collective::k_alltoallv, args, stream, request);
}

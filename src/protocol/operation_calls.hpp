// Calls of the C API by kind, for programs that go through the table: what mep_NAME and mep_iNAME take is
// picked out of one struct.
#pragma once

#include "mep.h"
#include "protocol/operations.hpp"

namespace mep {

struct OperationCall {
  const void* send = nullptr;
  void* receive = nullptr;
  size_t count = 0;
  mep_dtype_t dtype = MEP_UINT8;
  mep_op_t op = MEP_SUM;
  int32_t root = 0;
  // With a length for each block: of the buffer that has one for each rank. Where both have: of sendbuf.
  const uint64_t* counts = nullptr;
  const uint64_t* displs = nullptr;
  const uint64_t* recv_counts = nullptr;
  const uint64_t* recv_displs = nullptr;
};

namespace operations_def {

// Last: the stream; of a nonblocking form also the request.
template <class... Last>
mep_result_t call(mep_result_t (*function)(mep_comm_t, Last...), const OperationCall&,
                  mep_comm_t comm, Last... last) {
  return function(comm, last...);
}
template <class... Last>
mep_result_t call(mep_result_t (*function)(const void*, void*, size_t, mep_dtype_t, mep_comm_t,
                                           Last...),
                  const OperationCall& c, mep_comm_t comm, Last... last) {
  return function(c.send, c.receive, c.count, c.dtype, comm, last...);
}
template <class... Last>
mep_result_t call(mep_result_t (*function)(const void*, void*, size_t, mep_dtype_t, int32_t,
                                           mep_comm_t, Last...),
                  const OperationCall& c, mep_comm_t comm, Last... last) {
  return function(c.send, c.receive, c.count, c.dtype, c.root, comm, last...);
}
template <class... Last>
mep_result_t call(mep_result_t (*function)(const void*, void*, size_t, mep_dtype_t, mep_op_t,
                                           mep_comm_t, Last...),
                  const OperationCall& c, mep_comm_t comm, Last... last) {
  return function(c.send, c.receive, c.count, c.dtype, c.op, comm, last...);
}
template <class... Last>
mep_result_t call(mep_result_t (*function)(const void*, void*, size_t, mep_dtype_t, mep_op_t,
                                           int32_t, mep_comm_t, Last...),
                  const OperationCall& c, mep_comm_t comm, Last... last) {
  return function(c.send, c.receive, c.count, c.dtype, c.op, c.root, comm, last...);
}
template <class... Last>
mep_result_t call(mep_result_t (*function)(const void*, void*, const uint64_t*, const uint64_t*,
                                           mep_dtype_t, mep_comm_t, Last...),
                  const OperationCall& c, mep_comm_t comm, Last... last) {
  return function(c.send, c.receive, c.counts, c.displs, c.dtype, comm, last...);
}
template <class... Last>
mep_result_t call(mep_result_t (*function)(const void*, void*, const uint64_t*, const uint64_t*,
                                           mep_dtype_t, mep_op_t, mep_comm_t, Last...),
                  const OperationCall& c, mep_comm_t comm, Last... last) {
  return function(c.send, c.receive, c.counts, c.displs, c.dtype, c.op, comm, last...);
}
template <class... Last>
mep_result_t call(mep_result_t (*function)(const void*, void*, size_t, const uint64_t*,
                                           const uint64_t*, mep_dtype_t, int32_t, mep_comm_t,
                                           Last...),
                  const OperationCall& c, mep_comm_t comm, Last... last) {
  return function(c.send, c.receive, c.count, c.counts, c.displs, c.dtype, c.root, comm, last...);
}
template <class... Last>
mep_result_t call(mep_result_t (*function)(const void*, void*, const uint64_t*, const uint64_t*,
                                           const uint64_t*, const uint64_t*, mep_dtype_t,
                                           mep_comm_t, Last...),
                  const OperationCall& c, mep_comm_t comm, Last... last) {
  return function(c.send, c.receive, c.counts, c.displs, c.recv_counts, c.recv_displs, c.dtype,
                  comm, last...);
}

}  // namespace operations_def

// The blocking form.
inline mep_result_t call_collective(Collective kind, const OperationCall& call, mep_comm_t comm,
                                    mep_stream_t stream) {
  switch (kind) {
#define MEP_OPERATION(name, ...) \
  case Collective::k_##name:     \
    return operations_def::call<mep_stream_t>(mep_##name, call, comm, stream);
#include "protocol/operations.def"
#undef MEP_OPERATION
  }
  return MEP_ERR_UNSUPPORTED;
}

// The nonblocking form.
inline mep_result_t start_collective(Collective kind, const OperationCall& call, mep_comm_t comm,
                                     mep_stream_t stream, mep_request_t* request) {
  switch (kind) {
#define MEP_START_Blocking(name) \
  case Collective::k_##name:     \
    break;
#define MEP_START_Both(name)                                                                   \
  case Collective::k_##name:                                                                   \
    return operations_def::call<mep_stream_t, mep_request_t*>(mep_i##name, call, comm, stream, \
                                                              request);
#define MEP_OPERATION(name, class_, takes, send, receive, forms, backends) MEP_START_##forms(name)
#include "protocol/operations.def"
#undef MEP_OPERATION
#undef MEP_START_Both
#undef MEP_START_Blocking
  }
  return MEP_ERR_UNSUPPORTED;
}

}  // namespace mep

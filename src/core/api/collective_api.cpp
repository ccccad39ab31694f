// The collectives: bodies of all functions of the table, mep_NAME and mep_iNAME, and the backend of host memory.
// mep.h declares them; a line of the table that fits no declaration does not compile.
#include "core/api/api_guard.hpp"
#include "core/api/group.hpp"
#include "core/api/recover.hpp"
#include "core/api/requests.hpp"

namespace mep {
namespace {

class HostBackend final : public Backend {
 public:
  explicit HostBackend(Comm& comm) : Backend(backends::kHost), comm_(comm) {}
  mep_result_t take_any_failure() override {
    return fail(MEP_ERR_UNSUPPORTED, "a host communicator has no stream operations");
  }
  mep_result_t set_op_status(mep_op_status_t*, uint64_t) override {
    return fail(MEP_ERR_UNSUPPORTED,
                "a host communicator has no stream operations: mep_comm_last_op tells how the last "
                "one ended");
  }
  bool busy() const override { return false; }
  size_t view_participants() const override { return 0; }
  void set_timeout_ms(uint32_t) override {}
  void revoke() override {}
  std::span<const char* const> child_steps() const override { return {}; }
  mep_result_t take_child_step(size_t step, Comm&, std::unique_ptr<Backend>*) override {
    return fail(MEP_ERR_INTERNAL, "making a host communicator has no step %zu", step);
  }

 private:
  mep_result_t carry_out(Collective kind, const CollectiveArgs& args, void* stream) override {
    MEP_TRY(check_no_stream(stream));
    return comm_.collectives().run(kind, args);
  }
  mep_result_t begin(Collective kind, const CollectiveArgs& args, Operation* operation) override {
    return comm_.collectives().start(kind, args, operation);
  }

  Comm& comm_;
};

// Ready joiners enter at a barrier on the world.
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

// The address of a temporary that lives as long as the call it is made for.
const BlockCounts* address_of(const BlockCounts& counts) {
  return &counts;
}

template <Collective kKind>
mep_result_t run(mep_comm_t comm, mep_stream_t stream, const CollectiveArgs& args) {
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

}  // namespace

std::unique_ptr<Backend> make_host_backend(Comm& comm) {
  return std::make_unique<HostBackend>(comm);
}

}  // namespace mep

// One set for each value of `takes`: the parameters before `comm`, and the arguments that they make.
#define MEP_PARAMETERS_Nothing
#define MEP_PARAMETERS_Data const void *sendbuf, void *recvbuf, size_t count, mep_dtype_t dtype,
#define MEP_PARAMETERS_DataRoot MEP_PARAMETERS_Data int32_t root,
#define MEP_PARAMETERS_DataOp MEP_PARAMETERS_Data mep_op_t op,
#define MEP_PARAMETERS_DataOpRoot MEP_PARAMETERS_Data mep_op_t op, int32_t root,
#define MEP_PARAMETERS_Counts                                                         \
  const void *sendbuf, void *recvbuf, const uint64_t *counts, const uint64_t *displs, \
      mep_dtype_t dtype,
#define MEP_PARAMETERS_CountsOp MEP_PARAMETERS_Counts mep_op_t op,
#define MEP_PARAMETERS_CountsRoot                                           \
  const void *sendbuf, void *recvbuf, size_t count, const uint64_t *counts, \
      const uint64_t *displs, mep_dtype_t dtype, int32_t root,
#define MEP_PARAMETERS_CountsBoth                                                             \
  const void *sendbuf, void *recvbuf, const uint64_t *sendcounts, const uint64_t *senddispls, \
      const uint64_t *recvcounts, const uint64_t *recvdispls, mep_dtype_t dtype,
#define MEP_ARGUMENTS_Nothing
#define MEP_ARGUMENTS_Data sendbuf, recvbuf, count, dtype, 0, 0
#define MEP_ARGUMENTS_DataRoot sendbuf, recvbuf, count, dtype, 0, root
#define MEP_ARGUMENTS_DataOp sendbuf, recvbuf, count, dtype, op, 0
#define MEP_ARGUMENTS_DataOpRoot sendbuf, recvbuf, count, dtype, op, root
// The counts live until the call has returned; an operation that goes on has a copy of its own.
#define MEP_ARGUMENTS_Counts \
  sendbuf, recvbuf, 0, dtype, 0, 0, mep::address_of({nullptr, counts, displs, nullptr, nullptr})
#define MEP_ARGUMENTS_CountsOp \
  sendbuf, recvbuf, 0, dtype, op, 0, mep::address_of({nullptr, counts, displs, nullptr, nullptr})
#define MEP_ARGUMENTS_CountsRoot \
  sendbuf, recvbuf, 0, dtype, 0, root, mep::address_of({&count, counts, displs, nullptr, nullptr})
#define MEP_ARGUMENTS_CountsBoth    \
  sendbuf, recvbuf, 0, dtype, 0, 0, \
      mep::address_of({nullptr, sendcounts, senddispls, recvcounts, recvdispls})

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

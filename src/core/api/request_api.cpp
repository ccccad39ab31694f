// Requests: nonblocking operations from start to end.
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/unique_fd.hpp"
#include "core/api/requests.hpp"

struct mep_request {
  mep_comm_t comm = nullptr;
  mep::Operation operation;
  mep::RequestState state;
  bool done = false;
  mep::UniqueFd event;

  ~mep_request() {
    if (event.valid()) comm->comm->world().request_bell().remove(event);
  }
};

namespace mep {

mep_result_t start_request(mep_comm_t comm, Collective kind, const CollectiveArgs& args,
                           mep_request_t* request) {
  if (request == nullptr) return null_argument("request");
  *request = nullptr;
  MEP_TRY(check_comm(comm));
  return guarded([&]() -> mep_result_t {
    const CallScope scope(comm);
    MEP_TRY(scope.check());
    auto made = std::make_unique<mep_request>();
    made->comm = comm;
    made->operation.request = &made->state;
    made->state.deadline = Deadline::after_ms(comm->comm->timeout_ms());
    MEP_TRY(comm->backend->start(kind, args, &made->operation));
    // From here on the comm refers to the operation: it stays until it has ended.
    mep_request* const begun = made.release();
    ++comm->users;
    *request = begun;
    begun->done = comm->comm->collectives().test(&begun->operation);
    return MEP_SUCCESS;
  });
}

namespace {

constexpr uint32_t kUntilTimeout = 0xffffffff;

mep_result_t check_request(mep_request_t request) {
  if (request == nullptr) return null_argument("request");
  return check_comm(request->comm);
}

mep_result_t fill(const mep_request& request, mep_op_info_t* info) {
  mep_op_info_t filled;
  MEP_TRY(read_sized_struct(info, "mep_op_info_t", &filled));
  const mep_result_t result =
      request.comm->comm->collectives().describe(request.operation, &filled);
  if (!request.done && !request.operation.finished) filled.result = MEP_ERR_BUSY;
  write_sized_struct(filled, info);
  return result;
}

// Before anything happens: a refused info must not cost the request.
mep_result_t check_info(const mep_op_info_t* info) {
  mep_op_info_t copy;
  return info == nullptr ? MEP_SUCCESS : read_sized_struct(info, "mep_op_info_t", &copy);
}

// The operation is done: gives its result and frees the request.
mep_result_t finish(mep_request_t* request, mep_op_info_t* info) {
  const std::unique_ptr<mep_request> owned(*request);
  *request = nullptr;
  --owned->comm->users;
  const mep_result_t result = owned->operation.result;
  // It may have ended in another call, or on another thread.
  if (is_error(result) && owned->operation.finished) set_last_error_text(owned->state.text);
  if (info != nullptr && result == MEP_SUCCESS) return fill(*owned, info);
  if (info != nullptr) (void)fill(*owned, info);
  return result;
}

// With a progress thread it becomes readable when the operation has ended: that thread, or the call that comes
// before it, writes to it. Else it is the bell's, which knows no more than that a look is worth while.
mep_result_t make_event(mep_request& request) {
  World& world = request.comm->comm->world();
  if (world.progress_thread() == nullptr) {
    return world.request_bell().add(request.state.deadline, &request.event);
  }
  UniqueFd made(eventfd(request.operation.finished ? 1 : 0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!made.valid()) return fail(MEP_ERR_NO_MEMORY, "no descriptor for the request: %m");
  request.state.event = made.get();
  request.event = std::move(made);
  return MEP_SUCCESS;
}

}  // namespace
}  // namespace mep

mep_result_t mep_request_wait(mep_request_t* request, uint32_t timeout_ms, mep_op_info_t* info) {
  using namespace mep;
  if (request == nullptr) return null_argument("request");
  MEP_TRY(check_request(*request));
  MEP_TRY(check_info(info));
  return guarded([&]() -> mep_result_t {
    mep_request& waited = **request;
    const CallScope scope(waited.comm);
    MEP_TRY(scope.check());
    Collectives& collectives = waited.comm->comm->collectives();
    const Deadline own =
        timeout_ms == kUntilTimeout ? waited.state.deadline : Deadline::after_ms(timeout_ms);
    const bool until_timeout = own.at_ns() >= waited.state.deadline.at_ns();
    if (!waited.done) {
      waited.done =
          collectives.wait(&waited.operation, until_timeout ? waited.state.deadline : own);
    }
    if (!waited.done && until_timeout) {
      (void)collectives.end_of_wait(&waited.operation);
      waited.done = true;
    }
    if (waited.done) return finish(request, info);
    return fail(MEP_ERR_BUSY, "the operation is not done after %u ms; it goes on", timeout_ms);
  });
}

mep_result_t mep_request_test(mep_request_t* request, int32_t* done, mep_op_info_t* info) {
  using namespace mep;
  if (request == nullptr) return null_argument("request");
  if (done == nullptr) return null_argument("done");
  *done = 0;
  MEP_TRY(check_request(*request));
  MEP_TRY(check_info(info));
  return guarded([&]() -> mep_result_t {
    mep_request& tested = **request;
    const CallScope scope(tested.comm);
    MEP_TRY(scope.check());
    if (tested.event.valid()) {
      // Before the look: what comes later makes it readable again.
      uint64_t rings = 0;
      (void)!read(tested.event.get(), &rings, sizeof rings);
    }
    Collectives& collectives = tested.comm->comm->collectives();
    if (!tested.done) tested.comm->comm->world().make_progress();
    if (!tested.done) tested.done = collectives.test(&tested.operation);
    if (!tested.done && tested.state.deadline.expired()) collectives.ask_verdict(tested.operation);
    if (!tested.done) return MEP_SUCCESS;
    *done = 1;
    return finish(request, info);
  });
}

mep_result_t mep_request_info(mep_request_t request, mep_op_info_t* info) {
  using namespace mep;
  MEP_TRY(check_request(request));
  if (info == nullptr) return null_argument("info");
  return guarded([&]() -> mep_result_t {
    const CallScope scope(request->comm);
    MEP_TRY(scope.check());
    return fill(*request, info);
  });
}

mep_result_t mep_request_event_fd(mep_request_t request, int32_t* fd) {
  using namespace mep;
  MEP_TRY(check_request(request));
  if (fd == nullptr) return null_argument("fd");
  return guarded([&]() -> mep_result_t {
    const CallScope scope(request->comm);
    MEP_TRY(scope.check());
    if (!request->event.valid()) MEP_TRY(make_event(*request));
    *fd = request->event.get();
    return MEP_SUCCESS;
  });
}

// Messages from one rank to another.
#include <cstddef>
#include <cstdint>

#include "base/memory_range.hpp"
#include "base/request_event.hpp"
#include "core/api/collective_call.hpp"
#include "core/api/group.hpp"
#include "core/api/requests.hpp"

namespace mep {
namespace {

// A call's arguments, and where a receive tells what it has taken.
struct MessageCall {
  bool is_send = false;
  const void* from = nullptr;
  void* to = nullptr;
  size_t count = 0;
  mep_dtype_t dtype = MEP_UINT8;
  int32_t peer = 0;
  int32_t tag = 0;
  mep_message_t* message = nullptr;
};

mep_result_t check_struct(const mep_message_t* message) {
  mep_message_t copy;
  return message == nullptr ? MEP_SUCCESS : read_sized_struct(message, "mep_message_t", &copy);
}

mep_result_t check_peer(const Comm& comm, const char* name, int32_t rank, bool may_be_any) {
  if (may_be_any && rank == MEP_ANY_SOURCE) return MEP_SUCCESS;
  if (rank >= 0 && static_cast<uint32_t>(rank) < comm.size()) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT, "%s %d is no rank of a comm of %u ranks", name, rank,
              comm.size());
}

mep_result_t check_tag(int32_t tag, bool may_be_any) {
  if (tag >= 0 || (may_be_any && tag == MEP_ANY_TAG)) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT, "tag is %d; give 0 or more%s", tag,
              may_be_any ? ", or MEP_ANY_TAG" : "");
}

mep_result_t check_address(const MessageCall& call) {
  if (!is_in_place_mark(call.is_send ? call.from : call.to)) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT,
              "the buffer of a %s is MEP_IN_PLACE, which has no meaning there; give an address",
              call.is_send ? "send" : "receive");
}

mep_result_t check_call(mep_comm_t comm, const MessageCall& call) {
  MEP_TRY(check_peer(*comm->comm, call.is_send ? "dest" : "source", call.peer, !call.is_send));
  MEP_TRY(check_tag(call.tag, !call.is_send));
  const size_t element = mep_dtype_size(call.dtype);
  if (element == 0) return fail(MEP_ERR_INVALID_ARGUMENT, "dtype %u is no type", call.dtype);
  if (call.count > (SIZE_MAX / 4) / element) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "count %zu is too large", call.count);
  }
  MEP_TRY(check_address(call));
  const void* const buffer = call.is_send ? call.from : call.to;
  if (call.count != 0 && buffer == nullptr) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "the buffer is NULL, but count is %zu", call.count);
  }
  return check_struct(call.message);
}

// On a stream nothing is known when the call returns.
mep_result_t check_on_stream(const MessageCall& call) {
  if (call.peer == MEP_ANY_SOURCE) {
    return fail(MEP_ERR_UNSUPPORTED, "MEP_ANY_SOURCE: a receive on a GPU names its source");
  }
  if (call.message == nullptr) return MEP_SUCCESS;
  return fail(MEP_ERR_UNSUPPORTED, "message: a receive on a GPU tells of none; give NULL");
}

mep_result_t check(mep_comm_t comm, const MessageCall& call, mep_stream_t stream) {
  MEP_TRY(check_call(comm, call));
  return comm->backend->enqueues() ? check_on_stream(call) : check_no_stream(stream);
}

CallKind kind_of(bool is_send) {
  return is_send ? CallKind::kSend : CallKind::kReceive;
}

const char* name_of(std::span<const MessageCall> calls) {
  if (calls.size() == 2) return "sendrecv";
  return calls[0].is_send ? "send" : "recv";
}

uint64_t bytes_of(const MessageOperation& operation) {
  return operation.is_send ? operation.bytes : operation.message.bytes;
}

void prepare(const MessageCall& call, MessageOperation* operation) {
  operation->is_send = call.is_send;
  operation->peer = call.peer;
  operation->tag = call.tag;
  operation->from = static_cast<const std::byte*>(call.from);
  operation->to = static_cast<std::byte*>(call.to);
  operation->bytes = call.count * mep_dtype_size(call.dtype);
  operation->dtype = call.dtype;
}

// Fills *message for a receive that has taken a message, or ended because of it.
void tell(const MessageOperation& operation, mep_message_t* message) {
  const bool is_about_one = operation.result == MEP_SUCCESS ||
                            operation.result == MEP_ERR_CAPACITY ||
                            operation.result == MEP_ERR_MISMATCH;
  if (message != nullptr && is_about_one) write_sized_struct(operation.message, message);
}

mep_result_t result_of(const MessageOperation& operation) {
  if (is_error(operation.result)) set_last_error_text(operation.text);
  return operation.result;
}

class MessageRequest final : public mep_request {
 public:
  MessageRequest(mep_comm_t of, const MessageCall& call) : mep_request(of), told_(call.message) {
    message = &operation_;
    prepare(call, &operation_);
  }
  // Afterwards the comm refers to it: it stays until it has ended.
  void begin() {
    messages().begin(&operation_);
    // Most sends have ended, and a clock costs as much as they do.
    if (!operation_.has_ended()) operation_.deadline = Deadline::after_ms(comm->comm->timeout_ms());
  }
  bool look() override {
    MessageOperation* const own = &operation_;
    return operation_.has_ended() || messages().look({&own, 1});
  }
  void release() override {
    RequestBlocks& blocks = messages().request_blocks();
    this->~MessageRequest();
    blocks.give_back(this);
  }
  void note_overdue() override { (void)messages().test(&operation_); }
  void end_overdue() override { (void)messages().test(&operation_); }
  Deadline deadline() const override { return operation_.deadline; }
  mep_result_t result() const override { return operation_.result; }
  CallKind call_kind() const override { return kind_of(operation_.is_send); }
  uint64_t call_bytes() const override { return bytes_of(operation_); }
  const char* text() const override { return operation_.text; }
  void tell() override {
    if (!operation_.is_send) mep::tell(operation_, told_);
  }
  mep_result_t cancel(bool* cancelled) override {
    if (operation_.is_send) return fail(MEP_ERR_UNSUPPORTED, "only a receive can be cancelled");
    *cancelled = messages().withdraw_receive(&operation_);
    return MEP_SUCCESS;
  }
  mep_result_t describe(mep_op_info_t* info) const override {
    return messages().describe(operation_, info);
  }
  void set_event(int fd) override {
    operation_.event = fd;
    if (operation_.has_ended()) ring_event(fd);
  }

 private:
  Messages& messages() const { return comm->comm->messages(); }

  MessageOperation operation_;
  mep_message_t* const told_;
};

mep_result_t start_message(mep_comm_t comm, const MessageCall& call, mep_stream_t stream,
                           mep_request_t* request) {
  if (request == nullptr) return null_argument("request");
  *request = nullptr;
  MEP_TRY(check_comm(comm));
  return guarded([&]() -> mep_result_t {
    const CallScope scope(comm);
    MEP_TRY(scope.check());
    const CallKind kind = kind_of(call.is_send);
    ObservedCall observed(*comm, name_of({&call, 1}), kind);
    mep_result_t checked = comm->backend->check_host("a message");
    if (checked == MEP_SUCCESS) checked = check(comm, call, stream);
    if (checked != MEP_SUCCESS) return observed.end(kind, checked, 0);
    Messages& messages = comm->comm->messages();
    void* const block = messages.request_blocks().take(sizeof(MessageRequest));
    auto* const begun = new (block) MessageRequest(comm, call);
    observed.leave_to_request();
    begun->begin();
    *request = begun;
    messages.step_own();
    begun->done = begun->message->has_ended();
    return MEP_SUCCESS;
  });
}

mep_result_t run_to_end(Messages& messages, std::span<const MessageCall> calls,
                        ObservedCall* observed) {
  MessageOperation operations[2];
  MessageOperation* const pointers[2] = {&operations[0], &operations[1]};
  for (size_t i = 0; i < calls.size(); ++i) prepare(calls[i], &operations[i]);
  messages.run({pointers, calls.size()});
  for (size_t i = 0; i < calls.size(); ++i) {
    observed->end(kind_of(calls[i].is_send), operations[i].result, bytes_of(operations[i]));
    if (!calls[i].is_send) tell(operations[i], calls[i].message);
  }
  for (size_t i = 0; i < calls.size(); ++i) MEP_TRY(result_of(operations[i]));
  return MEP_SUCCESS;
}

// Several are one record.
FlightCall flight_call(std::span<const StreamMessage> messages) {
  const StreamMessage& first = messages[0];
  return {.bytes = first.bytes,
          .kind = messages.size() > 1 ? flight::Kind::kMessages
                  : first.is_send     ? flight::Kind::kSend
                                      : flight::Kind::kReceive,
          .dtype = first.dtype,
          .peer = static_cast<int32_t>(first.peer)};
}

// Or leaves them to the group's end.
mep_result_t enqueue(mep_comm_t comm, std::span<const MessageCall> calls, mep_stream_t stream,
                     ObservedCall* observed) {
  StreamMessage messages[2];
  for (size_t i = 0; i < calls.size(); ++i) {
    const MessageCall& call = calls[i];
    messages[i] = {call.is_send, call.from,
                   call.to,      call.count * mep_dtype_size(call.dtype),
                   call.dtype,   static_cast<uint32_t>(call.peer),
                   call.tag};
  }
  const std::span<const StreamMessage> made(messages, calls.size());
  observed->record([&] { return flight_call(made); });
  const mep_result_t result =
      in_group() ? add_to_group(comm, stream, made) : comm->backend->enqueue_messages(made, stream);
  for (const StreamMessage& each : made) observed->end(kind_of(each.is_send), result, each.bytes);
  return result;
}

// One or two calls that are made together.
mep_result_t run_messages(mep_comm_t comm, std::span<const MessageCall> calls,
                          mep_stream_t stream) {
  return guarded([&]() -> mep_result_t {
    const CallScope scope(comm);
    MEP_TRY(scope.check());
    ObservedCall observed(*comm, name_of(calls));
    for (const MessageCall& call : calls) observed.begin(kind_of(call.is_send));
    for (const MessageCall& call : calls) {
      const mep_result_t checked = check(comm, call, stream);
      if (checked != MEP_SUCCESS) return observed.end(kind_of(call.is_send), checked, 0);
    }
    return comm->backend->enqueues() ? enqueue(comm, calls, stream, &observed)
                                     : run_to_end(comm->comm->messages(), calls, &observed);
  });
}

mep_result_t run_or_group(mep_comm_t comm, std::span<const MessageCall> calls,
                          mep_stream_t stream) {
  MEP_TRY(check_comm(comm));
  if (!in_group() || comm->backend->enqueues()) [[likely]]
    return run_messages(comm, calls, stream);
  return guarded([&]() -> mep_result_t {
    // Before the first of them begins.
    for (const MessageCall& call : calls) MEP_TRY(check(comm, call, stream));
    for (const MessageCall& call : calls) {
      MEP_TRY(start_in_group(
          [&](mep_request_t* request) { return start_message(comm, call, stream, request); }));
    }
    return MEP_SUCCESS;
  });
}

mep_result_t probe(int32_t source, int32_t tag, mep_comm_t comm, bool waits, bool* found,
                   mep_message_t* message) {
  MEP_TRY(check_comm(comm));
  return guarded([&]() -> mep_result_t {
    const CallScope scope(comm);
    MEP_TRY(scope.check());
    MEP_TRY(comm->backend->check_host("a message"));
    MEP_TRY(check_peer(*comm->comm, "source", source, true));
    MEP_TRY(check_tag(tag, true));
    MEP_TRY(check_struct(message));
    World& world = comm->comm->world();
    mep_message_t about{};
    mep_result_t result = MEP_SUCCESS;
    Messages& messages = comm->comm->messages();
    const uint64_t revocations = messages.revocations();
    const auto look = [&] {
      result = messages.probe(source, tag, &about, found);
      if (waits && !*found && result == MEP_SUCCESS && messages.revocations() != revocations) {
        result = fail(MEP_ERR_REVOKED, "comm %s was revoked", comm->comm->name().c_str());
      }
      return *found || is_error(result);
    };
    if (!waits) world.make_progress();
    const bool is_over =
        waits ? wait_until(world.wait_policy(), world.doorbell(),
                           Deadline::after_first_look_ms(comm->comm->timeout_ms()), look)
              : look();
    if (*found && message != nullptr) write_sized_struct(about, message);
    if (is_over || !waits) return result;
    return fail(MEP_ERR_TIMEOUT,
                "no message of %s has come within %u ms (MEP_TIMEOUT_MS, mep_comm_set_timeout)",
                WantedMessage(source, tag).text, comm->comm->timeout_ms());
  });
}

MessageCall sending(const void* buffer, size_t count, mep_dtype_t dtype, int32_t dest,
                    int32_t tag) {
  return {true, buffer, nullptr, count, dtype, dest, tag, nullptr};
}

MessageCall receiving(void* buffer, size_t count, mep_dtype_t dtype, int32_t source, int32_t tag,
                      mep_message_t* message) {
  return {false, nullptr, buffer, count, dtype, source, tag, message};
}

bool buffers_overlap(const MessageCall& send, const MessageCall& receive) {
  return overlap(send.from, send.count * mep_dtype_size(send.dtype), receive.to,
                 receive.count * mep_dtype_size(receive.dtype));
}

}  // namespace
}  // namespace mep

mep_result_t mep_send(const void* buffer, size_t count, mep_dtype_t dtype, int32_t dest,
                      int32_t tag, mep_comm_t comm, mep_stream_t stream) {
  const mep::MessageCall call = mep::sending(buffer, count, dtype, dest, tag);
  return mep::run_or_group(comm, {&call, 1}, stream);
}

mep_result_t mep_recv(void* buffer, size_t count, mep_dtype_t dtype, int32_t source, int32_t tag,
                      mep_comm_t comm, mep_message_t* message, mep_stream_t stream) {
  const mep::MessageCall call = mep::receiving(buffer, count, dtype, source, tag, message);
  return mep::run_or_group(comm, {&call, 1}, stream);
}

// The parameters of its two halves. NOLINTNEXTLINE(readability-function-size)
mep_result_t mep_sendrecv(const void* sendbuf, size_t sendcount, int32_t dest, int32_t sendtag,
                          void* recvbuf, size_t recvcount, int32_t source, int32_t recvtag,
                          mep_dtype_t dtype, mep_comm_t comm, mep_message_t* message,
                          mep_stream_t stream) {
  const mep::MessageCall calls[2] = {
      mep::sending(sendbuf, sendcount, dtype, dest, sendtag),
      mep::receiving(recvbuf, recvcount, dtype, source, recvtag, message)};
  for (const mep::MessageCall& call : calls) MEP_TRY(mep::check_address(call));
  if (mep::buffers_overlap(calls[0], calls[1])) {
    return mep::fail(MEP_ERR_INVALID_ARGUMENT, "sendbuf and recvbuf overlap");
  }
  return mep::run_or_group(comm, calls, stream);
}

mep_result_t mep_isend(const void* buffer, size_t count, mep_dtype_t dtype, int32_t dest,
                       int32_t tag, mep_comm_t comm, mep_stream_t stream, mep_request_t* request) {
  return mep::start_message(comm, mep::sending(buffer, count, dtype, dest, tag), stream, request);
}

mep_result_t mep_irecv(void* buffer, size_t count, mep_dtype_t dtype, int32_t source, int32_t tag,
                       mep_comm_t comm, mep_message_t* message, mep_stream_t stream,
                       mep_request_t* request) {
  return mep::start_message(comm, mep::receiving(buffer, count, dtype, source, tag, message),
                            stream, request);
}

mep_result_t mep_probe(int32_t source, int32_t tag, mep_comm_t comm, mep_message_t* message) {
  bool found = false;
  return mep::probe(source, tag, comm, true, &found, message);
}

mep_result_t mep_iprobe(int32_t source, int32_t tag, mep_comm_t comm, int32_t* found,
                        mep_message_t* message) {
  if (found == nullptr) return mep::null_argument("found");
  *found = 0;
  bool is_found = false;
  MEP_TRY(mep::probe(source, tag, comm, false, &is_found, message));
  *found = is_found ? 1 : 0;
  return MEP_SUCCESS;
}

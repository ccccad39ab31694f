// Requests: nonblocking operations from start to end.
#include <unistd.h>

#include <algorithm>
#include <list>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/request_event.hpp"
#include "base/system_error.hpp"
#include "core/api/collective_call.hpp"
#include "core/api/requests.hpp"
#include "core/comm/gpu_backend.hpp"

mep_request::mep_request(mep_comm_t of) : comm(of) {}

bool mep_request::rings_event() const {
  return comm->comm->world().progress_thread() != nullptr;
}

mep_request::~mep_request() {
  if (event.valid()) comm->comm->world().request_event().remove(event);
}

namespace mep {
namespace {

class CollectiveRequest final : public mep_request {
 public:
  explicit CollectiveRequest(mep_comm_t of) : mep_request(of) {
    operation_.request = &state_;
    state_.deadline = Deadline::after_ms(of->comm->timeout_ms());
  }
  mep_result_t start(Collective kind, const CollectiveArgs& args) {
    MEP_TRY(comm->backend->start(kind, args, &operation_));
    given_bytes_ = given_bytes(kind, args, *comm->comm);
    return MEP_SUCCESS;
  }
  CallKind call_kind() const override { return CallKind::kCollective; }
  uint64_t call_bytes() const override { return given_bytes_; }
  bool look() override { return collectives().look(&operation_); }
  void release() override {
    --comm->users;
    delete this;
  }
  void note_overdue() override { collectives().ask_decision(operation_); }
  void end_overdue() override { (void)collectives().end_of_wait(&operation_); }
  Deadline deadline() const override { return state_.deadline; }
  mep_result_t result() const override { return operation_.result; }
  const char* text() const override { return operation_.finished ? state_.text : nullptr; }
  mep_result_t cancel(bool*) override {
    return fail(MEP_ERR_UNSUPPORTED, "only a receive can be cancelled");
  }
  mep_result_t describe(mep_op_info_t* info) const override {
    const mep_result_t result = comm->comm->collectives().describe(operation_, info);
    if (!done && !operation_.finished) info->result = MEP_IN_PROGRESS;
    return result;
  }
  void set_event(int fd) override {
    state_.event = fd;
    if (operation_.finished) ring_event(fd);
  }

 private:
  Collectives& collectives() const { return comm->comm->collectives(); }

  Operation operation_;
  RequestState state_;
  uint64_t given_bytes_ = 0;
};

// A collective on a stream. It ends by itself, on the GPU.
class StreamRequest final : public mep_request {
 public:
  explicit StreamRequest(mep_comm_t of) : mep_request(of) {}
  mep_result_t start(Collective kind, const CollectiveArgs& args, mep_stream_t stream) {
    name_ = name_of(kind);
    MEP_TRY(gpu().lend_record(stream, &record_));
    CollectiveArgs recorded = args;
    recorded.status = record_->status;
    const mep_result_t enqueued = comm->backend->run(kind, recorded, stream);
    if (enqueued != MEP_SUCCESS) gpu().records().give_back(record_);
    if (enqueued == MEP_SUCCESS) given_bytes_ = given_bytes(kind, args, *comm->comm);
    return enqueued;
  }
  CallKind call_kind() const override { return CallKind::kCollective; }
  uint64_t call_bytes() const override { return given_bytes_; }
  bool look() override { return mep::has_ended(*record_); }
  void release() override {
    gpu().records().give_back(record_);
    --comm->users;
    delete this;
  }
  void note_overdue() override {}
  void end_overdue() override {}
  Deadline deadline() const override { return Deadline::never(); }
  mep_result_t result() const override { return record_->status->result; }
  const char* text() const override { return text_; }
  void tell() override {
    const auto ranks = static_cast<int>(record_->status->failed_count);
    (void)snprintf(text_, sizeof text_, "%s on a stream ended with %s; ranks missing: %d", name_,
                   mep_result_string(result()), ranks);
  }
  mep_result_t cancel(bool*) override {
    return fail(MEP_ERR_UNSUPPORTED, "only a receive can be cancelled");
  }
  mep_result_t describe(mep_op_info_t* info) const override {
    const mep_op_status_t& status = *record_->status;
    OperationRecord record;
    record.result = MEP_IN_PROGRESS;
    record.epoch = comm->comm->latest_view()->epoch;
    record.input_intact = false;
    record.contributors.assign(rank_words(comm->comm->size()), 0);
    record.failed = record.contributors;
    if (mep::has_ended(*record_)) {
      record.result = status.result;
      record.epoch = status.epoch;
      record.seq = status.seq;
      std::copy_n(mep_op_status_failed(&status), status.failed_words, record.failed.begin());
    }
    return record.fill(comm->comm->size(), info);
  }
  void set_event(int fd) override { gpu().records().set_event(record_, fd); }
  bool rings_event() const override { return true; }

 private:
  GpuBackend& gpu() const { return *comm->backend->gpu_backend(); }

  StreamRecord* record_ = nullptr;
  const char* name_ = nullptr;
  uint64_t given_bytes_ = 0;
  char text_[kErrorTextBytes] = "";
};

// `made` has begun: the comm refers to it until it has ended.
void hand_out(std::unique_ptr<mep_request> made, mep_request_t* request) {
  mep_request* const begun = made.release();
  ++begun->comm->users;
  *request = begun;
  begun->done = begun->look();
}

}  // namespace

mep_result_t start_request(mep_comm_t comm, Collective kind, const CollectiveArgs& args,
                           mep_stream_t stream, mep_request_t* request) {
  if (request == nullptr) return null_argument("request");
  *request = nullptr;
  MEP_TRY(check_comm(comm));
  if (is_in_place(args)) [[unlikely]] {
    CollectiveArgs resolved = args;
    MEP_TRY(resolve_in_place(kind, *comm->comm, &resolved));
    return start_request(comm, kind, resolved, stream, request);
  }
  return guarded([&]() -> mep_result_t {
    const CallScope scope(comm);
    MEP_TRY(scope.check());
    ObservedCall observed(*comm, name_of(kind), CallKind::kCollective);
    observed.record([&] { return flight_call(kind, args); });
    const auto begin = [&](auto made, auto&&... more) -> mep_result_t {
      const mep_result_t started = made->start(kind, args, more...);
      if (started != MEP_SUCCESS) return observed.end(CallKind::kCollective, started, 0);
      observed.leave_to_request();
      hand_out(std::move(made), request);
      return MEP_SUCCESS;
    };
    if (comm->backend->enqueues()) {
      return begin(std::make_unique<StreamRequest>(comm), stream);
    }
    const mep_result_t checked = check_no_stream(stream);
    if (checked != MEP_SUCCESS) return observed.end(CallKind::kCollective, checked, 0);
    return begin(std::make_unique<CollectiveRequest>(comm));
  });
}

namespace {

mep_result_t check_request(mep_request_t request) {
  if (request == nullptr) return null_argument("request");
  return check_comm(request->comm);
}

mep_result_t fill(const mep_request& request, mep_op_info_t* info) {
  mep_op_info_t filled;
  MEP_TRY(read_sized_struct(info, "mep_op_info_t", &filled));
  const mep_result_t result = request.describe(&filled);
  write_sized_struct(filled, info);
  return result;
}

// Before anything happens: a refused info must not cost the request.
mep_result_t check_info(const mep_op_info_t* info, const mep_request& request) {
  if (info == nullptr) return MEP_SUCCESS;
  mep_op_info_t copy;
  MEP_TRY(read_sized_struct(info, "mep_op_info_t", &copy));
  return check_bitmaps(request.comm->comm->size(), copy);
}

struct Release {
  void operator()(mep_request* request) const { request->release(); }
};

// The operation is done: gives its result and frees the request.
mep_result_t finish(mep_request_t* request, mep_op_info_t* info) {
  const std::unique_ptr<mep_request, Release> owned(*request);
  *request = nullptr;
  owned->tell();
  const mep_result_t result = owned->result();
  owned->comm->comm->counters().end(owned->call_kind(), result, owned->call_bytes());
  // It may have ended in another call, or on another thread.
  const char* const text = owned->text();
  if (is_error(result) && text != nullptr) set_last_error_text(text);
  if (info != nullptr && result == MEP_SUCCESS) return fill(*owned, info);
  if (info != nullptr) (void)fill(*owned, info);
  return result;
}

// With a progress thread, and on a stream, it becomes readable when the operation has ended: the thread that finds
// it ended writes to it. Else it is the bell's, which knows no more than that a look is worth while.
mep_result_t make_event(mep_request& request) {
  World& world = request.comm->comm->world();
  if (!request.rings_event()) {
    return world.request_event().add(request.deadline(), &request.event);
  }
  UniqueFd made;
  MEP_TRY(open_eventfd("a request's descriptor", 0, &made));
  request.set_event(made.get());
  request.event = std::move(made);
  return MEP_SUCCESS;
}

void note_rings(const mep_request& request) {
  uint64_t rings = 0;
  if (request.event.valid()) (void)!read(request.event.get(), &rings, sizeof rings);
}

// --- Waiting for several ------------------------------------------------------------------------------

// The comms of all requests, each entered once. One alone needs no memory.
class CallScopes {
 public:
  [[nodiscard]] mep_result_t enter(std::span<mep_request_t const> requests) {
    for (mep_request_t each : requests) {
      if (each == nullptr) continue;
      are_messages_ = are_messages_ && each->message != nullptr;
      if (!has(each->comm)) MEP_TRY(enter(each->comm));
    }
    return MEP_SUCCESS;
  }
  // Messages of one comm: they go on together, by a look at any of them.
  bool go_on_together() const { return are_messages_ && others_.empty(); }

 private:
  bool has(mep_comm_t comm) const {
    return comm == first_comm_ || std::find(comms_.begin(), comms_.end(), comm) != comms_.end();
  }
  mep_result_t enter(mep_comm_t comm) {
    MEP_TRY(check_comm(comm));
    if (first_comm_ == nullptr) {
      first_comm_ = comm;
      return first_.emplace(comm).check();
    }
    others_.emplace_back(comm);
    comms_.push_back(comm);
    return others_.back().check();
  }

  mep_comm_t first_comm_ = nullptr;
  std::optional<CallScope> first_;
  std::list<CallScope> others_;
  std::vector<mep_comm_t> comms_;  // of the others
  bool are_messages_ = true;
};

// One that stands twice would be freed twice. Inside the scopes of all.
mep_result_t check_distinct(std::span<mep_request_t const> requests) {
  size_t doubled = requests.size();
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i] != nullptr && std::exchange(requests[i]->listed, true)) doubled = i;
  }
  for (mep_request_t each : requests) {
    if (each != nullptr) each->listed = false;
  }
  if (doubled == requests.size()) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT, "request %zu of %zu stands in the list twice", doubled,
              requests.size());
}

// Looks at those that are not done; how many are.
size_t look_at_all(std::span<mep_request_t const> requests) {
  size_t done = 0;
  mep_comm_t looked_at = nullptr;  // its messages
  for (mep_request_t each : requests) {
    if (each == nullptr) continue;
    if (!each->has_ended() && (each->message == nullptr || each->comm != looked_at)) {
      each->done = each->look();
      if (each->message != nullptr) looked_at = each->comm;
    }
    each->done = each->has_ended();
    if (each->done) ++done;
  }
  return done;
}

// Waits for all of several messages that go on together: a round is one look, at the first that has not ended.
class MessagesTogether {
 public:
  explicit MessagesTogether(std::span<mep_request_t const> requests) : open_(requests) {}
  bool look() {
    pass_ended();
    if (open_.empty()) return true;
    (void)open_.front()->look();
    pass_ended();
    return open_.empty();
  }

 private:
  void pass_ended() {
    for (; !open_.empty(); open_ = open_.subspan(1)) {
      mep_request_t const first = open_.front();
      if (first == nullptr) continue;
      if (!first->has_ended()) return;
      first->done = true;
    }
  }
  std::span<mep_request_t const> open_;
};

uint64_t soonest_deadline(std::span<mep_request_t const> requests) {
  uint64_t soonest_ns = Deadline::never().at_ns();
  for (mep_request_t each : requests) {
    if (each != nullptr && !each->done) soonest_ns = std::min(soonest_ns, each->deadline().at_ns());
  }
  return soonest_ns;
}

void end_overdue(std::span<mep_request_t const> requests) {
  for (mep_request_t each : requests) {
    if (each == nullptr || each->done || !each->deadline().expired()) continue;
    each->end_overdue();
    each->done = true;
  }
}

// Until so many are done, or the time that the caller gives is over.
template <typename Poll>
void wait_for_some(std::span<mep_request_t const> requests, size_t wanted, const Deadline& own,
                   Poll&& poll) {
  if (poll()) return;
  const auto any = std::find_if(requests.begin(), requests.end(),
                                [](mep_request_t each) { return each != nullptr; });
  World& world = (*any)->comm->comm->world();
  for (;;) {
    const Deadline until = Deadline::at(std::min(soonest_deadline(requests), own.at_ns()));
    if (wait_until(world.wait_policy(), world.doorbell(), until, poll)) return;
    end_overdue(requests);
    if (look_at_all(requests) >= wanted || own.expired()) return;
  }
}

Deadline deadline_of(uint32_t timeout_ms) {
  return timeout_ms == MEP_TIMEOUT_DEFAULT ? Deadline::never() : Deadline::after_ms(timeout_ms);
}

mep_result_t check_requests(int32_t count, const mep_request_t* requests) {
  if (count < 0) return fail(MEP_ERR_INVALID_ARGUMENT, "count is %d", count);
  if (count != 0 && requests == nullptr) return null_argument("requests");
  return MEP_SUCCESS;
}

// Sets *done to 0. Where the wait has no time of its own the caller need not give it: *done is `unread` then.
mep_result_t check_done(uint32_t timeout_ms, int32_t** done, int32_t* unread) {
  if (*done == nullptr) {
    if (timeout_ms != MEP_TIMEOUT_DEFAULT) return null_argument("done");
    *done = unread;
  }
  **done = 0;
  return MEP_SUCCESS;
}

// Frees those that are done, and returns the first error in their order. *done: whether none goes on.
mep_result_t finish_all(std::span<mep_request_t> requests, int32_t* done, mep_result_t* results) {
  mep_result_t all = MEP_SUCCESS;
  char text[kErrorTextBytes];
  size_t place = 0;
  *done = 1;
  for (mep_request_t& each : requests) {
    mep_result_t result = MEP_SUCCESS;
    if (each != nullptr) result = each->done ? finish(&each, nullptr) : MEP_IN_PROGRESS;
    if (is_error(result) && !is_error(all)) {
      all = result;
      std::snprintf(text, sizeof text, "%s", last_error_text());
    }
    if (result == MEP_IN_PROGRESS) *done = 0;
    if (results != nullptr) results[place] = result;
    ++place;
  }
  if (is_error(all)) set_last_error_text(text);
  return all;
}

}  // namespace
}  // namespace mep

mep_result_t mep_request_wait(mep_request_t* request, uint32_t timeout_ms, int32_t* done,
                              mep_op_info_t* info) {
  using namespace mep;
  int32_t unread = 0;
  MEP_TRY(check_done(timeout_ms, &done, &unread));
  if (request == nullptr) return null_argument("request");
  MEP_TRY(check_request(*request));
  MEP_TRY(check_info(info, **request));
  return guarded([&]() -> mep_result_t {
    mep_request& waited = **request;
    const CallScope scope(waited.comm);
    MEP_TRY(scope.check());
    const Deadline due = waited.deadline();
    const Deadline own = timeout_ms == MEP_TIMEOUT_DEFAULT ? due : Deadline::after_ms(timeout_ms);
    const bool until_timeout = own.at_ns() >= due.at_ns();
    World& world = waited.comm->comm->world();
    if (!waited.done) {
      waited.done = wait_until(world.wait_policy(), world.doorbell(), until_timeout ? due : own,
                               [&] { return waited.look(); });
    }
    if (!waited.done && until_timeout) {
      waited.end_overdue();
      waited.done = true;
    }
    if (!waited.done) return MEP_SUCCESS;
    *done = 1;
    return finish(request, info);
  });
}

mep_result_t mep_request_test(mep_request_t* request, int32_t* done, mep_op_info_t* info) {
  using namespace mep;
  if (request == nullptr) return null_argument("request");
  if (done == nullptr) return null_argument("done");
  *done = 0;
  MEP_TRY(check_request(*request));
  MEP_TRY(check_info(info, **request));
  return guarded([&]() -> mep_result_t {
    mep_request& tested = **request;
    const CallScope scope(tested.comm);
    MEP_TRY(scope.check());
    // Before the look: what comes later makes it readable again.
    note_rings(tested);
    if (!tested.done) tested.comm->comm->world().make_progress();
    if (!tested.done) tested.done = tested.look();
    if (!tested.done && tested.deadline().expired()) {
      tested.note_overdue();
      tested.done = tested.look();
    }
    if (!tested.done) return MEP_SUCCESS;
    *done = 1;
    return finish(request, info);
  });
}

mep_result_t mep_request_waitall(int32_t count, mep_request_t* requests, uint32_t timeout_ms,
                                 int32_t* done, mep_result_t* results) {
  using namespace mep;
  int32_t unread = 0;
  MEP_TRY(check_done(timeout_ms, &done, &unread));
  MEP_TRY(check_requests(count, requests));
  return guarded([&]() -> mep_result_t {
    const std::span<mep_request_t> all(requests, static_cast<size_t>(count));
    CallScopes scopes;
    MEP_TRY(scopes.enter(all));
    MEP_TRY(check_distinct(all));
    const auto nulls = static_cast<size_t>(std::count(all.begin(), all.end(), nullptr));
    const size_t wanted = all.size() - nulls;
    const Deadline own = deadline_of(timeout_ms);
    if (scopes.go_on_together()) {
      MessagesTogether together(all);
      wait_for_some(all, wanted, own, [&] { return together.look(); });
    } else {
      wait_for_some(all, wanted, own, [&] { return look_at_all(all) >= wanted; });
    }
    return finish_all(all, done, results);
  });
}

mep_result_t mep_request_waitany(int32_t count, mep_request_t* requests, uint32_t timeout_ms,
                                 int32_t* done, int32_t* index, mep_op_info_t* info) {
  using namespace mep;
  int32_t unread = 0;
  MEP_TRY(check_done(timeout_ms, &done, &unread));
  if (index == nullptr) return null_argument("index");
  *index = -1;
  MEP_TRY(check_requests(count, requests));
  return guarded([&]() -> mep_result_t {
    const std::span<mep_request_t> all(requests, static_cast<size_t>(count));
    if (std::count(all.begin(), all.end(), nullptr) == count) {
      *done = 1;
      return MEP_SUCCESS;
    }
    CallScopes scopes;
    MEP_TRY(scopes.enter(all));
    MEP_TRY(check_distinct(all));
    for (mep_request_t each : all) {
      if (each != nullptr) MEP_TRY(check_info(info, *each));
    }
    wait_for_some(all, 1, deadline_of(timeout_ms), [&] { return look_at_all(all) >= 1; });
    const auto first = std::find_if(
        all.begin(), all.end(), [](mep_request_t each) { return each != nullptr && each->done; });
    if (first == all.end()) return MEP_SUCCESS;
    *done = 1;
    *index = static_cast<int32_t>(first - all.begin());
    return finish(&*first, info);
  });
}

mep_result_t mep_request_cancel(mep_request_t* request, int32_t* cancelled) {
  using namespace mep;
  if (request == nullptr) return null_argument("request");
  if (cancelled == nullptr) return null_argument("cancelled");
  *cancelled = 0;
  MEP_TRY(check_request(*request));
  return guarded([&]() -> mep_result_t {
    const CallScope scope((*request)->comm);
    MEP_TRY(scope.check());
    bool withdrawn = false;
    MEP_TRY((*request)->cancel(&withdrawn));
    if (!withdrawn) return MEP_SUCCESS;
    *cancelled = 1;
    (*request)->release();
    *request = nullptr;
    return MEP_SUCCESS;
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

// One call that operates, wherever calls are noted: counters of the comm, a range for tools, and a flight record where the
// call only enqueues. Operations on hosts have their own records.
#pragma once

#include "base/tool_range.hpp"
#include "core/api/api_guard.hpp"

namespace mep {

class ObservedCall {
 public:
  // `name` is a literal.
  ObservedCall(const mep_comm& comm, const char* name) : comm_(comm), range_(name) {}
  ObservedCall(const mep_comm& comm, const char* name, CallKind kind) : ObservedCall(comm, name) {
    begin(kind);
  }
  // Without end() it has ended by an exception.
  ~ObservedCall() {
    if (has_ended_) [[likely]]
      return;
    comm_.comm->counters().note_result(MEP_ERR_NO_MEMORY);
    end_record(MEP_ERR_NO_MEMORY);
  }
  ObservedCall(const ObservedCall&) = delete;
  ObservedCall& operator=(const ObservedCall&) = delete;

  // One of the calls that it is made of.
  void begin(CallKind kind) { comm_.comm->counters().begin(kind); }
  // Before it enqueues. `describe` returns a FlightCall.
  template <typename Describe>
  void record(Describe&& describe) {
    if (!comm_.backend->enqueues() || !comm_.comm->identity().flight().is_on()) return;
    FlightCall call = describe();
    call.epoch = comm_.comm->latest_view()->epoch;
    call.flags = flight::kEnqueued;
    ticket_ = comm_.comm->identity().flight().begin(call);
  }
  mep_result_t end(CallKind kind, mep_result_t result, uint64_t bytes) {
    comm_.comm->counters().end(kind, result, bytes);
    has_ended_ = true;
    end_record(result);
    return result;
  }
  // Its request counts how it ended.
  void leave_to_request() {
    has_ended_ = true;
    end_record(MEP_SUCCESS);
  }

 private:
  void end_record(mep_result_t result) { comm_.comm->identity().flight().end(ticket_, result); }

  const mep_comm& comm_;
  const ToolRange range_;
  uint64_t ticket_ = 0;  // 0: it has no record
  bool has_ended_ = false;
};

}  // namespace mep

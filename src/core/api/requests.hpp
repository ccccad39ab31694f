// Nonblocking operations from start to end, of whichever kind.
#pragma once

#include "base/unique_fd.hpp"
#include "core/api/api_guard.hpp"

// A request, as those who wait for it see it.
struct mep_request {
  explicit mep_request(mep_comm_t of);
  mep_request(const mep_request&) = delete;
  mep_request& operator=(const mep_request&) = delete;
  virtual ~mep_request();

  // A look at what is pending on the comm; whether this operation has ended.
  virtual bool look() = 0;
  // Frees this object, and what the comm counts it by.
  virtual void release() = 0;
  // Its time is over: asks for what ends it, or ends it.
  virtual void note_overdue() = 0;
  // The same, and waits for its end.
  virtual void end_overdue() = 0;
  virtual mep::Deadline deadline() const = 0;
  // Once it has ended:
  virtual mep_result_t result() const = 0;
  virtual const char* text() const = 0;  // null: the thread has it already
  // It is about to be freed: what the caller is told beside the result.
  virtual void tell() {}
  // True: it is withdrawn as if it had never been.
  [[nodiscard]] virtual mep_result_t cancel(bool* cancelled) = 0;

  [[nodiscard]] virtual mep_result_t describe(mep_op_info_t* info) const = 0;
  virtual void set_event(int event) = 0;
  // The event is written to when the operation has ended, and not before.
  virtual bool rings_event() const;
  // For the comm's counters; the bytes once it has ended without an error.
  virtual mep::CallKind call_kind() const = 0;
  virtual uint64_t call_bytes() const = 0;

  // True if that is known without a look.
  bool has_ended() const { return done || (message != nullptr && message->has_ended()); }

  const mep_comm_t comm;
  const mep::MessageOperation* message = nullptr;  // null: of a collective
  bool done = false;
  bool listed = false;  // while a call looks whether it stands in its list twice
  mep_request_t behind_in_group = nullptr;  // see Group
  mep::UniqueFd event;
};

namespace mep {

[[nodiscard]] mep_result_t start_request(mep_comm_t comm, Collective kind,
                                         const CollectiveArgs& args, mep_stream_t stream,
                                         mep_request_t* request);

}  // namespace mep

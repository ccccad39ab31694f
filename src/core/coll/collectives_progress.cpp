// The progress thread's work on the operations that are pending on a comm, and the end of a request's operation.
#include <algorithm>
#include <cstdio>

#include "base/request_event.hpp"
#include "core/coll/collectives.hpp"

namespace mep {
namespace {

// How often an overdue operation's decision is asked for again, since another change may begin it anew.
constexpr uint64_t kAskAgainNs = 50'000'000;

// The first operation of the queue, and how far it is.
struct Mark {
  const Operation* first = nullptr;
  uint64_t seq = 0;
  StepState state;
  bool operator==(const Mark&) const = default;
};

Mark mark_of(const Operation* first) {
  return first == nullptr ? Mark{} : Mark{first, first->seq, *first};
}

}  // namespace

Progress Collectives::progress() {
  const Mark before = mark_of(engine_.first());
  engine_.step_all();
  Progress progress;
  progress.pending = !idle();
  progress.advanced = mark_of(engine_.first()) != before;
  progress.deadline_ns = progress.pending ? ask_overdue() : Progress::kNoDeadline;
  return progress;
}

// Asks for the decision on what is overdue, as the caller's test or wait would. Returns when the next becomes so.
uint64_t Collectives::ask_overdue() {
  const uint64_t now = now_ns();
  if (now < next_deadline_ns_) return next_deadline_ns_;
  next_deadline_ns_ = Progress::kNoDeadline;
  for (const Operation* each = engine_.first(); each != nullptr; each = each->behind) {
    if (each->finished || each->request == nullptr) continue;
    uint64_t due_ns = each->request->deadline.at_ns();
    if (due_ns <= now) {
      ask_decision(*each);
      due_ns = now + kAskAgainNs;
    }
    next_deadline_ns_ = std::min(next_deadline_ns_, due_ns);
  }
  return next_deadline_ns_;
}

void Collectives::begin_request(RequestState& request) {
  request.record.reserve(size());
  next_deadline_ns_ = std::min(next_deadline_ns_, request.deadline.at_ns());
}

void Collectives::end_request(const Operation& operation) {
  RequestState& request = *operation.request;
  request.record = record_;
  if (is_error(operation.result)) {
    std::snprintf(request.text, sizeof request.text, "%s", last_error_text());
  }
  ring_event(request.event);
}

}  // namespace mep

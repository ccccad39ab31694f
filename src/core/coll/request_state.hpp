// The state of an operation that belongs to a request, and so goes on after its call.
#pragma once

#include "base/clock.hpp"
#include "base/status.hpp"
#include "core/operation/operation_record.hpp"

namespace mep {

struct RequestState {
  Deadline deadline = Deadline::never();
  int event = -1;  // an eventfd to write to when the operation has ended; -1: none
  // Once it has ended:
  OperationRecord record;
  char text[kErrorTextBytes] = "";  // of an error; on whichever thread it happened
};

}  // namespace mep

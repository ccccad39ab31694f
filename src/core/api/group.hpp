// Calls between mep_group_begin and mep_group_end: they begin there, and the end waits for all of them.
#pragma once

#include "mep.h"

namespace mep {

// Of the calling thread.
bool in_group();
// `start` begins an operation and gives its request, as the nonblocking forms do.
template <typename Start>
mep_result_t start_in_group(Start&& start);
// Has room for one more request afterwards.
void reserve_in_group();
void add_to_group(mep_request_t request);

template <typename Start>
mep_result_t start_in_group(Start&& start) {
  reserve_in_group();
  mep_request_t request = nullptr;
  const mep_result_t result = start(&request);
  if (result == MEP_SUCCESS) add_to_group(request);
  return result;
}

}  // namespace mep

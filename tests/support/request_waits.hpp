// Waits with a time, and cancels, whose one value says too that the operation goes on: MEP_IN_PROGRESS.
#pragma once

#include "mep.h"

namespace mep_test {

inline mep_result_t or_in_progress(mep_result_t result, int32_t done) {
  return result == MEP_SUCCESS && done == 0 ? mep_result_t{MEP_IN_PROGRESS} : result;
}

inline mep_result_t wait_in(mep_request_t* request, uint32_t ms, mep_op_info_t* info = nullptr) {
  int32_t done = -1;
  const mep_result_t result = mep_request_wait(request, ms, &done, info);
  return or_in_progress(result, done);
}

inline mep_result_t wait_all_in(int32_t count, mep_request_t* requests, uint32_t ms,
                                mep_result_t* results = nullptr) {
  int32_t done = -1;
  const mep_result_t result = mep_request_waitall(count, requests, ms, &done, results);
  return or_in_progress(result, done);
}

inline mep_result_t wait_any_in(int32_t count, mep_request_t* requests, uint32_t ms, int32_t* index,
                                mep_op_info_t* info = nullptr) {
  int32_t done = -1;
  const mep_result_t result = mep_request_waitany(count, requests, ms, &done, index, info);
  return or_in_progress(result, done);
}

inline mep_result_t cancel_now(mep_request_t* request) {
  int32_t cancelled = -1;
  const mep_result_t result = mep_request_cancel(request, &cancelled);
  return or_in_progress(result, cancelled);
}

}  // namespace mep_test

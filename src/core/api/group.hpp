// Calls between mep_group_begin and mep_group_end: they begin there, and the end waits for all of them.
#pragma once

#include <cstdint>

#include <span>
#include <vector>

#include "core/api/requests.hpp"

namespace mep {

// Messages of one comm on a stream, which the group's end enqueues as one operation.
struct StreamBatch {
  mep_comm_t comm;
  mep_stream_t stream;
  std::vector<StreamMessage> messages;
};

// One a thread. It needs no memory and no destructor: calls that have nothing to do with groups look at it.
struct Group {
  uint32_t depth = 0;
  uint64_t fork_generation = 0;   // in which it was begun
  mep_request_t first = nullptr;  // in the order of the calls
  mep_request_t last = nullptr;
  std::vector<StreamBatch>* batches = nullptr;  // null: none. Owned; the group's end frees it

  void add(mep_request_t request) {
    request->behind_in_group = nullptr;
    (last != nullptr ? last->behind_in_group : first) = request;
    last = request;
  }
};
extern constinit thread_local Group own_group;

// Forgets a group that was begun before this process was forked: its operations are the parent's.
bool is_of_this_process();

inline bool in_group() {
  return own_group.depth != 0 && is_of_this_process();
}

// Until the group's end: messages on a stream.
mep_result_t add_to_group(mep_comm_t comm, mep_stream_t stream,
                          std::span<const StreamMessage> messages);

// `start` begins an operation and gives its request, as the nonblocking forms do.
template <typename Start>
mep_result_t start_in_group(Start&& start) {
  mep_request_t request = nullptr;
  const mep_result_t result = start(&request);
  if (result == MEP_SUCCESS) own_group.add(request);
  return result;
}

}  // namespace mep

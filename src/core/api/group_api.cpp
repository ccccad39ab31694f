#include "core/api/group.hpp"

#include <pthread.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/log.hpp"

namespace mep {

constinit thread_local Group own_group;

bool is_of_this_process() {
  if (own_group.fork_generation == fork_generation()) return true;
  own_group = {};
  return false;
}

namespace {

// Enqueues what the group has for streams: the first error of all batches.
mep_result_t enqueue_batches() {
  const std::unique_ptr<std::vector<StreamBatch>> batches(
      std::exchange(own_group.batches, nullptr));
  if (batches == nullptr) return MEP_SUCCESS;
  mep_result_t first = MEP_SUCCESS;
  std::string text;
  for (const StreamBatch& batch : *batches) {
    const CallScope scope(batch.comm);
    mep_result_t result = scope.check();
    if (result == MEP_SUCCESS) {
      result = batch.comm->backend->enqueue_messages(batch.messages, batch.stream);
    }
    if (result == MEP_SUCCESS || first != MEP_SUCCESS) continue;
    first = result;
    text = last_error_text();
  }
  return first == MEP_SUCCESS ? MEP_SUCCESS : fail(first, "%s", text.c_str());
}

// Those that are not done stay in the group: another thread is inside a call on one of their comms.
mep_result_t end_group() {
  const mep_result_t enqueued = enqueue_batches();
  if (own_group.first == nullptr) {
    own_group.depth = 0;
    return enqueued;
  }
  std::vector<mep_request_t> requests;
  for (mep_request_t each = own_group.first; each != nullptr; each = each->behind_in_group) {
    requests.push_back(each);
  }
  const mep_result_t result =
      mep_request_waitall(static_cast<int32_t>(requests.size()), requests.data(),
                          MEP_TIMEOUT_DEFAULT, nullptr, nullptr);
  own_group.first = nullptr;
  own_group.last = nullptr;
  for (mep_request_t each : requests) {
    if (each != nullptr) own_group.add(each);
  }
  own_group.depth = own_group.first == nullptr ? 0 : 1;
  return enqueued != MEP_SUCCESS ? enqueued : result;
}

void end_with_thread(void*) {
  if (!in_group()) return;
  const mep_result_t result = guarded(end_group);
  if (is_error(result)) {
    log(LogLevel::kWarn, "a thread ended inside a group: %s", last_error_text());
  }
}

// The thread's end ends its group. A key in place of a destructor of own_group: only threads that begin groups
// need memory for it.
mep_result_t watch_thread_end() {
  static std::once_flag once;
  static pthread_key_t key;
  static bool has_key = false;
  std::call_once(once, [] { has_key = pthread_key_create(&key, end_with_thread) == 0; });
  if (has_key && pthread_setspecific(key, &own_group) == 0) return MEP_SUCCESS;
  return fail(MEP_ERR_NO_MEMORY, "no thread-specific key is left for groups");
}

mep_result_t begin_group() {
  MEP_TRY(watch_thread_end());
  own_group.fork_generation = fork_generation();
  own_group.depth = 1;
  return MEP_SUCCESS;
}

}  // namespace

mep_result_t add_to_group(mep_comm_t comm, mep_stream_t stream,
                          std::span<const StreamMessage> messages) {
  if (own_group.batches == nullptr) own_group.batches = new std::vector<StreamBatch>;
  std::vector<StreamBatch>& batches = *own_group.batches;
  auto batch = std::find_if(batches.begin(), batches.end(),
                            [comm](const StreamBatch& each) { return each.comm == comm; });
  if (batch == batches.end()) {
    batches.push_back({comm, stream, {}});
    batch = batches.end() - 1;
  } else if (batch->stream != stream) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "a group's messages of one communicator are on one stream, not on several");
  }
  batch->messages.insert(batch->messages.end(), messages.begin(), messages.end());
  return MEP_SUCCESS;
}

}  // namespace mep

mep_result_t mep_group_begin(void) {
  using namespace mep;
  if (!in_group()) return guarded(begin_group);
  ++own_group.depth;
  return MEP_SUCCESS;
}

mep_result_t mep_group_end(void) {
  using namespace mep;
  if (!in_group()) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "mep_group_end without mep_group_begin");
  }
  if (own_group.depth > 1) {
    --own_group.depth;
    return MEP_SUCCESS;
  }
  return guarded(end_group);
}

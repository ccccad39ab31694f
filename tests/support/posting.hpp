// Puts and signals one by one, for tests: a full queue is waited for, with progress.
#pragma once

#include <sched.h>

#include "transport/transport.hpp"

namespace mep::test {

inline mep_result_t post_batch(Transport& transport, uint32_t slot,
                               std::span<const Posting> postings) {
  Batch batch{postings};
  mep_result_t result = transport.post(slot, &batch);
  while (result == kWouldBlock) {
    if (!transport.progress(false)) sched_yield();
    result = transport.post(slot, &batch);
  }
  return result;
}

inline mep_result_t post_put(Transport& transport, uint32_t slot, uint64_t window, uint64_t offset,
                             const void* local, size_t bytes) {
  const Posting posting = Posting::put(window, offset, local, bytes);
  return post_batch(transport, slot, {&posting, 1});
}

inline mep_result_t post_signal(Transport& transport, uint32_t slot, uint64_t window,
                                uint64_t offset, uint64_t word, bool wake) {
  const Posting posting = Posting::signal(window, offset, word, wake);
  return post_batch(transport, slot, {&posting, 1});
}

// Until no source byte is read any more.
inline mep_result_t flush_posted(Transport& transport, uint32_t slot) {
  for (;;) {
    Completion completion;
    const mep_result_t result = transport.completion(slot, true, &completion);
    if (result != MEP_SUCCESS || completion.completed == completion.posted) return result;
    if (!transport.progress(false)) sched_yield();
  }
}

}  // namespace mep::test

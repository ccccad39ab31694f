// How kernels write an operation's status: one thread.
#pragma once

#include "kernels/cuda/device/op_status.hpp"

namespace mep::device {

// failed: kWords words; of ranks that there are. kIsPolled: a host looks at the version until it is not 0.
template <bool kIsPolled = false, uint32_t kWords>
__device__ inline void write_op_status(const OpStatusPlace& to, mep_op_status_t head,
                                       const uint64_t (&failed)[kWords]) {
  head.version = kIsPolled ? 0 : MEP_OP_STATUS_VERSION;
  head.failed_words = to.words < kWords ? to.words : kWords;
  head.failed_count = 0;
  auto* bitmap = reinterpret_cast<uint64_t*>(to.record + 1);
#pragma unroll
  for (uint32_t word = 0; word < kWords; ++word) {
    head.failed_count += static_cast<uint32_t>(__popcll(static_cast<long long>(failed[word])));
    if (word < to.words) bitmap[word] = failed[word];
  }
  *to.record = head;
  if (!kIsPolled) return;
  // Releases the record to the host, after the operation's output, which barriers have ordered before it.
  __threadfence_system();
  *static_cast<volatile uint32_t*>(&to.record->version) = MEP_OP_STATUS_VERSION;
}

}  // namespace mep::device

// A doorbell of an adapter, rung by a GPU. Plain C++; the stream is a cudaStream_t as void*, the result a cudaError_t as int,
// 0 is success.
#pragma once

#include <cstdint>

namespace mep::device {

// Enqueues one kernel, which stores as those that post to queues do.
int launch_ring(uint64_t* doorbell, uint64_t value, void* stream);

}  // namespace mep::device

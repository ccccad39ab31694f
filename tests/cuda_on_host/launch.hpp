// The part of the runtime that launches of kernels need.
#pragma once

#include <cuda_runtime.h>

#include "cuda_on_host/lanes.hpp"

namespace cuda_on_host {

// Runs the kernel in the stream's order; a stream that is being captured notes it.
void enqueue(cudaStream_t stream, Launch launch);

}  // namespace cuda_on_host

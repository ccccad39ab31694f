// Launching collectives; no CUDA header needed.
#pragma once

#include <cstdint>

#include "kernels/cuda/coll/state.hpp"

namespace mep::device {

// Sizes for `ranks` ranks, of which each has `ctas` CTAs. on_host: windows lie in memory of the host.
CollLayout make_coll_layout(uint32_t ranks, uint32_t ctas, bool on_host = false);

// Loads every kernel: a first launch under lazy loading waits for all kernels that run, so it must not
// happen while ranks wait for each other.
[[nodiscard]] mep_result_t load_coll_kernels();

// CTAs of collective kernels that are on the device at one time.
[[nodiscard]] mep_result_t coll_cta_capacity(int device, uint32_t* ctas);

// CTAs of an operation's largest launch if so many ranks share a GPU of this capacity: of a rank's share half,
// so that an operation of another communicator fits beside it, unless half is very little.
uint32_t most_coll_ctas(uint32_t capacity, uint32_t ranks_on_device);

// Whether an allreduce of `bytes` is exchanged whole or reduced in slices.
bool coll_is_one_shot(const CollLayout& layout, uint64_t bytes);

// Enqueues it. `ctas` 0: by its size. blocks: of a call with counts; its `ctas` are 0.
[[nodiscard]] mep_result_t launch_coll(const CollCall& call, CollState* state,
                                       const CollLayout& layout, uint32_t ctas, void* stream,
                                       const CollBlocks* blocks = nullptr);

}  // namespace mep::device

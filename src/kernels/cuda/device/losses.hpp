// Ranks of a comm that have gone, told in the order of a stream: see core/comm/losses.hpp. Plain C++; streams are
// cudaStream_t as void*, results are cudaError_t as int, 0 is success.
#pragma once

#include <cstdint>

namespace mep::device {

struct LossWords {
  uint32_t ranks;
  const uint64_t* gone;  // [ranks]; the host writes them
  uint64_t* shown;       // [ranks]
  uint64_t* forgotten;   // [ranks]
};

// Enqueues one kernel. lost: [ranks], 1 for a rank that has gone and is not forgotten.
int launch_show_losses(const LossWords& words, int32_t* lost, void* stream);
// Enqueues one kernel: what was shown is forgotten.
int launch_forget_losses(const LossWords& words, void* stream);

}  // namespace mep::device

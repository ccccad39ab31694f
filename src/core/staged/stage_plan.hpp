// Where the data of a staged collective lies in the staging, from what the table says of its kind. Kinds
// whose form nobody has planned are refused.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mep.h"
#include "protocol/operations.hpp"

namespace mep {

struct StagePlan {
  bool gives = false;            // this rank has an input
  bool gets = false;             // and an output
  size_t blocks = 1;             // of all ranks, that lie in the staging at one time
  size_t send_row = 0;           // where the input lies, in blocks
  size_t receive_rows = 1;       // blocks of the output
  bool is_output_apart = false;  // behind the inputs; else the operation is in place there

  // Of one block, if an operation has that many bytes for all.
  size_t most_block_bytes(size_t staging_bytes) const {
    constexpr size_t kUnit = 256;
    return staging_bytes / blocks / kUnit * kUnit;
  }
};

[[nodiscard]] mep_result_t plan_stage(Collective kind, uint32_t rank, uint32_t ranks, uint32_t root,
                                      StagePlan* plan);

}  // namespace mep

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
  size_t blocks = 1;             // that the staging has room for: the same on all ranks
  size_t send_rows = 1;          // blocks of the input
  size_t send_row = 0;           // the first of them
  size_t receive_rows = 1;       // blocks of the output
  size_t receive_row = 0;        // the first of them, if the operation is in place there
  bool is_output_apart = false;  // behind room for the longest input; else in place

  // Of one block, if an operation has that many bytes for all.
  size_t most_block_bytes(size_t staging_bytes) const {
    constexpr size_t kUnit = 256;
    return staging_bytes / blocks / kUnit * kUnit;
  }
  // Where the output begins, if blocks are of so many bytes.
  size_t output_at(size_t staging_bytes, size_t block_bytes) const {
    return is_output_apart ? send_rows * most_block_bytes(staging_bytes)
                           : receive_row * block_bytes;
  }
};

[[nodiscard]] mep_result_t plan_stage(Collective kind, uint32_t rank, uint32_t ranks, uint32_t root,
                                      StagePlan* plan);

}  // namespace mep

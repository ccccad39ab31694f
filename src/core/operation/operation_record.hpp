// A record of the last finished operation of a channel, for mep_comm_last_op and its like.
#pragma once

#include <cstdint>

#include "core/operation/rank_bits.hpp"
#include "mep.h"

namespace mep {

struct OperationRecord {
  bool any = false;
  uint64_t epoch = 0;
  uint64_t seq = 0;
  mep_result_t result = MEP_SUCCESS;
  bool input_intact = true;
  RankBits contributors;  // empty: none
  RankBits failed;
  bool is_report = false;  // it failed by a view change before which no rank had called it
  // From then on a record of so many ranks is kept without allocating.
  void reserve(uint32_t ranks);
  // MEP_ERR_CAPACITY if a bitmap is too short for so many ranks; the rest is filled all the same.
  [[nodiscard]] mep_result_t fill(uint32_t ranks, mep_op_info_t* info) const;
  // In the caller's `bytes` bytes, which check_op_status() has seen: as much of the bitmap as fits.
  void fill_status(mep_op_status_t* status, uint64_t bytes) const;
};

// MEP_ERR_CAPACITY if a bitmap that is asked for is too short for so many ranks.
[[nodiscard]] mep_result_t check_bitmaps(uint32_t ranks, const mep_op_info_t& info);

// A place of the caller's for a record: it lies as it must, and has room for the header at least. `bytes_name`
// is what the caller calls its length.
[[nodiscard]] mep_result_t check_op_status(const mep_op_status_t* status, uint64_t bytes,
                                           const char* bytes_name);

}  // namespace mep

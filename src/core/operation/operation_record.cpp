#include "core/operation/operation_record.hpp"

#include "base/status.hpp"

namespace mep {

void OperationRecord::reserve(uint32_t ranks) {
  contributors.reserve(rank_words(ranks));
  failed.reserve(rank_words(ranks));
}

mep_result_t OperationRecord::fill(uint32_t ranks, mep_op_info_t* info) const {
  info->flags = input_intact ? uint32_t{MEP_OP_INPUT_INTACT} : 0u;
  info->epoch = epoch;
  info->seq = seq;
  info->result = result;
  bool fits = true;
  const auto copy = [&](uint64_t* to, uint32_t capacity, const RankBits& from) {
    if (to == nullptr) return;
    for (uint32_t i = 0; i < capacity; ++i) to[i] = i < from.size() ? from[i] : 0;
    fits = fits && capacity >= rank_words(ranks);
  };
  copy(info->contributors, info->contributors_words, contributors);
  copy(info->failed, info->failed_words, failed);
  if (fits) return MEP_SUCCESS;
  return fail(MEP_ERR_CAPACITY, "a bitmap of %u ranks needs %zu words of 64 bits", ranks,
              rank_words(ranks));
}

}  // namespace mep

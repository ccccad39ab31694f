#include "core/operation/operation_record.hpp"

#include <algorithm>
#include <cstring>

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
  const auto copy = [&](uint64_t* to, uint32_t capacity, const RankBits& from) {
    if (to == nullptr) return;
    for (uint32_t i = 0; i < capacity; ++i) to[i] = i < from.size() ? from[i] : 0;
  };
  copy(info->contributors, info->contributors_words, contributors);
  copy(info->failed, info->failed_words, failed);
  return check_bitmaps(ranks, *info);
}

mep_result_t check_bitmaps(uint32_t ranks, const mep_op_info_t& info) {
  const auto fits = [ranks](const uint64_t* bitmap, uint32_t words) {
    return bitmap == nullptr || words >= rank_words(ranks);
  };
  if (fits(info.contributors, info.contributors_words) && fits(info.failed, info.failed_words)) {
    return MEP_SUCCESS;
  }
  return fail(MEP_ERR_CAPACITY, "a bitmap of %u ranks needs %zu words of 64 bits", ranks,
              rank_words(ranks));
}

void OperationRecord::fill_status(mep_op_status_t* status, uint64_t bytes) const {
  const uint64_t room = (bytes - sizeof *status) / sizeof(uint64_t);
  const size_t words = std::min<uint64_t>(room, failed.size());
  *status = {};
  status->version = MEP_OP_STATUS_VERSION;
  status->failed_words = static_cast<uint32_t>(words);
  status->result = result;
  status->epoch = epoch;
  status->seq = seq;
  for (const uint64_t word : failed) {
    status->failed_count += static_cast<uint32_t>(__builtin_popcountll(word));
  }
  if (words != 0) std::memcpy(status + 1, failed.data(), words * sizeof(uint64_t));
}

mep_result_t check_op_status(const mep_op_status_t* status, uint64_t bytes,
                             const char* bytes_name) {
  if (bytes < sizeof(mep_op_status_t)) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "%s is %llu; the header alone has %zu, see mep_op_status_size", bytes_name,
                static_cast<unsigned long long>(bytes), sizeof(mep_op_status_t));
  }
  if (reinterpret_cast<uintptr_t>(status) % alignof(mep_op_status_t) != 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "the record of a status does not lie on %zu bytes",
                alignof(mep_op_status_t));
  }
  return MEP_SUCCESS;
}

}  // namespace mep

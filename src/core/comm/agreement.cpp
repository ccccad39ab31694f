#include "core/comm/agreement.hpp"

#include <cstdio>

namespace mep {
namespace {

// The gravest error counts, of those the highest rank's: one number, so that its maximum says both.
uint64_t status_word(mep_result_t result, uint32_t rank) {
  return result == MEP_SUCCESS ? 0
                               : static_cast<uint64_t>(-static_cast<int64_t>(result)) << 32 | rank;
}

}  // namespace

mep_result_t find_largest(Comm& comm, uint64_t own, uint64_t* largest) {
  return comm.run(Collective::k_allreduce, {&own, largest, 1, MEP_UINT64, MEP_MAX, 0});
}

mep_result_t agree_on_step(Comm& comm, mep_result_t own, const char* what) {
  char own_text[kErrorTextBytes] = "";
  if (own != MEP_SUCCESS) (void)snprintf(own_text, sizeof own_text, "%s", last_error_text());
  uint64_t worst = 0;
  MEP_TRY(find_largest(comm, status_word(own, comm.rank()), &worst));
  if (worst == 0) return MEP_SUCCESS;
  const auto result = static_cast<mep_result_t>(-static_cast<int64_t>(worst >> 32));
  const auto rank = static_cast<uint32_t>(worst);
  if (rank == comm.rank()) return fail(result, "%s", own_text);
  return fail(result, "rank %u of comm %s could not %s: %s%s%s", rank, comm.name().c_str(), what,
              mep_result_string(result),
              own == MEP_SUCCESS ? "" : "; this rank neither: ", own_text);
}

mep_result_t RankValues::gather(Comm& comm, std::span<const uint64_t> mine) {
  count_ = mine.size();
  all_.clear();
  for (uint32_t rank = 0; rank < comm.size(); ++rank) {
    all_.insert(all_.end(), mine.begin(), mine.end());
  }
  CollectiveArgs args;
  args.send = mine.data();
  args.receive = all_.data();
  args.count = count_;
  args.dtype = MEP_UINT64;
  return comm.run(Collective::k_allgather, args);
}

uint32_t RankValues::first_other(uint32_t ranks, size_t index) const {
  uint32_t rank = 0;
  while (rank < ranks && of(rank, index) == of(0, index)) ++rank;
  return rank;
}

}  // namespace mep

#include "core/api/make_comm.hpp"

#include "base/test_delay.hpp"
#include "core/api/api_guard.hpp"

namespace mep {
namespace {

// The gravest error counts, of those the highest rank's: one number, so that its maximum says both.
uint64_t status_word(mep_result_t result, uint32_t rank) {
  return result == MEP_SUCCESS ? 0
                               : static_cast<uint64_t>(-static_cast<int64_t>(result)) << 32 | rank;
}

}  // namespace

mep_result_t agree_on_step(Comm& comm, mep_result_t own, const char* what) {
  const std::string own_text = own == MEP_SUCCESS ? "" : last_error_text();
  const uint64_t status = status_word(own, comm.rank());
  uint64_t worst = 0;
  MEP_TRY(comm.run(Collective::k_allreduce, {&status, &worst, 1, MEP_UINT64, MEP_MAX, 0}));
  if (worst == 0) return MEP_SUCCESS;
  const auto result = static_cast<mep_result_t>(-static_cast<int64_t>(worst >> 32));
  const auto rank = static_cast<uint32_t>(worst);
  if (rank == comm.rank()) return fail(result, "%s", own_text.c_str());
  return fail(result, "rank %u of comm %s could not %s: %s%s%s", rank, comm.name().c_str(), what,
              mep_result_string(result),
              own == MEP_SUCCESS ? "" : "; this rank neither: ", own_text.c_str());
}

// Every offer is on its way before anybody waits for one; every window is taken before anybody may drop
// his. Both steps end by an operation of the parent, whose view changes with every change of these members:
// so whoever has missed one, or met one, learns of it there like all others.
mep_result_t make_together(Comm& parent, const std::function<mep_result_t()>& begin,
                           const std::function<mep_result_t()>& finish) {
  MEP_TRY(agree_on_step(parent, guarded(begin), "make its part of a communicator"));
  MEP_TRY(agree_on_step(parent, guarded(finish), "take its peers' parts of a communicator"));
  MEP_TEST_DELAY_POINT("comm agreed");
  return MEP_SUCCESS;
}

}  // namespace mep

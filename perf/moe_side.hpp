// One way to run a MoE layer's communication: by MEP or by plain MPI. Both sides have the same
// problem and the same stand-in expert; what they may prepare beforehand is memory, nothing of the
// routing.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "mep.h"
#include "moe_problem.hpp"
#include "timing.hpp"

namespace mep::perf {

struct ReceivedRow {
  const void* data = nullptr;
  const float* scales = nullptr;  // fp8 only
  int64_t token = -1;             // index on its source rank; -1: this side does not say
};

class MoeSide {
 public:
  virtual ~MoeSide() = default;
  virtual void sync() = 0;
  virtual void dispatch() = 0;
  virtual void expert() = 0;
  virtual void combine() = 0;  // into the problem's out

  // The rows that the last dispatch brought, for the check.
  virtual uint64_t received_count(uint32_t local_expert, int source) const = 0;
  virtual ReceivedRow received_row(uint32_t local_expert, int source, uint64_t index) const = 0;
};

mep_ep_config_t ep_config_of(const MoeShape& shape, const Options& options);

std::unique_ptr<MoeSide> make_mep_moe(const MoeProblem& problem, const Options& options,
                                      mep_comm_t comm);

enum class MoeOperation { kDispatch, kCombine, kMoe };

// `side` and `problem` outlive the case.
std::unique_ptr<Case> make_moe_case(MoeOperation operation, MoeSide& side, MoeProblem& problem);

}  // namespace mep::perf

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
  // High throughput: [K] experts of this rank, by their local number, or -1; and weights, 0 with -1.
  const int32_t* topk_idx = nullptr;
  const float* topk_weights = nullptr;  // expanded: one, that of the row
};

class MoeSide {
 public:
  virtual ~MoeSide() = default;
  virtual void sync() = 0;
  virtual void dispatch() = 0;
  virtual void expert() = 0;
  virtual void combine() = 0;  // into the problem's out
  // High throughput: the problem's rows by the routing of the last dispatch.
  virtual void replay() {}

  // The rows that the last dispatch brought, for the check. High throughput: they are those of local expert 0.
  virtual uint64_t received_count(uint32_t local_expert, int source) const = 0;
  virtual ReceivedRow received_row(uint32_t local_expert, int source, uint64_t index) const = 0;
};

mep_ep_config_t ep_config_of(const MoeShape& shape, const Options& options);

std::unique_ptr<MoeSide> make_mep_moe(const MoeProblem& problem, const Options& options,
                                      mep_comm_t comm);

enum class MoeOperation { kDispatch, kCombine, kMoe };

// `side` and `problem` outlive the case.
std::unique_ptr<Case> make_moe_case(MoeOperation operation, const Options& options, MoeSide& side,
                                    MoeProblem& problem);

}  // namespace mep::perf

// Collectives by NCCL, which is found when the program runs: it is no part of what MEP is built from.
#pragma once

#include <memory>

#include "collectives.hpp"
#include "device/context.hpp"

namespace mep::perf {

class NcclLibrary;

// One rank of a communicator of NCCL with the ranks of the context's. Collective; throws PerfError.
class NcclRank {
 public:
  explicit NcclRank(DeviceContext& context);
  ~NcclRank();
  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;

  // Throws where NCCL has no such type or operator.
  void check(const CollectiveCall& call) const;
  void enqueue(const CollectiveCall& call);

 private:
  void enqueue_blocks(const CollectiveCall& call, bool sends_all, bool receives_all);

  DeviceContext& context_;
  const NcclLibrary& library_;
  void* comm_ = nullptr;
};

}  // namespace mep::perf

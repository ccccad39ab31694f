// Collectives of GPUs in which each block has a length of its own, on the host. The longest block decides in how many rounds
// they go, which all ranks agree on first; in each round the next bytes of all blocks do, as an operation of the communicator.
//
//   staging  given [ranks] chunk | gotten [ranks] chunk; buffers with one block have it first
//
// The kernel copies between the caller's blocks and these places when an answer asks it to. By the thread of the server alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/comm/comm.hpp"
#include "core/staged/staged_collectives.hpp"
#include "kernels/cuda/coll/stage_mailbox.hpp"

namespace mep {

class StagedCounted {
 public:
  // The memory and the comm outlive this; all is allocated here.
  StagedCounted(Comm& comm, std::byte* staging, size_t bytes, TellStaged tell);
  StagedCounted(const StagedCounted&) = delete;
  StagedCounted& operator=(const StagedCounted&) = delete;

  // Until the kernel has parts to copy, which are then in the mailbox, or the operation has ended.
  [[nodiscard]] mep_result_t serve(const device::StageRequest& request, device::StageMailbox* box,
                                   device::StageAnswer* answer);

 private:
  enum class Phase : uint8_t { kGiving, kRunning, kTaking };
  // One of the caller's buffers.
  struct Side {
    bool has_one_for_each = false;
    std::vector<device::StageItem> blocks;  // by place
    std::byte* staging = nullptr;
    std::vector<uint64_t> counts;  // elements of this round
    std::vector<uint64_t> displs;
  };

  mep_result_t begin(const device::StageRequest& request, const device::StageList& list,
                     device::StageAnswer* answer);
  mep_result_t run_round(device::StageAnswer* answer);
  // False: nothing of this round is left to copy.
  bool ask_to_copy(const Side& side, device::StageMailbox* box, device::StageAnswer* answer);
  uint64_t bytes_in_round(const device::StageItem& block) const;
  void count_round(Side* side);

  Comm& comm_;
  std::byte* const staging_;
  const size_t chunk_bytes_;
  const TellStaged tell_;
  device::StageCollective call_{};
  Side given_;
  Side gotten_;
  Phase phase_ = Phase::kGiving;
  uint64_t round_ = 0;
  uint64_t rounds_ = 0;
  uint32_t next_ = 0;             // place that is looked at next
  std::vector<uint64_t> givers_;  // bits of the ranks whose blocks have come
};

}  // namespace mep

#include "core/staged/staged_counted.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/status.hpp"

namespace mep {
namespace {

constexpr size_t kUnit = 256;

}  // namespace

StagedCounted::StagedCounted(Comm& comm, std::byte* staging, size_t bytes, TellStaged tell)
    : comm_(comm),
      staging_(staging),
      chunk_bytes_(bytes / (2 * size_t{comm.size()}) / kUnit * kUnit),
      tell_(std::move(tell)),
      givers_(device::kStageRankWords) {
  for (Side* side : {&given_, &gotten_}) {
    side->blocks.resize(comm.size());
    side->counts.resize(comm.size());
    side->displs.resize(comm.size());
  }
  given_.staging = staging_;
  gotten_.staging = staging_ + comm.size() * chunk_bytes_;
}

mep_result_t StagedCounted::serve(const device::StageRequest& request, device::StageMailbox* box,
                                  device::StageAnswer* answer) {
  if (request.step == device::StageStep::kCountedBegins) {
    MEP_TRY(begin(request, box->list, answer));
  }
  for (;;) {
    switch (phase_) {
      case Phase::kGiving:
        if (ask_to_copy(given_, box, answer)) return MEP_SUCCESS;
        phase_ = Phase::kRunning;
        break;
      case Phase::kRunning:
        MEP_TRY(run_round(answer));
        phase_ = Phase::kTaking;
        next_ = 0;
        break;
      case Phase::kTaking:
        if (ask_to_copy(gotten_, box, answer)) return MEP_SUCCESS;
        if (++round_ == rounds_) {
          tell_last_status(comm_, answer);
          return MEP_SUCCESS;
        }
        phase_ = Phase::kGiving;
        next_ = 0;
        break;
    }
  }
}

// All ranks agree on the rounds, so that each makes the same calls.
mep_result_t StagedCounted::begin(const device::StageRequest& request,
                                  const device::StageList& list, device::StageAnswer* answer) {
  call_ = request.collective;
  const OperationFacts& facts = facts_of(call_.kind);
  given_.has_one_for_each = facts.gives_each_a_block();
  gotten_.has_one_for_each = facts.gets_a_block_of_each();
  for (Side* side : {&given_, &gotten_})
    std::fill(side->blocks.begin(), side->blocks.end(), device::StageItem{});
  uint64_t longest = 0;
  for (uint64_t i = 0; i < std::min<uint64_t>(list.count, device::kStageItems); ++i) {
    const device::StageItem& block = list.of[i];
    Side& side = block.is_send != 0 ? given_ : gotten_;
    side.blocks[side.has_one_for_each ? block.peer : 0] = block;
    longest = std::max(longest, block.bytes);
  }
  uint64_t most = 0;
  CollectiveArgs args;
  args.send = &longest;
  args.receive = &most;
  args.count = 1;
  args.dtype = MEP_UINT64;
  args.op = MEP_MAX;
  MEP_TRY(run_staged(comm_, Collective::k_allreduce, args, true, tell_, answer));
  rounds_ = std::max<uint64_t>(1, (most + chunk_bytes_ - 1) / chunk_bytes_);
  round_ = 0;
  next_ = 0;
  phase_ = Phase::kGiving;
  return MEP_SUCCESS;
}

uint64_t StagedCounted::bytes_in_round(const device::StageItem& block) const {
  const uint64_t before = round_ * chunk_bytes_;
  return block.bytes > before ? std::min<uint64_t>(block.bytes - before, chunk_bytes_) : 0;
}

void StagedCounted::count_round(Side* side) {
  const size_t width = mep_dtype_size(call_.dtype);
  for (uint32_t place = 0; place < comm_.size(); ++place) {
    side->counts[place] = bytes_in_round(side->blocks[place]) / width;
    side->displs[place] = place * (chunk_bytes_ / width);
  }
}

mep_result_t StagedCounted::run_round(device::StageAnswer* answer) {
  count_round(&given_);
  count_round(&gotten_);
  const bool of_both = given_.has_one_for_each && gotten_.has_one_for_each;
  const Side& first = given_.has_one_for_each ? given_ : gotten_;
  const size_t own = (given_.has_one_for_each ? gotten_ : given_).counts[0];
  BlockCounts counts;
  counts.counts = first.counts.data();
  counts.displs = first.displs.data();
  if (of_both) {
    counts.recv_counts = gotten_.counts.data();
    counts.recv_displs = gotten_.displs.data();
  } else {
    counts.own = &own;
  }
  CollectiveArgs args;
  args.send = given_.staging;
  args.receive = gotten_.staging;
  args.dtype = call_.dtype;
  args.op = call_.op;
  args.root = call_.root;
  args.counts = &counts;
  MEP_TRY(run_staged(comm_, call_.kind, args, false, tell_, answer));
  mep_op_info_t info{};
  info.contributors = givers_.data();
  info.contributors_words = static_cast<uint32_t>(givers_.size());
  return comm_.collectives().last_op(&info);
}

bool StagedCounted::ask_to_copy(const Side& side, device::StageMailbox* box,
                                device::StageAnswer* answer) {
  const bool gives = &side == &given_;
  answer->parts = 0;
  for (; next_ < comm_.size() && answer->parts < device::kStageParts; ++next_) {
    const device::StageItem& block = side.blocks[next_];
    const uint64_t bytes = bytes_in_round(block);
    if (bytes == 0) continue;
    if (!gives && side.has_one_for_each && (givers_[next_ / 64] >> (next_ % 64) & 1) == 0) continue;
    const uint64_t user = block.at + round_ * chunk_bytes_;
    const auto staged = std::bit_cast<uint64_t>(side.staging + next_ * chunk_bytes_);
    box->parts[answer->parts++] =
        gives ? device::StagePart{user, staged, bytes} : device::StagePart{staged, user, bytes};
  }
  return answer->parts != 0;
}

}  // namespace mep

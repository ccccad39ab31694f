// The members of a process group, and how ranks come back.
#include <algorithm>

#include <c10/util/Exception.h>

#include "process_group.hpp"

namespace mep_torch {
namespace {

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// Ranks agree on one 64-bit word.
constexpr int kMostRanks = 64;

}  // namespace

void settle(Communicator& comm, std::chrono::milliseconds timeout) {
  // Bounds the loop: each round but the last is a change of the members.
  constexpr int kMostChanges = 1024;
  const std::lock_guard lock(comm.mutex());
  if (comm.handle() == nullptr) std::rethrow_exception(closed_error("recover ranks"));
  comm.set_timeout(timeout);
  mep_result_t result = MEP_ERR_PEER_FAILED;
  for (int change = 0; is_loss(result) && change < kMostChanges; ++change) {
    result = mep_barrier(comm.handle(), nullptr);
  }
  check(result, "recover ranks");
}

std::vector<int> ProcessGroupMep::living() const {
  if (collectives_->handle() == nullptr) return {rank_};
  if (is_world()) world_->catch_up();
  return collectives_->living();
}

uint64_t ProcessGroupMep::epoch() const {
  uint64_t epoch = 0;
  if (collectives_->handle() != nullptr) {
    check(mep_comm_epoch(collectives_->handle(), &epoch), "look who is there");
  }
  return epoch;
}

void ProcessGroupMep::set_active_ranks(const at::Tensor& mirror) {
  active_ = std::make_shared<ActiveRanks>(mirror, size_);
  active_->show(living());
}

at::Tensor ProcessGroupMep::active_ranks() const {
  TORCH_CHECK(active_ != nullptr, "mep: the group was made without a tensor of active ranks");
  return active_->mirror();
}

std::vector<bool> ProcessGroupMep::peers_are_ready(const std::vector<int>& ranks) {
  const std::vector<int> there = living();
  std::vector<bool> are_ready;
  for (const int rank : ranks) are_ready.push_back(contains(there, rank));
  const bool are_all = std::find(are_ready.begin(), are_ready.end(), false) == are_ready.end();
  // A group other than the world takes in who is in the world.
  if (are_all || !is_world() || collectives_->handle() == nullptr) return are_ready;
  TORCH_CHECK(size_ <= kMostRanks, "mep: replacements that wait are told in groups of at most ",
              kMostRanks, " ranks, not of ", size_);
  uint64_t waiting = 0;
  for (const int rank : ranks) {
    if (world_->is_waiting(rank)) waiting |= uint64_t{1} << rank;
  }
  // Not all see it at one time; what they do next has to be the same.
  {
    const std::lock_guard lock(collectives_->mutex());
    collectives_->set_timeout(options_->timeout);
    check(mep_comm_agree(collectives_->handle(), waiting, &waiting), "ask who waits");
  }
  for (size_t index = 0; index < ranks.size(); ++index) {
    if ((waiting >> ranks[index] & 1) != 0) are_ready[index] = true;
  }
  return are_ready;
}

bool ProcessGroupMep::recover(const std::vector<int>& ranks, std::chrono::milliseconds timeout) {
  TORCH_CHECK(collectives_->handle() != nullptr,
              "mep: recover ranks: this rank has not joined the group; call join_group() first");
  if (is_world()) {
    int32_t admitted = 0;
    (void)world_->recover({ranks.begin(), ranks.end()}, timeout, &admitted);
  } else {
    const std::vector<int> there = living();
    for (const int rank : ranks) {
      TORCH_CHECK(contains(there, rank), "mep: recover ranks: rank ", rank, " of the group, ",
                  comms_.ranks[static_cast<size_t>(rank)],
                  " of the default group, is not there; recover it in the default group first");
    }
  }
  settle(*collectives_, options_->timeout);
  const std::vector<int> there = living();
  if (active_ != nullptr) active_->show(there);
  return std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return contains(there, rank); });
}

void ProcessGroupMep::join() {
  TORCH_CHECK(world_->is_replacement(),
              "mep: join_group: this process was there from the start; only a replacement joins");
  if (is_world()) {
    world_->join();
  } else {
    TORCH_CHECK(world_->comms().collectives->handle() != nullptr,
                "mep: join_group: the default group comes first");
    world_->join_group(comms_, options_->timeout);
  }
  settle(*collectives_, options_->timeout);
  if (active_ != nullptr) active_->show(living());
}

}  // namespace mep_torch

// The members of a process group, and how ranks come back.
#include <algorithm>
#include <thread>

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

uint64_t ProcessGroupMep::agree(uint64_t word) {
  const std::lock_guard lock(collectives_->mutex());
  if (collectives_->handle() == nullptr) std::rethrow_exception(closed_error("agree"));
  collectives_->set_timeout(options_->timeout);
  check(mep_comm_agree(collectives_->handle(), word, &word), "agree");
  return word;
}

void ProcessGroupMep::set_active_ranks(const at::Tensor& mirror) {
  active_ = std::make_shared<ActiveRanks>(mirror, size_);
  active_->show(living());
}

at::Tensor ProcessGroupMep::active_ranks() const {
  TORCH_CHECK(active_ != nullptr, "mep: the group was made without a tensor of active ranks");
  active_->keep(living());
  return active_->mirror();
}

std::vector<bool> ProcessGroupMep::peers_are_ready(const std::vector<int>& ranks) {
  const std::vector<int> there = living();
  std::vector<bool> are_ready;
  for (const int rank : ranks) are_ready.push_back(contains(there, rank));
  const bool are_all = std::find(are_ready.begin(), are_ready.end(), false) == are_ready.end();
  // A group other than the world takes in who is in the world, which those are that its own ranks know.
  const auto is_new = [this](int rank) { return rank >= size_; };
  const bool is_asked = is_world() || std::any_of(ranks.begin(), ranks.end(), is_new);
  if (are_all || !is_asked || collectives_->handle() == nullptr) return are_ready;
  TORCH_CHECK(std::max(size_, *std::max_element(ranks.begin(), ranks.end()) + 1) <= kMostRanks,
              "mep: replacements that wait are told in groups of at most ", kMostRanks, " ranks");
  const std::vector<int32_t> known = is_world() ? comms_.ranks : world_->ranks_of(comms_.name);
  const std::vector<int> in_world = world_->comms().collectives->living();
  uint64_t waiting = 0;
  for (const int rank : ranks) {
    const bool is_there = is_world() ? world_->is_waiting(rank)
                                     : static_cast<size_t>(rank) < known.size() &&
                                           contains(in_world, known[static_cast<size_t>(rank)]);
    if (is_there) waiting |= uint64_t{1} << rank;
  }
  // Not all see it at one time; what they do next has to be the same.
  waiting = agree(waiting);
  for (size_t index = 0; index < ranks.size(); ++index) {
    if ((waiting >> ranks[index] & 1) != 0) are_ready[index] = true;
  }
  return are_ready;
}

// False: not all of them came in time.
bool ProcessGroupMep::admit(const std::vector<int>& ranks, std::chrono::milliseconds timeout) {
  std::vector<int32_t> gone;
  std::vector<int32_t> newcomers;
  for (const int rank : ranks) (rank < size_ ? gone : newcomers).push_back(rank);
  std::sort(newcomers.begin(), newcomers.end());
  for (size_t index = 0; index < newcomers.size(); ++index) {
    TORCH_CHECK_VALUE(newcomers[index] == size_ + static_cast<int>(index),
                      "mep: recover ranks: a group of ", size_, " ranks grows by rank ", size_,
                      " first, and by the next ones in order; rank ", newcomers[index],
                      " is not next");
  }
  if (is_world()) {
    int32_t admitted = 0;
    if ((newcomers.empty() || !gone.empty()) && !world_->recover(gone, timeout, &admitted))
      return false;
    if (newcomers.empty()) return true;
    if (!world_->grow(static_cast<int32_t>(newcomers.size()), timeout)) return false;
    take_ranks(world_->comms().ranks);
    return true;
  }
  const std::vector<int> there = living();
  for (const int rank : gone) {
    TORCH_CHECK(contains(there, rank), "mep: recover ranks: rank ", rank, " of the group, ",
                comms_.ranks[static_cast<size_t>(rank)],
                " of the default group, is not there; recover it in the default group first");
  }
  if (!newcomers.empty()) grow(newcomers);
  return true;
}

void ProcessGroupMep::grow(const std::vector<int32_t>& newcomers) {
  Comms grown = comms_;
  grown.ranks = world_->ranks_of(comms_.name);
  TORCH_CHECK(grown.ranks.size() == comms_.ranks.size() + newcomers.size() &&
                  std::equal(comms_.ranks.begin(), comms_.ranks.end(), grown.ranks.begin()),
              "mep: recover ranks: the newcomers have made the group with ", grown.ranks.size(),
              " ranks; give all those after the first ", size_, ", in this order: ", comms_.ranks);
  const std::vector<int> there = world_->comms().collectives->living();
  for (const int32_t rank : grown.ranks) {
    TORCH_CHECK(contains(there, rank), "mep: recover ranks: rank ", rank,
                " of the default group is not there; recover it there first");
  }
  world_->grow_group(grown, options_->timeout);
  take_ranks(grown.ranks);
}

void ProcessGroupMep::take_ranks(const std::vector<int32_t>& ranks) {
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  comms_.ranks = ranks;
  size_ = static_cast<int>(ranks.size());
  gpu_->set_size(size_);
#endif
}

bool ProcessGroupMep::recover(const std::vector<int>& ranks, std::chrono::milliseconds timeout) {
  TORCH_CHECK(collectives_->handle() != nullptr,
              "mep: recover ranks: this rank has not joined the group; call join_group() first");
#ifndef C10D_BACKEND_HAS_RECONFIGURE
  TORCH_CHECK_NOT_IMPLEMENTED(
      std::all_of(ranks.begin(), ranks.end(), [this](int rank) { return rank < size_; }),
      "mep: recover ranks: groups grow with PyTorch 2.14 and newer");
#endif
  (void)admit(ranks, timeout);
  settle(*collectives_, options_->timeout);
  const std::vector<int> there = living();
  if (active_ != nullptr) active_->show(there);
  return std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return contains(there, rank); });
}

void ProcessGroupMep::join() {
  TORCH_CHECK(world_->is_replacement() || world_->is_left_out(),
              "mep: join_group: this rank is in the group; a replacement joins, or a rank that was "
              "left out");
  if (is_world()) {
    world_->join();
    if (world_->comms().ranks.size() != comms_.ranks.size()) take_ranks(world_->comms().ranks);
  } else {
    TORCH_CHECK(world_->comms().collectives->handle() != nullptr,
                "mep: join_group: the default group comes first");
    world_->join_group(comms_, options_->timeout);
  }
  settle(*collectives_, options_->timeout);
  if (active_ != nullptr) active_->show(living());
}

void ProcessGroupMep::deactivate(const std::vector<int>& ranks) {
  std::vector<int> there = living();
  const auto is_there = [&](int rank) { return rank != rank_ && contains(there, rank); };
  const bool is_any =
      std::any_of(ranks.begin(), ranks.end(), [&](int rank) { return contains(there, rank); });
  TORCH_CHECK_NOT_IMPLEMENTED(is_world() || !is_any,
                              "mep: deactivate ranks: a rank that lives leaves all groups at once; "
                              "deactivate it in the default group");
  if (!is_any || collectives_->handle() == nullptr) return;
  const auto limit = std::chrono::steady_clock::now() + options_->timeout;
  while (std::any_of(ranks.begin(), ranks.end(), is_there)) {
    if (std::chrono::steady_clock::now() > limit) check(MEP_ERR_TIMEOUT, "deactivate ranks");
    for (const int rank : ranks) {
      if (is_there(rank)) check(mep_comm_evict(collectives_->handle(), rank), "deactivate ranks");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    there = living();
  }
  if (contains(ranks, rank_)) world_->leave(options_->timeout);
  if (active_ != nullptr) active_->show(living());
}

}  // namespace mep_torch

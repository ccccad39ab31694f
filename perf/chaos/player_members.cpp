// A player's comms and its part in changes of the membership.
#include <time.h>

#include <algorithm>
#include <cinttypes>

#include "ep_player.hpp"
#include "player.hpp"

namespace mep::programs {
namespace {

constexpr uint32_t kLateTimeoutMs = 60;
constexpr uint32_t kLateMs = 180;
constexpr uint32_t kMismatchTimeoutMs = 400;
constexpr uint32_t kRecoverMs = 8000;
constexpr uint32_t kPatientRecoverMs =
    30000;  // where a replacement that does not come is a finding
constexpr uint32_t kSyncAttempts = 16;
constexpr uint32_t kRecoverAttempts = 4;
constexpr uint32_t kGrowAttempts = 2;
constexpr uint32_t kGrowAgainMs = 100;

std::string name_of_comm(uint32_t number) {
  return "c" + std::to_string(number);
}

}  // namespace

bool Player::add_comm(uint32_t number, mep_comm_t handle) {
  Comm comm;
  comm.handle = handle;
  int32_t size = 0;
  int32_t rank = -1;
  int32_t slots[kMaxSlots];
  mep_view_t view;
  mep_view_defaults(&view);
  view.capacity = kMaxSlots;
  view.slots = slots;
  uint64_t incarnations[kMaxSlots] = {};
  view.incarnations = incarnations;
  mep_result_t result = mep_comm_size(handle, &size);
  if (result == MEP_SUCCESS) result = mep_comm_rank(handle, &rank);
  if (result == MEP_SUCCESS) result = mep_comm_view(handle, &view);
  if (result != MEP_SUCCESS || size < 1 || view.size != size || rank < 0 || rank >= size) {
    wrong(What::kInit, 0, number, "size, rank or view of a new comm");
    return false;
  }
  for (int32_t i = 0; i < size; ++i) {
    comm.members.slots.push_back(static_cast<uint32_t>(slots[i]));
    if (incarnations[i] != 0) comm.present[view.epoch] |= uint64_t{1} << i;
  }
  comm.members.rank = static_cast<uint32_t>(rank);
  if (comm.members.slots[comm.members.rank] != part_.slot) {
    wrong(What::kInit, 0, number, "the own slot in a new comm");
    return false;
  }
  if (number != kWorld) (void)mep_comm_set_name(handle, name_of_comm(number).c_str());
  Record& record = next_record(Entry::kMembers, What::kSplit, 0, number);
  record.contributors = comm.members.all_slots();
  push();
  comms_[number] = std::move(comm);
  return true;
}

void Player::agree(const Step& step) {
  const auto found = comms_.find(step.calls[0].comm);
  if (found == comms_.end() || over_) return;
  const Comm& comm = found->second;
  const auto flag_of = [&](uint32_t slot) {
    return mix(program_.seed, 0xa9, slot, step_) | mix(program_.seed, 0xaa, slot, step_);
  };
  uint64_t result = 0;
  begin(What::kAgree, 0, found->first);
  const mep_result_t agreed = mep_comm_agree(comm.handle, flag_of(part_.slot), &result);
  const Said said = ask(comm.handle, agreed);
  end(What::kAgree, 0, found->first, &comm, said, agreed == MEP_SUCCESS ? result : 0);
  if (agreed != MEP_SUCCESS) return;
  uint64_t expected = ~uint64_t{0};
  for (uint32_t rank = 0; rank < comm.members.slots.size(); ++rank) {
    if ((said.contributors >> rank & 1) != 0) expected &= flag_of(comm.members.slots[rank]);
  }
  if (result != expected) wrong(What::kAgree, 0, found->first, "not the AND of the flags");
}

void Player::split(const Step& step) {
  const auto found = comms_.find(step.calls[0].comm);
  if (found == comms_.end() || over_) return;
  const Comm& comm = found->second;
  mep_comm_t child = nullptr;
  const int32_t color = step.colors[part_.slot];
  begin(What::kSplit, 0, found->first);
  const mep_result_t result = mep_comm_split(comm.handle, color, step.keys[part_.slot], &child);
  const Said said = ask(comm.handle, result);
  end(What::kSplit, 0, found->first, &comm, said);
  if (result != MEP_SUCCESS || color < 0) {
    if (child != nullptr) wrong(What::kSplit, 0, found->first, "a child that must not be");
    return;
  }
  if (child == nullptr) return wrong(What::kSplit, 0, found->first, "no child");
  const uint32_t number = step.children[static_cast<size_t>(color)];
  // The order of mep.h: those of one color, by key and then rank.
  std::vector<std::pair<int32_t, uint32_t>> expected;
  for (uint32_t rank = 0; rank < comm.members.slots.size(); ++rank) {
    const uint32_t slot = comm.members.slots[rank];
    if ((said.contributors >> rank & 1) == 0 || step.colors[slot] != color) continue;
    expected.emplace_back(step.keys[slot], rank);
  }
  std::sort(expected.begin(), expected.end());
  std::vector<uint32_t> slots;
  slots.reserve(expected.size());
  for (const auto& [key, rank] : expected) slots.push_back(comm.members.slots[rank]);
  if (!add_comm(number, child)) return;
  if (comms_[number].members.slots != slots) {
    wrong(What::kSplit, 0, number, "the child has other members, or another order");
  }
}

void Player::free_comm(uint32_t number) {
  const auto found = comms_.find(number);
  if (found == comms_.end()) return;
  const auto memory = memory_.find(found->second.handle);
  if (memory != memory_.end()) {
    if (mep_mem_free(found->second.handle, memory->second.first) != MEP_SUCCESS) {
      wrong(What::kFree, 0, number, std::string("mep_mem_free: ") + mep_last_error());
    }
    memory_.erase(memory);
  }
  const What what = number == kWorld ? What::kDestroy : What::kFree;
  begin(what, 0, number);
  Said said;
  said.result = mep_comm_destroy(found->second.handle);
  end(what, 0, number, nullptr, said);
  comms_.erase(found);
}

void Player::leave() {
  close();
  next_record(Entry::kDone, What::kDestroy, 0, 0);
  push();
  over_ = true;
  left_ = true;
}

// After it nothing is done for this rank any more, and nothing waits.
void Player::abort(const Step& step) {
  batch(step, true);
  over_ = true;
}

void Player::revoke(const Step& step) {
  const auto found = comms_.find(step.calls[0].comm);
  if (found == comms_.end()) return;
  if (step.actor == part_.slot) {
    begin(What::kRevoke, 0, found->first);
    Said said;
    said.result = mep_comm_revoke(found->second.handle);
    end(What::kRevoke, 0, found->first, nullptr, said);
  }
  call(step.calls[0], 0);
}

void Player::evict(const Step& step) {
  if (step.actor == part_.slot && comms_.count(world_) != 0) {
    begin(What::kEvict, 0, world_);
    Said said;
    said.result = mep_comm_evict(comms_[world_].handle, static_cast<int32_t>(step.target));
    end(What::kEvict, 0, world_, nullptr, said);
  }
  call(step.calls[0], 0);
}

// There a deadline that passes changes the epoch of operations and not that of the comm, by which successes are judged.
bool Player::posts_to_queues(mep_comm_t comm) const {
  mep_comm_info_t info;
  mep_comm_info_defaults(&info);
  return device_ != nullptr && mep_comm_query(comm, &info) == MEP_SUCCESS && info.num_sms == 0;
}

void Player::be_late(const Step& step) {
  const auto found = comms_.find(step.calls[0].comm);
  if (found == comms_.end() || over_ || posts_to_queues(found->second.handle)) return;
  (void)mep_comm_set_timeout(found->second.handle, kLateTimeoutMs);
  if (step.actor == part_.slot) {
    const timespec late{0, kLateMs * 1'000'000};
    nanosleep(&late, nullptr);
  }
  call(step.calls[0], 0);
  (void)mep_comm_set_timeout(found->second.handle, kNormalTimeoutMs * program_.patience);
}

// Ranks that wait for each other's broadcast learn by the clock alone that they do.
void Player::mismatch(const Step& step) {
  const auto found = comms_.find(step.calls[0].comm);
  if (found == comms_.end() || over_ || posts_to_queues(found->second.handle)) return;
  (void)mep_comm_set_timeout(found->second.handle, kMismatchTimeoutMs * program_.patience);
  call(step.calls[step.actor == part_.slot ? 1 : 0], 0);
  (void)mep_comm_set_timeout(found->second.handle, kNormalTimeoutMs * program_.patience);
}

void Player::recover(const Step& step) {
  const auto found = comms_.find(world_);
  if (found == comms_.end() || over_) return;
  std::vector<int32_t> ranks;
  for (const uint32_t slot : step.slots) ranks.push_back(static_cast<int32_t>(slot));
  const uint32_t limit_ms =
      (program_.stops_in_join() ? kPatientRecoverMs : kRecoverMs) * program_.patience;
  for (uint32_t attempt = 0; attempt < kRecoverAttempts; ++attempt) {
    int32_t admitted = 0;
    note_view(What::kRecover, attempt, world_);
    next_record(Entry::kBegin, What::kRecover, attempt, world_).limit_ms = limit_ms;
    push();
    Said said;
    said.result = mep_recover_ranks(found->second.handle, ranks.data(),
                                    static_cast<int32_t>(ranks.size()), limit_ms, &admitted);
    end(What::kRecover, attempt, world_, nullptr, said, static_cast<uint64_t>(admitted));
    note_view(What::kRecover, attempt, world_);
    if (over_) return;
    if (said.result == MEP_SUCCESS || said.result == MEP_ERR_TIMEOUT) break;
  }
  // Those who came may be gone again when the next call has ended.
  note_present(&found->second);
  uint64_t position = uint64_t{step_} + 1;
  if (!sync(world_, &position)) return;
  if (position != uint64_t{step_} + 1) {
    wrong(What::kSync, 0, world_, "members are at different places");
  }
  attach_all(false);
}

void Player::grow(const Step& step) {
  const auto found = comms_.find(world_);
  if (found == comms_.end() || over_) return;
  mep_comm_t grown = nullptr;
  // Joiners of an attempt that failed have gone again, and nobody else comes.
  for (uint32_t attempt = 0; attempt < kGrowAttempts && grown == nullptr; ++attempt) {
    begin(What::kGrow, attempt, world_);
    Said said;
    said.result =
        mep_comm_grow(found->second.handle, static_cast<int32_t>(step.slots.size()),
                      (attempt == 0 ? kRecoverMs : kGrowAgainMs) * program_.patience, &grown);
    end(What::kGrow, attempt, world_, nullptr, said);
    if (over_) return;
  }
  if (grown == nullptr || !add_comm(step.children[0], grown)) {
    over_ = true;
    return;
  }
  world_ = step.children[0];
  uint64_t position = uint64_t{step_} + 1;
  if (!sync(world_, &position)) return;
  if (position != uint64_t{step_} + 1) {
    wrong(What::kSync, 0, world_, "members are at different places");
  }
  // Objects made before the growth may lack ranks whose deaths it went over.
  if (program_.kills()) ep_->renew_all(step_);
}

// On GPUs calls on streams and those of the host report a change apart, and a joiner has no such call of either.
bool Player::sync_hosts(uint32_t number) {
  for (uint32_t attempt = 0; attempt < kSyncAttempts; ++attempt) {
    mep_comm_t none = nullptr;
    const mep_result_t result = mep_comm_split(comms_[number].handle, -1, 0, &none);
    if (result == MEP_SUCCESS) return true;
    // Another rank may have evicted this one in a later step.
    over_ = is_own_end(result);
    if (over_) return false;
  }
  wrong(What::kSync, 0, number, std::string("a split without colors: ") + mep_last_error());
  over_ = true;
  return false;
}

Player::Said Player::highest_of_all(Comm* comm, uint64_t value, uint64_t* highest) {
  if (device_ == nullptr) {
    return ask(comm->handle,
               mep_allreduce(&value, highest, 1, MEP_UINT64, MEP_MAX, comm->handle, nullptr));
  }
  recycle();
  auto* const there = static_cast<uint64_t*>(device_->take(2 * sizeof value));
  device_->upload(there, &value, sizeof value);
  mep_request_t request = nullptr;
  Said said;
  said.result = mep_iallreduce(there, there + 1, 1, MEP_UINT64, MEP_MAX, comm->handle,
                               device_->stream(), &request);
  if (said.result != MEP_SUCCESS) return said;
  said = wait_for(&request);
  device_->download(highest, there + 1, sizeof value);
  add_contributors(comm, &said);
  (void)mep_comm_async_result(comm->handle);
  return said;
}

// Members may be told of a failure that a joiner never saw: all repeat it until it succeeds.
bool Player::sync(uint32_t number, uint64_t* value, uint64_t* live, bool* retried) {
  Comm& comm = comms_[number];
  for (uint32_t attempt = 0; attempt < kSyncAttempts && !over_; ++attempt) {
    uint64_t highest = 0;
    begin(What::kSync, attempt, number);
    const Said said = highest_of_all(&comm, *value, &highest);
    const mep_result_t result = said.result;
    end(What::kSync, attempt, number, &comm, said, highest);
    if (retried != nullptr && result != MEP_SUCCESS) *retried = true;
    if (result != MEP_SUCCESS) continue;
    *value = highest;
    if (live != nullptr) *live = said.contributors;
    return device_ == nullptr || sync_hosts(number);
  }
  if (!over_) wrong(What::kSync, 0, number, "no success in many attempts");
  over_ = true;
  return false;
}

// Joiners attach to what the program has made before this step; then all of a comm meet on it.
void Player::attach_all(bool is_new) {
  std::vector<bool> alive(program_.comm_count(), false);
  for (uint32_t i = 0; i < step_; ++i) {
    const Step& step = program_.steps[i];
    for (const uint32_t child : step.children) alive[child] = step.kind == StepKind::kSplit;
    if (step.kind == StepKind::kFree) alive[step.calls[0].comm] = false;
  }
  for (uint32_t number = 0; number < alive.size(); ++number) {
    if (!alive[number] || over_) continue;
    if (comms_.count(number) == 0 && is_new) {
      mep_comm_t handle = nullptr;
      begin(What::kAttach, 0, number);
      Said said;
      said.result = mep_comm_attach(comms_[world_].handle, name_of_comm(number).c_str(), &handle);
      end(What::kAttach, 0, number, nullptr, said);
      if (handle != nullptr && !add_comm(number, handle)) return;
    }
    if (comms_.count(number) == 0) continue;
    uint64_t position = step_;
    (void)sync(number, &position);
  }
  ep_->renew_all(step_);
}

}  // namespace mep::programs

#include "core/operation/decision.hpp"

#include <algorithm>

#include "base/rank_list.hpp"
#include "base/status.hpp"

namespace mep {
namespace {

struct Reason {
  mep_result_t result = MEP_SUCCESS;
  std::string text;
  std::string late;
};

const char* removal_text(membership::RemovalReason reason) {
  switch (reason) {
    case membership::RemovalReason::kDied:
      return "its process ended";
    case membership::RemovalReason::kLeft:
      return "it left by mep_comm_destroy";
    case membership::RemovalReason::kGaveUp:
      return "it gave up: no quorum, no memory, or mep_comm_abort";
    case membership::RemovalReason::kUnreachable:
      return "it could not be reached or was silent for too long (MEP_SUSPECT_MS)";
    case membership::RemovalReason::kEvicted:
      return "it was evicted";
    case membership::RemovalReason::kCutOff:
      return "connections to it were closed or reset: its process or host ended, or the network "
             "between dropped them, a firewall say";
    case membership::RemovalReason::kStalled:
      return "it did not answer";
  }
  return "unknown";
}

std::string text_of(const membership::Removal& removal) {
  if (removal.text.empty()) return removal_text(removal.reason);
  return "it called mep_comm_abort_with: " + removal.text;
}

// The ranks of a comm, which have these slots, that are in the set.
std::vector<int32_t> ranks_in(const membership::SlotSet& set, const std::vector<uint32_t>& slots) {
  std::vector<int32_t> ranks;
  for (size_t rank = 0; rank < slots.size(); ++rank) {
    if (set.has(slots[rank])) ranks.push_back(static_cast<int32_t>(rank));
  }
  return ranks;
}

// Where time was over, by channel: whose call an operation lacked. Ranks may have waited in different calls, and what
// is told may be another operation than the one whose time was over.
std::string late_text(const membership::Proposal& committed, uint64_t comm,
                      const std::vector<uint32_t>& slots) {
  std::string text;
  for (const membership::ChannelDecision& decision : committed.channels) {
    if (decision.comm != comm || decision.late.empty()) continue;
    text += (text.empty() ? "" : "; ") + list_ranks(ranks_in(decision.late, slots)) +
            " had not called the " +
            (decision.channel == comm ? "collective" : "dispatch or combine");
  }
  return text.empty() ? "all ranks had called it, and it was not done" : text;
}

// The result of operations beyond N*: the gravest of what happened. MEP_SUCCESS: there is nothing to report.
Reason reason_of(const membership::InstallView& change, const membership::AffectedComm& affected,
                 const std::vector<uint32_t>& slots, const std::string& name) {
  Reason reason;
  for (const membership::Removal& removal : change.decision->removed) {
    const auto it = std::find(slots.begin(), slots.end(), removal.slot);
    if (it == slots.end()) continue;
    const bool left = removal.reason == membership::RemovalReason::kLeft;
    if (reason.result == MEP_SUCCESS || !left) {
      reason.result = left ? MEP_ERR_PEER_LEFT : MEP_ERR_PEER_FAILED;
    }
    reason.text += (reason.text.empty() ? "" : "; ") +
                   ("rank " + std::to_string(it - slots.begin())) + " of comm " + name +
                   (left ? " left: " : " failed: ") + text_of(removal);
  }
  if (reason.result != MEP_SUCCESS) return reason;
  if ((affected.why & membership::kAffectedByRevoke) != 0) {
    return {MEP_ERR_REVOKED, "comm " + name + " was revoked", {}};
  }
  if ((affected.why & membership::kAffectedByDeadline) != 0) {
    std::string late = late_text(*change.decision, affected.comm, slots);
    return {
        MEP_ERR_TIMEOUT,
        "an operation of comm " + name + " ran out of time (" + TimeLimit{}.set_by + "): " + late,
        late};
  }
  return reason;  // only additions
}

}  // namespace

std::shared_ptr<const CommChange> make_comm_change(const CommView& before,
                                                   const membership::InstallView& change,
                                                   const membership::AffectedComm& affected,
                                                   const std::vector<uint32_t>& slots,
                                                   const std::string& name, bool admits) {
  auto made = std::make_shared<CommChange>();
  made->epoch = before.epoch;
  Reason reason = reason_of(change, affected, slots, name);
  made->joined = change.joined;
  made->is_reported = reason.result != MEP_SUCCESS && !change.joined;
  if (reason.result != MEP_SUCCESS) made->result = reason.result;
  made->text = std::move(reason.text);
  made->late = std::move(reason.late);
  made->view = before.after(change, affected.new_epoch, slots, admits);
  made->missing.assign(before.live_bits.size(), 0);
  if (reason.result == MEP_ERR_TIMEOUT) {
    for (const membership::ChannelDecision& decision : change.decision->channels) {
      if (decision.comm != affected.comm) continue;
      for (const int32_t rank : ranks_in(decision.late, slots)) {
        add_rank(&made->missing, static_cast<uint32_t>(rank));
      }
    }
  }
  for (const uint32_t rank : before.live) {
    if (made->view->incarnations[rank] != before.incarnations[rank]) add_rank(&made->missing, rank);
  }
  return made;
}

std::shared_ptr<const CommChange> both_changes(const CommChange& first, const CommChange& second) {
  auto both = std::make_shared<CommChange>(second);
  if (first.result == MEP_ERR_PEER_FAILED) both->result = first.result;
  both->text = first.text + "; " + second.text;
  for (size_t i = 0; i < both->missing.size(); ++i) both->missing[i] |= first.missing[i];
  return both;
}

void tell_change(const CommChange& change, const CommIdentity& comm, const char* call, uint64_t seq,
                 const TimeLimit& limit) {
  if (change.result != MEP_ERR_TIMEOUT || change.late.empty() || seq == 0) {
    return set_last_error_text(change.text.c_str());
  }
  const auto number = static_cast<unsigned long long>(seq);
  const std::string& name = comm.name();
  if (has_rank(change.missing, comm.rank())) {
    (void)fail(MEP_ERR_TIMEOUT,
               "%s (operation %llu of comm %s): this rank is late, the time of others was over "
               "(%s): %s",
               call, number, name.c_str(), limit.set_by, change.late.c_str());
    return;
  }
  (void)fail(MEP_ERR_TIMEOUT, "%s (operation %llu of comm %s) ran out of time, %u ms (%s): %s",
             call, number, name.c_str(), limit.ms, limit.set_by, change.late.c_str());
}

}  // namespace mep

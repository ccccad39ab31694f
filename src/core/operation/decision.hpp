// The effects of a view change: for a comm, and for the numbered operations of one of its channels.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/operation/comm_identity.hpp"
#include "core/operation/comm_view.hpp"
#include "mep.h"

namespace mep {

// A comm's part of a view change, the same for all its channels.
struct CommChange {
  uint64_t epoch = 0;                         // that it ended
  mep_result_t result = MEP_ERR_PEER_FAILED;  // of operations that it ended
  bool is_reported = false;                   // also by calls that are made later
  bool joined = false;                        // this rank came by it and has called nothing yet
  std::string text;
  std::string late;  // where time was over: whose call was missing, without what lacked it
  RankBits missing;  // ranks that it took away; where time was over, those that had not called
  std::shared_ptr<const CommView> view;  // that follows
};

// `name`: the comm's, for texts. `slots`: of its ranks. `admits`: see WorldParticipant::install().
std::shared_ptr<const CommChange> make_comm_change(const CommView& before,
                                                   const membership::InstallView& change,
                                                   const membership::AffectedComm& affected,
                                                   const std::vector<uint32_t>& slots,
                                                   const std::string& name, bool admits);

// Two changes, one after the other, as one that a single call reports.
std::shared_ptr<const CommChange> both_changes(const CommChange& first, const CommChange& second);

// How long an operation may take, and where that is set, for its error's text.
struct TimeLimit {
  uint32_t ms = 0;
  const char* set_by = "MEP_TIMEOUT_MS, mep_comm_set_timeout";
};

// Makes the error text of an operation that `change` ended: `call` with the number `seq`, 0 if it has none. Needs no
// memory.
void tell_change(const CommChange& change, const CommIdentity& comm, const char* call, uint64_t seq,
                 const TimeLimit& limit);

// A channel's part, the same on all survivors: operations up to last_completed succeed, those from there up to `next`
// end by the change's result, also if their rank makes them only later, and `next` is the first of the
// new epoch. So the k-th call on a channel of replicated operations ends alike everywhere.
struct Decision {
  std::shared_ptr<const CommChange> change;
  uint64_t last_completed = 0;
  uint64_t next = 1;
  uint64_t called = 0;  // the last that a rank had called when the channel was frozen

  // A call that has no number yet is decided where it will get this one.
  bool decides(uint64_t seq) const {
    return seq <= last_completed || (change->is_reported && seq < next);
  }
};

}  // namespace mep

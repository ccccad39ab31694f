// Phases that several collectives share.
#pragma once

#include "base/status.hpp"
#include "base/test_delay.hpp"
#include "core/coll/collectives.hpp"

namespace mep {

inline Step fail_step(Operation& operation, mep_result_t result) {
  operation.result = result;
  return Step::kFailed;
}

inline Step enter_flat(Collectives& comm, Operation& operation, const void* payload, size_t bytes,
                       uint32_t flags) {
  if (!comm.eager().has_credit(operation.seq)) return Step::kPending;
  if ((flags & EagerRing::kRooted) != 0 && !comm.eager().has_long_credit(operation)) {
    return Step::kPending;
  }
  const mep_result_t posted = comm.eager().post_to_all(operation, payload, bytes, flags);
  return posted == MEP_SUCCESS ? Step::kDone : fail_step(operation, posted);
}

// The same where contributions go through host leaders: a leader forwards acknowledgements first, so that the
// others learn that they have credit.
inline Step enter_spread(Collectives& comm, Operation& operation, const void* payload, size_t bytes,
                         uint32_t flags) {
  const PostingScope posting = comm.posting();
  if (!posting.allowed()) return Step::kPending;
  if (comm.eager().acts_as_leader()) {
    const mep_result_t relayed = comm.eager().relay_acknowledgements();
    if (relayed != MEP_SUCCESS) return fail_step(operation, relayed);
  }
  return enter_flat(comm, operation, payload, bytes, flags);
}

// Posts this rank's small contribution as soon as it has credit. kDone: posted.
inline Step enter_small(Collectives& comm, Operation& operation, const void* payload, size_t bytes,
                        uint32_t flags = 0) {
  if (comm.eager().through_leaders()) [[unlikely]] {
    return enter_spread(comm, operation, payload, bytes, flags);
  }
  if (flags != EagerRing::kLong) [[likely]]
    return enter_flat(comm, operation, payload, bytes, flags);
  // The control thread copies areas when a view changes, those of operations that all have passed too: not while this
  // thread writes to them.
  const PostingScope posting = comm.posting();
  return posting.allowed() ? enter_flat(comm, operation, payload, bytes, flags) : Step::kPending;
}

// The root's contribution to a small operation in which only it gives.
inline Step enter_as_root(Collectives& comm, Operation& operation) {
  return enter_small(comm, operation, operation.args.send, operation.given_bytes,
                     operation.is_long ? EagerRing::kLong : EagerRing::kRooted);
}

// Sends and takes host batches. kDone: all of them, for this operation.
inline Step relay_step(Collectives& comm, Operation& operation) {
  const PostingScope posting = comm.posting();
  if (!posting.allowed()) return Step::kPending;
  const mep_result_t relayed = comm.eager().relay(operation);
  if (relayed != MEP_SUCCESS) return fail_step(operation, relayed);
  return comm.eager().relayed(operation.seq) ? Step::kDone : Step::kPending;
}

// A root's contribution has come to this host leader: the ranks of its host get it before this rank ends the
// operation.
inline Step forward_step(Collectives& comm, Operation& operation, uint32_t root) {
  const PostingScope posting = comm.posting();
  if (!posting.allowed()) return Step::kPending;
  const mep_result_t forwarded = comm.eager().forward(operation.seq, root, operation.given_bytes);
  return forwarded == MEP_SUCCESS ? Step::kDone : fail_step(operation, forwarded);
}

// The end of an operation in which not all others waited for this rank, or this rank did not wait for all.
inline Step acknowledge_step(Collectives& comm, Operation& operation, bool is_root = false) {
  mep_result_t noted = MEP_SUCCESS;
  if (is_root) {
    comm.eager().acknowledge_as_root(operation);
  } else {
    noted = comm.eager().acknowledge(operation);
  }
  if (noted == MEP_SUCCESS && comm.eager().acts_as_leader()) [[unlikely]] {
    const PostingScope posting = comm.posting();
    if (posting.allowed()) noted = comm.eager().relay_acknowledgements();
  }
  return noted == MEP_SUCCESS ? Step::kDone : fail_step(operation, noted);
}

// The empty contribution that begins a large operation: its word shows the others what is called here.
inline Step enter_large(Collectives& comm, Operation& operation) {
  return enter_small(comm, operation, nullptr, 0, EagerRing::kEntryOnly);
}

// The others may wait for something of this rank that never comes: they see what it has called instead. Where
// contributions go through leaders this is inside a PostingScope; `posted` follows there.
template <typename Posted>
void show_call(Collectives& comm, const Operation& operation, Posted&& posted) {
  if (!comm.eager().through_leaders()) [[likely]] {
    (void)comm.eager().show_call(operation);
    return;
  }
  const PostingScope posting = comm.posting();
  if (!posting.allowed()) return;  // the view change decides
  (void)comm.eager().show_call(operation);
  if (posting.allowed()) posted();
}

// The operation has failed, but not ended: its text names what both ranks called, if the other tells it in time. This
// rank tells its own call. kFailed: the text is there.
Step begin_mismatch(Collectives& comm, Operation& operation, uint32_t source);
Step tell_mismatch(Collectives& comm, Operation& operation);
// The error of an operation that a view change has decided as another call than this rank's.
mep_result_t settled_mismatch(Collectives& comm, const Operation& operation);

// A leader forwards what others wait for.
inline Step mismatch_step(Collectives& comm, Operation& operation, uint32_t source) {
  show_call(comm, operation, [&] {
    if (comm.eager().acts_as_leader()) (void)comm.eager().relay_rest(operation);
  });
  comm.eager().note_entered(source, operation.seq);
  return begin_mismatch(comm, operation, source);
}

// While the awaited contribution has not come: that of another rank may show that it never will. Looks only now
// and then, so as not to disturb slots while others write to them.
inline Step look_for_mismatch(Collectives& comm, Operation& operation) {
  constexpr uint32_t kLooks = 8;
  uint32_t source = 0;
  if (++operation.looks % kLooks != 0) return Step::kPending;
  // Also in an operation that has no use for what other hosts send: it shows what they have called.
  if (comm.eager().takes_batches() && relay_step(comm, operation) == Step::kFailed) [[unlikely]] {
    return Step::kFailed;
  }
  if (!comm.eager().differs(operation, &source)) return Step::kPending;
  return mismatch_step(comm, operation, source);
}

// A non-root rank that has waited 20 ms and posted nothing publishes its fingerprint, so that a mismatch is found:
// its root may wait in the same way for another root.
inline void show_long_wait(Collectives& comm, Operation& operation) {
  constexpr uint32_t kLooks = 8;
  constexpr uint64_t kLongNs = 20'000'000;
  if (operation.looks % kLooks != 0) return;
  const uint64_t now = now_ns();
  if (operation.waits_since_ns == 0) operation.waits_since_ns = now;
  if (now - operation.waits_since_ns < kLongNs || !comm.eager().has_credit(operation.seq)) return;
  show_call(comm, operation, [] {});
  --operation
        .looks;  // from here on it looks each time: this brings its own call to other hosts, and theirs here
}

// A rank's part of a small operation in which only the root gives. kDone: the root's contribution is here,
// and this rank has forwarded it if it is a leader.
inline Step take_from_root(Collectives& comm, Operation& operation, uint32_t root) {
  bool mismatch = false;
  if (!comm.eager().arrived(operation, root, &mismatch)) {
    show_long_wait(comm, operation);
    return look_for_mismatch(comm, operation);
  }
  if (mismatch) return mismatch_step(comm, operation, root);
  comm.eager().note_entered(root, operation.seq);
  if (comm.eager().acts_as_leader() && !comm.eager().is_on_this_host(root)) [[unlikely]] {
    return forward_step(comm, operation, root);
  }
  return Step::kDone;
}

// Only the root's contribution is retained where only the root gives; here this rank named another root.
inline Step not_root_step(Operation& operation) {
  return fail_step(operation, fail(MEP_ERR_MISMATCH, "rank %d was not the root of this operation",
                                   operation.args.root));
}

// kDone once all contributions have come; operation.cursor remembers how far it looked.
inline Step collect_small(Collectives& comm, Operation& operation) {
  if (comm.eager().takes_batches() && !operation.enters_directly) [[unlikely]] {
    const Step relayed = relay_step(comm, operation);
    if (relayed == Step::kFailed) return relayed;
    if (relayed == Step::kPending) return look_for_mismatch(comm, operation);
  }
  const std::vector<uint32_t>& sources = *operation.contributors;
  for (; operation.cursor < sources.size(); ++operation.cursor) {
    bool mismatch = false;
    const uint32_t source = sources[operation.cursor];
    if (!comm.eager().arrived(operation, source, &mismatch)) {
      return look_for_mismatch(comm, operation);
    }
    if (mismatch) return mismatch_step(comm, operation, source);
  }
  operation.cursor = 0;
  MEP_TEST_DELAY_POINT("eager collect");
  return Step::kDone;
}

// A small operation in which all give to all: gives this rank's contribution, and once all have come take()
// makes the result of them.
template <typename Take>
Step exchange_small(Collectives& comm, Operation& operation, Take&& take) {
  enum Phase : uint32_t { kEnter, kCollect };
  if (operation.phase == kEnter) {
    const Step entered = enter_small(comm, operation, operation.args.send, operation.given_bytes);
    if (entered != Step::kDone) return entered;
    operation.phase = kCollect;
  }
  const Step collected = collect_small(comm, operation);
  if (collected != Step::kDone) return collected;
  take();
  comm.eager().note_all_entered(operation.seq);
  return Step::kDone;
}

// The last act of a large operation: signals "finished", that this rank has all its data, and waits for the same
// of the others. From then on this rank can complete the operation without anybody.
inline Step finish_large(Collectives& comm, Operation& operation, bool* signalled) {
  if (!*signalled) {
    MEP_TEST_DELAY_POINT("large finish");
    operation.holds_result = true;
    const mep_result_t sent = comm.pipeline().signal_finished(operation.seq);
    if (sent != MEP_SUCCESS) return fail_step(operation, sent);
    *signalled = true;
  }
  const mep_result_t relayed = comm.pipeline().signal_finished_to_leaders(operation.seq);
  if (relayed != MEP_SUCCESS) return fail_step(operation, relayed);
  MEP_TEST_DELAY_POINT("finish look");
  if (!comm.pipeline().leaders_signalled(operation.seq) ||
      !comm.pipeline().all_finished(operation.seq, &operation.cursor)) {
    return Step::kPending;
  }
  const mep_result_t host_signalled = comm.pipeline().signal_finished_to_host(operation.seq);
  return host_signalled == MEP_SUCCESS ? Step::kDone : fail_step(operation, host_signalled);
}

enum class LargePhase : uint32_t { kBegin, kEnter, kCollect, kMove, kFinish, kFinishSignalled };

inline bool is_in(const Operation& operation, LargePhase phase) {
  return operation.phase == static_cast<uint32_t>(phase);
}
inline void go_to(Operation& operation, LargePhase phase) {
  operation.phase = static_cast<uint32_t>(phase);
}

// The rest of it, from kMove on.
template <typename Move>
Step move_and_finish(Collectives& comm, Operation& operation, Move&& move) {
  if (is_in(operation, LargePhase::kMove)) {
    const Step moved = move();
    if (moved != Step::kDone) return moved;
    go_to(operation, LargePhase::kFinish);
  }
  bool signalled = is_in(operation, LargePhase::kFinishSignalled);
  const Step finished = finish_large(comm, operation, &signalled);
  if (signalled) go_to(operation, LargePhase::kFinishSignalled);
  if (finished != Step::kDone) return finished;
  comm.eager().note_all_entered(operation.seq);
  return Step::kDone;
}

// An entry goes straight to each rank that gets data, at least: to all, or to a root that is the relay.
inline bool enters_at_receivers(const Collectives& comm, const Operation& operation) {
  const CollectiveType& type = type_of(operation);
  const HostGroups& groups = comm.eager().groups();
  return operation.enters_directly ||
         (type.is_rooted && !type.only_root_gives() && !type.has_counts &&
          groups.all().size() == 1 &&
          groups.own().leader() == static_cast<uint32_t>(operation.args.root));
}

// There what post() can post of the first chunks goes before the entry.
template <typename Post>
Step post_before_entry(Collectives& comm, Operation& operation, Post&& post) {
  if (!enters_at_receivers(comm, operation)) return Step::kDone;
  const PostingScope posting = comm.posting();
  if (!posting.allowed()) return Step::kPending;
  operation.chunk_entered = Pipeline::kRing;
  const mep_result_t posted = post();
  return posted == MEP_SUCCESS ? Step::kDone : fail_step(operation, posted);
}

// A large operation between more than one rank: begin() until it is done, enter() posts contributions without data,
// move() until all data is here, "finished".
template <typename Begin, typename Enter, typename Move>
Step step_large_phases(Collectives& comm, Operation& operation, Begin&& begin, Enter&& enter,
                       Move&& move) {
  if (is_in(operation, LargePhase::kBegin)) {
    const Step begun = begin();
    if (begun != Step::kDone) return begun;
    go_to(operation, LargePhase::kEnter);
  }
  if (is_in(operation, LargePhase::kEnter)) {
    const Step entered = enter();
    if (entered != Step::kDone) return entered;
    go_to(operation, LargePhase::kCollect);
  }
  if (is_in(operation, LargePhase::kCollect)) {
    const Step collected = collect_small(comm, operation);
    if (collected != Step::kDone) return collected;
    go_to(operation, LargePhase::kMove);
  }
  return move_and_finish(comm, operation, move);
}

template <typename Begin, typename Move>
Step step_large_phases(Collectives& comm, Operation& operation, Begin&& begin, Move&& move) {
  return step_large_phases(
      comm, operation, begin, [&] { return enter_large(comm, operation); }, move);
}

// A large operation is decided only when all have its result, so there is nothing left to do.
inline Step settle_large(Operation& operation) {
  if (operation.holds_result) return Step::kDone;
  return fail_step(operation, fail(MEP_ERR_INTERNAL, "%s was decided without its data",
                                   type_of(operation).name));
}

}  // namespace mep

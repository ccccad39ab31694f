// The collectives of a comm: one channel of replicated operations, with the memory that they are done in and
// the contributions that outlive it.
//
// The user's thread owns the eager ring and the pipeline; when the progress thread looks, it takes
// the place of the user's thread (see CallGate). The control thread looks at it under the channel's lock. Only
// between freeze and install, when the user's thread touches no window, does the control thread take
// contributions out of the eager slots and zero words.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "core/coll/call_board.hpp"
#include "core/coll/eager_ring.hpp"
#include "core/coll/landings.hpp"
#include "core/coll/open_memory.hpp"
#include "core/coll/operation.hpp"
#include "core/coll/pipeline.hpp"
#include "core/operation/operation_engine.hpp"
#include "core/operation/operation_record.hpp"
#include "core/operation/peer_windows.hpp"
#include "core/operation/reports.hpp"
#include "core/operation/side_progress.hpp"
#include "core/world/progress_thread.hpp"
#include "mep.h"

namespace mep {

class Collectives : public SideProgress {
 public:
  // `personal_reports`: changes that an operation here reports are dropped from them.
  Collectives(const CommIdentity& comm, Reports& personal_reports);
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;
  static size_t window_bytes(uint32_t size) {
    return board_offset(size) + CallBoard::window_bytes(size);
  }

  // --- Making it ---
  // Without its peers' windows it takes part in view changes.
  void begin(std::shared_ptr<const CommView> view, uint64_t next_seq) {
    engine_.start(std::move(view), next_seq);
  }
  PeerWindows& windows() { return windows_; }
  const PeerWindows& windows() const { return windows_; }
  // All windows are there. `reached`: without members that are gone; null: all are there. An error if the view
  // has changed.
  [[nodiscard]] mep_result_t open(std::shared_ptr<const CommView> reached);

  // --- The user's thread ---
  // The function that operations from here on belong to.
  void set_purpose(CallPurpose purpose) { purpose_ = purpose; }
  // Runs one operation to its end.
  [[nodiscard]] mep_result_t run(Collective kind, const CollectiveArgs& args);
  // Checks and queues; `operation` must live until it is finished or failed.
  [[nodiscard]] mep_result_t start(Collective kind, const CollectiveArgs& args,
                                   Operation* operation);
  // The largest of what the ranks give: one operation of this channel, no call of the user's.
  [[nodiscard]] mep_result_t agree_largest(uint64_t own, uint64_t* largest);
  // Steps queued operations; true once `operation` has its final result.
  bool test(Operation* operation);
  [[nodiscard]] bool wait(Operation* operation, const Deadline& deadline) {
    if (!has_beside()) [[likely]]
      return engine_.wait(deadline, [&] { return test(operation); });
    return engine_.wait(deadline, [&] { return look(operation); });
  }
  // A step of this operation and of whatever else of this rank is pending.
  bool look(Operation* operation) {
    if (side_progress_ != nullptr && side_progress_->is_pending())
      side_progress_->step_from_other();
    if (world().pending_comms().any()) world().pending_comms().step();
    return test(operation);
  }
  // The operation's time is over: asks for a decision that all ranks share, once. The operation ends by
  // it, in wait() or test().
  void ask_decision(const Operation& operation) {
    engine_.ask_decision(operation.epoch, operation.seq);
  }
  // Asks for the decision and waits for it.
  mep_result_t end_of_wait(Operation* operation);
  bool idle() const { return engine_.idle(); }
  // A call steps `other` while it waits for a collective.
  void set_side_progress(SideProgress* other) { side_progress_ = other; }
  bool is_pending() const override { return !idle(); }
  void step_from_other() override { engine_.step_all(); }
  // The progress thread, with nobody else inside: one look at all that is queued.
  Progress progress();

  // Fills info from the record; MEP_ERR_CAPACITY if a bitmap is too short.
  [[nodiscard]] mep_result_t last_op(mep_op_info_t* info) const;
  // The record of the last finished operation; `any` is false before there was one.
  const OperationRecord& record() const { return record_; }
  [[nodiscard]] mep_result_t describe(const Operation& operation, mep_op_info_t* info) const;

  // The change that ended an operation last. A caller that goes on all the same defers its report: the next call
  // gives it, with what was deferred before; returned is all that.
  Reports::Report last_report() const { return last_report_; }
  Reports::Report defer_report(Reports::Report report);

  // --- For step functions (the user's thread) ---
  const CommIdentity& comm() const { return engine_.comm(); }
  World& world() const { return comm().world(); }
  uint32_t rank() const { return comm().rank(); }
  uint32_t size() const { return comm().size(); }
  EagerRing& eager() { return eager_; }
  const EagerRing& eager() const { return eager_; }
  Pipeline& pipeline() { return pipeline_; }
  const Pipeline& pipeline() const { return pipeline_; }
  OpenMemory& open_memory() { return buffers_.memory; }
  const OpenMemory& open_memory() const { return buffers_.memory; }
  Landings& landings() { return buffers_.landings; }
  const Landings& landings() const { return buffers_.landings; }
  CallBoard& board() { return board_; }
  const CommView& adopted() const { return engine_.adopted(); }
  PostingScope posting() { return engine_.posting(); }
  // Bytes that `source` contributed: in its eager slot, or retained.
  const std::byte* contribution(const Operation& operation, uint32_t source) const;
  std::vector<const void*>& scratch_pointers() { return scratch_pointers_; }

  // --- Any thread ---
  uint64_t id() const { return engine_.id(); }
  const OperationChannel& channel() const { return engine_; }
  OperationChannel& channel() { return engine_; }

  // --- The control thread ---
  membership::ChannelState state() const { return {comm().id(), engine_.id(), engine_.done(), 0}; }
  // See WorldParticipant.
  void stop();
  bool is_still() const { return engine_.is_still(); }
  // Returns as `done` the last operation that is completed, or completable from what is here.
  membership::ChannelState freeze();
  // Nobody posts anything more: the world has ended.
  void terminate();
  bool holds(uint64_t seq);
  void give_catch_up(uint64_t from_seq, uint64_t to_seq, const CatchUpSink& sink);
  void take_catch_up(uint64_t seq, uint32_t source, std::span<const std::byte> bytes);
  void prepare();
  void install(const std::shared_ptr<const CommChange>& change,
               const membership::Proposal& committed);
  // The epoch goes on.
  void resume();

 private:
  using Engine = OperationEngine<Collectives, Operation>;
  friend Engine;
  static constexpr OperationClass kClass = OperationClass::kReplicated;

  // For the engine.
  void note_number(Operation& operation);
  static void begin_again(Operation& operation);
  void record(Operation& operation) const;
  bool step(Operation& operation);
  void settle(Operation& operation, const Decision& decision);
  void end(Operation& operation, mep_result_t result);
  mep_result_t adopt(const Decision& decision);

  static size_t board_offset(uint32_t size) {
    constexpr size_t kLine = CallBoard::kAlignment;
    return (EagerRing::window_bytes(size) + Pipeline::window_bytes(size) + kLine - 1) / kLine *
           kLine;
  }
  bool has_beside() const {
    return (side_progress_ != nullptr && side_progress_->is_pending()) ||
           world().pending_comms().any();
  }
  void restart(const CommView& view, uint64_t next);
  void succeed_settled(Operation& operation);
  mep_result_t settle_result(Operation& operation);
  void fail_settled(Operation& operation, Reports::Report change);
  void tell_end(const Operation& operation) const;
  mep_result_t check_root_lives(const Operation& operation) const;
  void note_rootless(uint64_t seq);
  bool finish(Operation& operation, mep_result_t result);
  void begin_request(RequestState& request);
  void end_request(const Operation& operation);
  uint64_t ask_overdue();
  void note_record(const Operation& operation);
  void note_missing(const Operation& operation);
  void end_record(const Operation& operation) const;
  bool is_completable(uint64_t epoch, uint64_t seq, RetainedOperation* retained) const;
  void gather_completable(uint64_t done);
  void retain_for_others();

  Reports& personal_reports_;
  PeerWindows windows_;
  SideProgress* side_progress_ = nullptr;

  // The user's thread.
  EagerRing eager_;
  Pipeline pipeline_;
  // The caller's buffers, as others may use them until the operation ends.
  struct Buffers {
    OpenMemory memory;
    Landings landings;
    void close() {
      memory.close();
      landings.close();
    }
  } buffers_;
  CallBoard board_;
  CallPurpose purpose_ = CallPurpose::kCall;  // of the call that is under way
  uint32_t rooted_fingerprint_ =
      0;  // hash of the small rooted calls since the last that waited for all
  Reports::Report last_report_;
  Reports::Report deferred_;  // see defer_report()
  OperationRecord record_;
  std::vector<const void*> scratch_pointers_;
  // No request that is queued becomes overdue before; see ask_overdue().
  uint64_t next_deadline_ns_ = Progress::kNoDeadline;
  Engine engine_;

  // Shared, under the channel's lock.
  // By seq: what operations that have not ended here will need.
  std::map<uint64_t, RetainedOperation> retained_pending_;
  uint64_t completable_ = 0;  // while frozen: this rank can complete all operations up to here
  // The last operations in a row that had no root any more: they have no contributions. None: last is below
  // first.
  uint64_t rootless_first_ = 1;
  uint64_t rootless_last_ = 0;
  // While frozen: of operations that are completed here, what other ranks may lack. Copied before the words of
  // the slots are zeroed.
  std::map<uint64_t, RetainedOperation> retained_completed_;
};

}  // namespace mep

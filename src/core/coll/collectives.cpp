// The side of the user's thread: calls of a comm's collectives, and how each ends. The control thread's side is in
// collectives_change.cpp.
#include "core/coll/collectives.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status.hpp"
#include "base/test_delay.hpp"
#include "core/coll/pair_blocks.hpp"
#include "core/coll/steps.hpp"

namespace mep {
namespace {

void restore_input(Operation& operation) {
  if (operation.saved_input.empty()) return;
  std::memcpy(operation.args.receive, operation.saved_input.data(), operation.saved_input.size());
  operation.input_intact = true;
}

}  // namespace

Collectives::Collectives(const CommIdentity& comm, Reports& personal_reports)
    : personal_reports_(personal_reports), windows_(comm), engine_(*this, comm, comm.id()) {
  record_.reserve(size());
  scratch_pointers_.reserve(size());
}

mep_result_t Collectives::open(std::shared_ptr<const CommView> reached) {
  // The control thread reads the eager ring too, under this lock.
  const std::lock_guard lock(engine_.mutex());
  if (!engine_.is_adopted()) {
    return fail(MEP_ERR_PEER_FAILED, "the membership changed while comm %s was made",
                comm().name().c_str());
  }
  if (reached != nullptr) engine_.correct_view(std::move(reached));
  eager_.open(rank(), &windows_.remotes());
  pipeline_.open(rank(), EagerRing::window_bytes(size()), &windows_.remotes());
  board_.open(rank(), board_offset(size()), &windows_.remotes());
  buffers_.landings.open(&windows_.remotes());
  restart(adopted(), engine_.last_number() + 1);
  // Last, when nothing can fail any more: from here on the control thread finds contributions in the two.
  eager_.use_window(windows_.data());
  pipeline_.use_window(windows_.data());
  return MEP_SUCCESS;
}

void Collectives::restart(const CommView& view, uint64_t next) {
  rootless_first_ = next;
  rootless_last_ = next - 1;
  eager_.restart(view.epoch, next, view.live);
  pipeline_.restart(view.epoch, view.live, eager_.groups(), eager_.through_leaders());
}

// --- Calls ----------------------------------------------------------------------------------------

mep_result_t Collectives::run(Collective kind, const CollectiveArgs& args) {
  Operation operation;
  MEP_TRY(start(kind, args, &operation));
  const Deadline deadline = Deadline::after_first_look_ms(comm().timeout_ms());
  if (!wait(&operation, deadline)) return end_of_wait(&operation);
  return operation.result;
}

mep_result_t Collectives::agree_largest(uint64_t own, uint64_t* largest) {
  Operation operation;
  operation.is_internal = true;
  MEP_TRY(start(Collective::k_allreduce, {&own, largest, 1, MEP_UINT64, MEP_MAX, 0}, &operation));
  if (!wait(&operation, Deadline::after_ms(comm().timeout_ms()))) return end_of_wait(&operation);
  return operation.result;
}

// Everything that can refuse the call comes before the operation has its number: from then on view changes count it.
mep_result_t Collectives::start(Collective kind, const CollectiveArgs& args, Operation* operation) {
  const CollectiveType& type = collective_type(kind);
  MEP_TRY(type.check(*this, args));
  operation->kind = kind;
  operation->args = args;
  operation->args.purpose = purpose_;
  operation->bytes = args.count * mep_dtype_size(args.dtype);
  operation->given_bytes = operation->bytes * type.send_blocks(size());
  if (type.prepare != nullptr) MEP_TRY(type.prepare(*this, *operation));
  if (operation->request != nullptr) begin_request(*operation->request);
  // An earlier call has passed over this change (defer_report()); this call reports it and fails.
  if (deferred_ != nullptr) [[unlikely]] {
    operation->epoch = deferred_->epoch;
    record(*operation);
    fail_settled(*operation, std::exchange(deferred_, nullptr));
    return MEP_SUCCESS;
  }
  return engine_.begin(operation);
}

bool Collectives::test(Operation* operation) {
  if (!engine_.test(operation)) return false;
  if (operation->change != nullptr && is_error(operation->result)) {
    tell_end(*operation);
  }
  return true;
}

mep_result_t Collectives::end_of_wait(Operation* operation) {
  if (engine_.wait_for_decision(operation)) {
    (void)test(operation);
    return operation->result;
  }
  buffers_.close();
  return engine_.fail_without_decision(operation->seq);
}

// --- For the engine -------------------------------------------------------------------------------

// The root of a small broadcast or scatter waits for nobody, so it cannot see that others called something else. The
// fingerprint of the next operation in which ranks wait for each other includes those calls, so a mismatch shows there.
void Collectives::note_number(Operation& operation) {
  MEP_TEST_DELAY_POINT("enter");
  if (comm().flight().is_on()) [[unlikely]]
    record(operation);
  operation.contributors = &adopted().live;
  const CollectiveType& type = type_of(operation);
  const bool only_root = type.only_root_gives();
  const bool may_end = may_end_at_root(*this, operation);
  const uint32_t exchanges = operation.kind == Collective::k_allreduce ? 2 : 1;
  const size_t most = may_end     ? eager_.bytes_before_ends(only_root)
                      : only_root ? eager_.rooted_bytes()
                                  : eager_.bytes_before_blocks(exchanges);
  operation.is_small = operation.given_bytes <= most;
  operation.is_long = operation.is_small && operation.given_bytes > eager_.payload_bytes();
  operation.ends_at_root = may_end && !operation.is_small;
  operation.enters_directly = operation.ends_at_root
                                  ? static_cast<uint32_t>(operation.args.root) == rank()
                                  : !operation.is_small && !type.has_counts &&
                                        eager_.may_enter_directly(/*is_rooted=*/type.is_rooted);
  if (only_root && operation.is_small) {
    operation.fingerprint = operation.is_long
                                ? fingerprint_of(operation.kind, operation.args)
                                : fingerprint_from_root(operation.kind, operation.args);
    rooted_fingerprint_ = (rooted_fingerprint_ ^ operation.fingerprint) * 0x9e3779b1u + 1;
    board_.note(operation);
    return;
  }
  const uint32_t own = fingerprint_of(operation.kind, operation.args);
  operation.fingerprint = (own ^ (rooted_fingerprint_ >> 8)) & kFingerprintMask;
  rooted_fingerprint_ = 0;
}

// An operation that begins anew in a later epoch keeps its record.
void Collectives::record(Operation& operation) const {
  const FlightLog& log = comm().flight();
  if (log.again(operation.flight, operation.epoch, operation.seq)) return;
  const CollectiveType& type = type_of(operation);
  const bool is_own = operation.is_internal || operation.args.purpose != CallPurpose::kCall;
  operation.flight = log.begin({.channel = engine_.id(),
                                .epoch = operation.epoch,
                                .number = operation.seq,
                                .bytes = operation.given_bytes,
                                .kind = flight::kind_of(operation.kind),
                                .dtype = operation.args.dtype,
                                .flags = is_own ? flight::kOwn : uint8_t{0},
                                .peer = type.is_rooted ? operation.args.root : -1});
}

void Collectives::begin_again(Operation& operation) {
  static_cast<StepState&>(operation) = {};
}

// An operation whose root is not in the view fails at once: each rank knows the view, so none waits for the root.
mep_result_t Collectives::check_root_lives(const Operation& operation) const {
  const CollectiveType& type = type_of(operation);
  const auto root = static_cast<uint32_t>(operation.args.root);
  if (!type.is_rooted || adopted().is_live(root)) [[likely]]
    return MEP_SUCCESS;
  return fail(has_rank(adopted().left_bits, root) ? MEP_ERR_PEER_LEFT : MEP_ERR_PEER_FAILED,
              "rank %u, the root of this %s, is not in the view", root, type.name);
}

bool Collectives::step(Operation& operation) {
  operation.result = check_root_lives(operation);
  const bool has_root = operation.result == MEP_SUCCESS;
  const Step step = !has_root                         ? Step::kFailed
                    : operation.differs_until_ns != 0 ? tell_mismatch(*this, operation)
                                                      : type_of(operation).step(*this, operation);
  if (step == Step::kPending) return false;
  // No signal of a failed operation tells the others that this rank has passed the earlier ones, so it acknowledges.
  if (step == Step::kFailed) [[unlikely]] {
    const KeepErrorText kept;
    const mep_result_t failed = operation.result;
    if (!has_root) note_rootless(operation.seq);
    (void)acknowledge_step(*this, operation);
    operation.result = failed;
  }
  MEP_TEST_DELAY_POINT("complete");
  if (!engine_.complete(operation.epoch, operation.seq)) return false;  // the view decides
  return finish(operation, step == Step::kDone ? MEP_SUCCESS : operation.result);
}

void Collectives::note_rootless(uint64_t seq) {
  const std::lock_guard lock(engine_.mutex());
  if (seq > rootless_last_ + 1) rootless_first_ = seq;
  rootless_last_ = seq;
}

bool Collectives::finish(Operation& operation, mep_result_t result) {
  // The caller gets the buffers back.
  buffers_.close();
  if (operation.unwritable && result == MEP_SUCCESS) {
    result = fail(MEP_ERR_INVALID_ARGUMENT, "the receive buffer of this %s cannot be written",
                  type_of(operation).name);
  }
  operation.result = result;
  operation.finished = true;
  if (is_error(result)) {
    // Queued puts of a failed operation may still read the caller's memory, which the caller gets back now.
    const KeepErrorText kept;
    windows_.flush_puts();
  }
  if (!operation.is_internal) note_record(operation);
  if (operation.flight != 0) [[unlikely]]
    end_record(operation);
  if (operation.request != nullptr) end_request(operation);
  return true;
}

void Collectives::settle(Operation& operation, const Decision& decision) {
  if (operation.seq <= decision.last_completed) return succeed_settled(operation);
  operation.is_report = operation.seq > decision.called;
  fail_settled(operation, decision.change);
}

void Collectives::end(Operation& operation, mep_result_t result) {
  restore_input(operation);
  finish(operation, result);
}

void Collectives::succeed_settled(Operation& operation) {
  {
    const std::lock_guard lock(engine_.mutex());
    const auto found = retained_pending_.find(operation.seq);
    if (found != retained_pending_.end()) {
      operation.retained = &found->second;
      operation.contributors = &found->second.sources;
    }
  }
  const mep_result_t result = settle_result(operation);
  // Only the root's contribution is retained where only the root gives or its word ends the operation, but every rank's
  // record names all live ranks as contributors.
  if (type_of(operation).only_root_gives() || operation.ends_at_root) {
    operation.contributors = &adopted().live;
  }
  finish(operation, result);
  const std::lock_guard lock(engine_.mutex());
  retained_pending_.erase(operation.seq);
  operation.retained = nullptr;
  operation.contributors = nullptr;
}

// The view change decided that the operation succeeds. This rank makes the result from the contributions that it has
// retained; a catch-up may have brought some of them.
mep_result_t Collectives::settle_result(Operation& operation) {
  if (operation.holds_result) return MEP_SUCCESS;
  MEP_TRY(check_root_lives(operation));
  // A rank whose call differed has failed by itself and gives no contributions. So nothing retained is a mismatch too.
  if (operation.retained == nullptr ||
      !EagerRing::same_call(*operation.retained, operation.fingerprint)) {
    return settled_mismatch(*this, operation);
  }
  const Step step = type_of(operation).settle(*this, operation);
  return step == Step::kDone ? MEP_SUCCESS : operation.result;
}

void Collectives::tell_end(const Operation& operation) const {
  const char* const call = operation.is_internal ? "the agreement of MEP_EP_LOSS_UNIFORM"
                                                 : name_of_call(operation.kind, operation.args);
  tell_change(*operation.change, comm(), call, operation.seq, {comm().timeout_ms()});
}

void Collectives::fail_settled(Operation& operation, Reports::Report change) {
  restore_input(operation);
  const mep_result_t result = change->result;
  last_report_ = change;
  personal_reports_.drop_up_to(change->epoch);
  operation.change = std::move(change);
  tell_end(operation);
  finish(operation, result);
}

mep_result_t Collectives::adopt(const Decision& decision) {
  const CommView& view = *decision.change->view;
  MEP_TRY(windows_.reach_joiners(view, Deadline::after_ms(comm().timeout_ms())));
  MEP_TEST_DELAY_POINT("adopt");
  engine_.adopt(decision, [&] {
    restart(view, decision.next);
    rooted_fingerprint_ = 0;
    retained_pending_.erase(retained_pending_.begin(),
                            retained_pending_.lower_bound(decision.next));
  });
  return MEP_SUCCESS;
}

Reports::Report Collectives::defer_report(Reports::Report report) {
  if (deferred_ != nullptr) report = both_changes(*deferred_, *report);
  deferred_ = std::move(report);
  return deferred_;
}

const std::byte* Collectives::contribution(const Operation& operation, uint32_t source) const {
  if (operation.retained == nullptr) {
    return operation.is_long ? eager_.long_payload(operation.seq, source)
                             : eager_.payload(operation.seq, source);
  }
  const auto& sources = operation.retained->sources;
  const auto it = std::find(sources.begin(), sources.end(), source);
  if (it == sources.end()) return nullptr;
  return operation.retained->contributions[static_cast<size_t>(it - sources.begin())].data() +
         sizeof(uint64_t);
}

// --- Records --------------------------------------------------------------------------------------

void Collectives::note_record(const Operation& operation) {
  record_.any = true;
  record_.epoch = operation.epoch;
  record_.seq = operation.seq;
  record_.result = operation.result;
  record_.input_intact = operation.input_intact;
  record_.is_report = operation.is_report;
  if (operation.result == MEP_SUCCESS && operation.contributors == &adopted().live) {
    if (record_.contributors != adopted().live_bits) record_.contributors = adopted().live_bits;
    record_.failed.clear();
    return;
  }
  record_.contributors.assign(rank_words(size()), 0);
  record_.failed.clear();
  if (operation.result >= 0 && operation.contributors != nullptr) {
    for (const uint32_t rank : *operation.contributors) add_rank(&record_.contributors, rank);
    return;
  }
  note_missing(operation);
}

// The record's failed ranks: those that the change took away, or a root that was not in the view.
void Collectives::note_missing(const Operation& operation) {
  record_.failed.assign(rank_words(size()), 0);
  const auto root = static_cast<uint32_t>(operation.args.root);
  if (operation.change != nullptr) {
    record_.failed = operation.change->missing;
  } else if (type_of(operation).is_rooted && !adopted().is_live(root)) {
    add_rank(&record_.failed, root);
  }
}

void Collectives::end_record(const Operation& operation) const {
  const bool has_missing = operation.change != nullptr && is_error(operation.result);
  comm().flight().end(operation.flight, operation.result,
                      has_missing ? &operation.change->missing : nullptr);
}

mep_result_t Collectives::last_op(mep_op_info_t* info) const {
  if (!record_.any) {
    return fail(MEP_ERR_NOT_FOUND, "comm %s has finished no operation yet", comm().name().c_str());
  }
  return record_.fill(size(), info);
}

mep_result_t Collectives::describe(const Operation& operation, mep_op_info_t* info) const {
  if (operation.finished && operation.request != nullptr) {
    return operation.request->record.fill(size(), info);
  }
  OperationRecord record;
  record.epoch = operation.epoch;
  record.seq = operation.seq;
  record.result = operation.result;
  record.input_intact = operation.input_intact;
  return record.fill(size(), info);
}

}  // namespace mep

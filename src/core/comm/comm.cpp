// The user's side of a comm: calls, waiting, and what a call meets when the view has changed.
#include "core/comm/comm.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/hash.hpp"
#include "base/status.hpp"
#include "base/test_delay.hpp"
#include "core/coll/steps.hpp"

namespace mep {
namespace {

// What must be the same on all ranks, in 22 bits.
uint32_t fingerprint(Collective kind, const CollectiveArgs& args) {
  uint64_t hash = static_cast<uint64_t>(kind) + 1;
  for (const uint64_t value : {static_cast<uint64_t>(args.count), uint64_t{args.dtype},
                               uint64_t{args.op}, static_cast<uint64_t>(args.root)}) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return static_cast<uint32_t>(hash >> 24) & Cells::kFingerprintMask;
}

// Puts of an operation that has failed may still wait to be sent, out of the caller's memory.
void release_sources(const std::vector<Remote>& remotes) {
  const KeepErrorText kept;
  for (const Remote& remote : remotes) remote.flush();
}

// A view change that does not come to an end is a bug; this is how long a call waits for one beyond
// all that membership may take.
constexpr uint64_t kVerdictGraceMs = 60'000;

}  // namespace

Comm::Comm(std::shared_ptr<World> world, std::string name, std::vector<uint32_t> slots, uint64_t id)
    : world_(std::move(world)),
      name_(std::move(name)),
      id_(id != 0 ? id : id_of(name_)),
      slots_(std::move(slots)),
      timeout_ms_(world_->config().timeout_ms),
      channel_(id_, 1) {
  for (uint32_t rank = 0; rank < slots_.size(); ++rank) {
    if (slots_[rank] == world_->self_slot()) rank_ = rank;
    member_slots_.add(slots_[rank]);
  }
  record_.reserve(size());
  scratch_pointers_.reserve(size());
}

Comm::~Comm() {
  close();
}

std::unique_ptr<ViewClient> Comm::take_dormant(const std::string& name) {
  const auto it = std::find_if(dormant_.begin(), dormant_.end(),
                               [&](const auto& object) { return object->name() == name; });
  if (it == dormant_.end()) return nullptr;
  std::unique_ptr<ViewClient> object = std::move(*it);
  dormant_.erase(it);
  return object;
}

// No view change is under way, or none will end any more.
bool Comm::changes_are_over() const {
  return !channel_.wedged() || world_->terminal_result() != MEP_SUCCESS;
}

mep_result_t Comm::rename(const char* name) {
  const std::lock_guard lock(mutex_);
  name_.set(name);
  return MEP_SUCCESS;
}

// --- Operations -----------------------------------------------------------------------------------

mep_result_t Comm::run(Collective kind, const CollectiveArgs& args) {
  Operation operation;
  MEP_TRY(start(kind, args, &operation));
  const Deadline deadline = Deadline::after_first_look_ms(timeout_ms());
  if (!wait(&operation, deadline)) return end_of_wait(&operation);
  return operation.result;
}

mep_result_t Comm::agree_largest(uint64_t own, uint64_t* largest) {
  Operation operation;
  operation.is_internal = true;
  MEP_TRY(start(Collective::k_allreduce, {&own, largest, 1, MEP_UINT64, MEP_MAX, 0}, &operation));
  if (!wait(&operation, Deadline::after_ms(timeout_ms()))) return end_of_wait(&operation);
  return operation.result;
}

// What can fail is done before the operation has its number: from then on it ends by a verdict.
mep_result_t Comm::start(Collective kind, const CollectiveArgs& args, Operation* operation) {
  const CollectiveType& type = collective_type(kind);
  MEP_TRY(type.check(*this, args));
  operation->kind = kind;
  operation->args = args;
  operation->bytes = args.count * mep_dtype_size(args.dtype);
  if (type.prepare != nullptr) MEP_TRY(type.prepare(*this, *operation));
  if (operation->record != nullptr) operation->record->reserve(size());
  if (deferred_ != nullptr) [[unlikely]] {
    operation->epoch = deferred_->epoch;
    (void)fail_settled(operation, std::exchange(deferred_, nullptr));
    return MEP_SUCCESS;
  }
  MEP_TRY(begin_operation(operation));
  if (!operation->finished) push_back(operation);
  return MEP_SUCCESS;
}

// The root of a small broadcast waits for nobody, so it cannot see that others called something else.
// The next operation in which ranks wait for each other carries what was called in between, and finds it.
void Comm::stamp(Operation* operation) {
  const uint32_t own = fingerprint(operation->kind, operation->args);
  const CollectiveType& type = collective_type(operation->kind);
  operation->is_small = operation->bytes <= cells_.payload_bytes();
  if (type.is_rooted && operation->is_small) {
    operation->fingerprint = own;
    rooted_calls_ = (rooted_calls_ ^ own) * 0x9e3779b1u + 1;
    return;
  }
  operation->fingerprint = (own ^ (rooted_calls_ >> 8)) & Cells::kFingerprintMask;
  rooted_calls_ = 0;
}

mep_result_t Comm::begin_operation(Operation* operation) {
  if (channel_.undisturbed(adopted_->epoch) && world_->terminal_result() == MEP_SUCCESS)
      [[likely]] {
    take_next_number(operation);
    return MEP_SUCCESS;
  }
  MEP_TRY(settle_changes());
  return take_place(operation);
}

void Comm::take_next_number(Operation* operation) {
  operation->seq = ++seq_;
  operation->epoch = adopted_->epoch;
  operation->contributors = &adopted_->live;
  channel_.enter(operation->seq);
  stamp(operation);
  MEP_TEST_DELAY_POINT("enter");
}

// Gives the operation the next number. Where a view change has decided of that number already, the
// operation succeeds with what was kept for it, or fails like those of the other ranks.
mep_result_t Comm::take_place(Operation* operation) {
  for (;;) {
    std::shared_ptr<const Verdict> verdict;
    {
      const std::lock_guard lock(mutex_);
      if (verdicts_.empty()) break;
      verdict = verdicts_.front();
    }
    const uint64_t seq = seq_ + 1;
    const bool is_decided = seq <= verdict->n_star || (verdict->is_reported && seq < verdict->next);
    if (is_decided) {
      operation->seq = ++seq_;
      operation->epoch = verdict->epoch;
      operation->contributors = &adopted_->live;
      stamp(operation);
      if (seq <= verdict->n_star) {
        (void)succeed_settled(operation);
      } else {
        (void)fail_settled(operation, std::move(verdict));
      }
      return MEP_SUCCESS;
    }
    MEP_TRY(adopt(*verdict));
    const std::lock_guard lock(mutex_);
    verdicts_.pop_front();
  }
  take_next_number(operation);
  return MEP_SUCCESS;
}

void Comm::push_back(Operation* operation) {
  operation->behind = nullptr;
  (last_ != nullptr ? last_->behind : first_) = operation;
  last_ = operation;
}

void Comm::pop_front() {
  first_ = first_->behind;
  if (first_ == nullptr) last_ = nullptr;
}

// Only where nothing better is left: the operation has no end.
void Comm::drop(Operation* operation) {
  Operation* rest = first_;
  first_ = nullptr;
  last_ = nullptr;
  while (rest != nullptr) {
    Operation* each = std::exchange(rest, rest->behind);
    if (each != operation) push_back(each);
  }
}

// The queued operations got their numbers just after the channel was frozen, so no verdict counts them:
// nobody else knows of them, and they take the next numbers instead.
void Comm::replace_queue() {
  for (Operation* operation = first_; operation != nullptr; operation = operation->behind) {
    seq_ = std::min(seq_, operation->seq - 1);
  }
  for (Operation* operation = first_; operation != nullptr; operation = operation->behind) {
    operation->phase = 0;
    operation->cursor = 0;
    operation->chunk = 0;
    operation->chunk_posted = 0;
    operation->chunk_reduced = 0;
    operation->chunk_passed = 0;
    const mep_result_t placed = take_place(operation);
    if (placed != MEP_SUCCESS) finish_operation(operation, placed);
  }
}

bool Comm::test(Operation* operation) {
  // It may have been finished on behalf of a later one, and others may wait behind it.
  while (!operation->finished) {
    if (first_ == nullptr || !(first_->finished || advance_if_possible(first_))) return false;
    pop_front();
  }
  while (first_ != nullptr && first_->finished) pop_front();
  if (operation->verdict != nullptr && is_error(operation->result)) {
    set_last_error_text(operation->verdict->text.c_str());
  }
  return true;
}

// A step that memory was not there for is done again at the next look, until the operation's deadline
// settles it for all.
bool Comm::advance_if_possible(Operation* operation) {
  try {
    return advance(operation);
  } catch (const std::bad_alloc&) {
    return false;
  }
}

bool Comm::wait(Operation* operation, const Deadline& deadline) {
  return wait_until(world_->wait_policy(), world_->doorbell(), deadline,
                    [&] { return test(operation); });
}

void Comm::ask_verdict(Operation* operation) {
  if (verdict_asked_seq_ >= operation->seq || first_ == nullptr) return;
  try {
    world_->report_deadline(id_, channel_.id(), first_->epoch);
    verdict_asked_seq_ = operation->seq;
  } catch (const std::bad_alloc&) {
    // Asked again at the next look.
  }
}

// The deadline is over. What that means is decided for all: a view change fixes which operations are
// complete, and this call waits for its verdict. Another change may come first.
mep_result_t Comm::end_of_wait(Operation* operation) {
  const Deadline grace = Deadline::after_ms(kVerdictGraceMs + timeout_ms());
  const bool ended = wait_until(world_->wait_policy(), world_->doorbell(), grace, [&] {
    if (test(operation)) return true;
    ask_verdict(operation);
    return false;
  });
  if (ended) return operation->result;
  drop(operation);
  return fail(MEP_ERR_INTERNAL, "operation %llu of comm %s got no verdict; please report this",
              static_cast<unsigned long long>(operation->seq), name_.c_str());
}

bool Comm::advance(Operation* operation) {
  if (channel_.undisturbed(operation->epoch)) [[likely]] {
    return advance_undisturbed(operation);
  }
  return settle(operation);
}

// Without a root there is nothing to wait for: each rank knows it from the view.
mep_result_t Comm::check_root_lives(const Operation& operation) const {
  const CollectiveType& type = collective_type(operation.kind);
  const auto root = static_cast<uint32_t>(operation.args.root);
  if (!type.is_rooted || adopted_->is_live(root)) [[likely]]
    return MEP_SUCCESS;
  const bool left = ((adopted_->left_bits[root / 64] >> (root % 64)) & 1u) != 0;
  return fail(left ? MEP_ERR_PEER_LEFT : MEP_ERR_PEER_FAILED,
              "rank %u, the root of this %s, is not in the view", root, type.name);
}

bool Comm::advance_undisturbed(Operation* operation) {
  operation->result = check_root_lives(*operation);
  const Step step = operation->result == MEP_SUCCESS
                        ? collective_type(operation->kind).step(*this, *operation)
                        : Step::kFailed;
  if (step == Step::kPending) return false;
  // This rank waited for nobody, so nobody learns from later operations that it has passed the earlier ones.
  if (step == Step::kFailed) [[unlikely]] {
    const KeepErrorText kept;
    const mep_result_t failed = operation->result;
    (void)note_done_step(*this, *operation);
    operation->result = failed;
  }
  MEP_TEST_DELAY_POINT("complete");
  if (!channel_.complete(operation->epoch, operation->seq)) return false;  // the view decides
  return finish_operation(operation, step == Step::kDone ? MEP_SUCCESS : operation->result);
}

bool Comm::finish_operation(Operation* operation, mep_result_t result) {
  operation->result = result;
  operation->finished = true;
  if (is_error(result)) release_sources(remotes_);
  if (!operation->is_internal) note_record(*operation);
  if (operation->record != nullptr) *operation->record = record_;
  return true;
}

// The verdict of the operation's epoch; null: none yet.
std::shared_ptr<const Verdict> Comm::find_verdict(const Operation& operation) const {
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<const Verdict>& verdict : verdicts_) {
    if (verdict->epoch == operation.epoch) return verdict;
  }
  return nullptr;
}

// The channel was wedged, or is in a later epoch than the operation: done or failed, by the verdict.
bool Comm::settle(Operation* operation) {
  const mep_result_t terminal = world_->terminal_result();
  std::shared_ptr<const Verdict> verdict = find_verdict(*operation);
  if (verdict == nullptr) {
    if (terminal == MEP_SUCCESS) {
      if (operation->epoch == adopted_->epoch) return false;  // still deciding
      replace_queue();  // goes on where memory was not there for it
      return operation->finished;
    }
    restore_input(operation);
    return finish_operation(
        operation, fail(terminal, "the world of comm %s has ended for this rank", name_.c_str()));
  }
  if (operation->seq <= verdict->n_star) return succeed_settled(operation);
  if (operation->seq < verdict->next) return fail_settled(operation, std::move(verdict));
  replace_queue();
  return operation->finished;
}

bool Comm::succeed_settled(Operation* operation) {
  {
    const std::lock_guard lock(mutex_);
    const auto kept = retained_.find(operation->seq);
    if (kept != retained_.end()) {
      operation->retained = &kept->second;
      operation->contributors = &kept->second.sources;
    }
  }
  const mep_result_t result = settle_result(operation);
  // Of a rooted operation the root's bytes alone were kept; who took part is what it is on every rank.
  if (collective_type(operation->kind).is_rooted) operation->contributors = &adopted_->live;
  finish_operation(operation, result);
  const std::lock_guard lock(mutex_);
  retained_.erase(operation->seq);
  operation->retained = nullptr;
  operation->contributors = nullptr;
  return true;
}

// The view decided that the operation is done; with what this rank holds of it, or was given.
mep_result_t Comm::settle_result(Operation* operation) {
  if (operation->holds_result) return MEP_SUCCESS;
  MEP_TRY(check_root_lives(*operation));
  // Who called something else than the others ended it by an error of its own and can give nothing.
  if (operation->retained == nullptr ||
      !Cells::same_call(*operation->retained, operation->fingerprint)) {
    return fail(MEP_ERR_MISMATCH,
                "other ranks of comm %s called another operation than this rank's %s, or with "
                "another count, type, operator or root",
                name_.c_str(), collective_type(operation->kind).name);
  }
  const Step step = collective_type(operation->kind).settle(*this, *operation);
  return step == Step::kDone ? MEP_SUCCESS : operation->result;
}

void Comm::restore_input(Operation* operation) {
  if (operation->saved_input.empty()) return;
  std::memcpy(operation->args.receive, operation->saved_input.data(),
              operation->saved_input.size());
  operation->input_intact = true;
}

bool Comm::fail_settled(Operation* operation, std::shared_ptr<const Verdict> verdict) {
  set_last_error_text(verdict->text.c_str());
  restore_input(operation);
  const mep_result_t result = verdict->result;
  last_verdict_ = verdict;
  drop_personal_reports(verdict->epoch);
  operation->verdict = std::move(verdict);
  return finish_operation(operation, result);
}

// Before a call of a changed view: what is queued is answered, and no change is under way any more.
mep_result_t Comm::settle_changes() {
  const Deadline deadline = Deadline::after_ms(timeout_ms() + kVerdictGraceMs);
  if (world_->terminal_result() == MEP_SUCCESS) drain(deadline);
  const bool settled = wait_until(world_->wait_policy(), world_->doorbell(), deadline,
                                  [this] { return changes_are_over(); });
  const mep_result_t terminal = world_->terminal_result();
  if (terminal != MEP_SUCCESS) {
    return fail(terminal, "the world of comm %s has ended for this rank", name_.c_str());
  }
  if (settled) return MEP_SUCCESS;
  return fail(MEP_ERR_INTERNAL, "the view of comm %s did not settle; please report this",
              name_.c_str());
}

void Comm::drain(const Deadline& deadline) {
  if (last_ != nullptr) (void)wait(last_, deadline);
}

// A newcomer's windows are here before it is in the view, unless this rank is a newcomer too: then they
// come at once.
mep_result_t Comm::reach_newcomers(const CommView& view) {
  remote_incarnations_.resize(size(), 0);
  const Deadline deadline = Deadline::after_ms(timeout_ms());
  for (const uint32_t rank : view.live) {
    if (rank == rank_ || remote_incarnations_[rank] == view.incarnations[rank]) continue;
    // Gone again: this view has a successor, for which the channel is wedged by now, so nothing is
    // posted to it.
    if (world_->view_snapshot().incarnation(slots_[rank]) != view.incarnations[rank]) continue;
    MEP_TRY(world_->await_remote(slots_[rank], window_, deadline, &remotes_[rank]));
    remote_incarnations_[rank] = view.incarnations[rank];
  }
  return MEP_SUCCESS;
}

mep_result_t Comm::adopt(const Verdict& verdict) {
  MEP_TRY(reach_newcomers(*verdict.view));
  MEP_TEST_DELAY_POINT("adopt");
  // The control thread looks at the cells too, under the lock.
  const std::lock_guard lock(mutex_);
  // Again from the start, if there is no memory for all of it: the view is adopted last.
  cells_.restart(verdict.view->epoch, verdict.next, verdict.view->live);
  bulk_.restart(verdict.view->epoch, verdict.view->live, cells_.groups(), cells_.through_leaders());
  rooted_calls_ = 0;
  verdict_asked_seq_ = 0;
  seq_ = verdict.next - 1;
  retained_.erase(retained_.begin(), retained_.lower_bound(verdict.next));
  adopted_ = verdict.view;
  // Release: windows of ranks that are gone are used no more.
  adopted_epoch_.store(adopted_->epoch, std::memory_order_release);
  return MEP_SUCCESS;
}

void Comm::defer_report(std::shared_ptr<const Verdict> report) {
  if (deferred_ != nullptr) {
    const auto both = std::make_shared<Verdict>(*report);
    if (deferred_->result == MEP_ERR_PEER_FAILED) both->result = deferred_->result;
    both->text = deferred_->text + "; " + report->text;
    for (size_t i = 0; i < both->missing.size(); ++i) both->missing[i] |= deferred_->missing[i];
    report = both;
  }
  deferred_ = std::move(report);
  // A dispatch or combine that comes first reports it as well.
  const std::lock_guard lock(mutex_);
  if (clients_.empty()) return;
  personal_reports_.push_back(deferred_);
  personal_report_count_.store(personal_reports_.size(), std::memory_order_relaxed);
}

std::shared_ptr<const Verdict> Comm::take_personal_report() {
  const std::lock_guard lock(mutex_);
  if (personal_reports_.empty()) return nullptr;
  std::shared_ptr<const Verdict> report = std::move(personal_reports_.front());
  personal_reports_.pop_front();
  personal_report_count_.store(personal_reports_.size(), std::memory_order_relaxed);
  return report;
}

void Comm::drop_personal_reports(uint64_t epoch) {
  if (!has_personal_report()) return;
  const std::lock_guard lock(mutex_);
  std::erase_if(personal_reports_, [=](const auto& report) { return report->epoch <= epoch; });
  personal_report_count_.store(personal_reports_.size(), std::memory_order_relaxed);
}

const std::byte* Comm::contribution(const Operation& operation, uint32_t source) const {
  if (operation.retained == nullptr) return cells_.payload(operation.seq, source);
  const auto& sources = operation.retained->sources;
  const auto it = std::find(sources.begin(), sources.end(), source);
  if (it == sources.end()) return nullptr;
  return operation.retained->cells[static_cast<size_t>(it - sources.begin())].data() +
         sizeof(uint64_t);
}

// --- What happened --------------------------------------------------------------------------------

void Comm::note_record(const Operation& operation) {
  record_.any = true;
  record_.epoch = operation.epoch;
  record_.seq = operation.seq;
  record_.result = operation.result;
  record_.input_intact = operation.input_intact;
  if (operation.result == MEP_SUCCESS && operation.contributors == &adopted_->live) {
    if (record_.contributors != adopted_->live_bits) record_.contributors = adopted_->live_bits;
    record_.failed.clear();
    return;
  }
  record_.contributors.assign((size() + 63) / 64, 0);
  record_.failed.clear();
  if (operation.result >= 0 && operation.contributors != nullptr) {
    for (const uint32_t rank : *operation.contributors) {
      record_.contributors[rank / 64] |= uint64_t{1} << (rank % 64);
    }
    return;
  }
  note_missing(operation);
}

// Those that the change took away, or a root that was not there at all.
void Comm::note_missing(const Operation& operation) {
  record_.failed.assign((size() + 63) / 64, 0);
  const auto root = static_cast<uint32_t>(operation.args.root);
  if (operation.verdict != nullptr) {
    record_.failed = operation.verdict->missing;
  } else if (collective_type(operation.kind).is_rooted && !adopted_->is_live(root)) {
    record_.failed[root / 64] |= uint64_t{1} << (root % 64);
  }
}

mep_result_t Comm::fill_info(const OperationRecord& record, mep_op_info_t* info) const {
  info->flags = record.input_intact ? uint32_t{MEP_OP_INPUT_INTACT} : 0u;
  info->epoch = record.epoch;
  info->seq = record.seq;
  info->result = record.result;
  const size_t words = (size() + 63) / 64;
  bool fits = true;
  const auto copy = [&](uint64_t* to, uint32_t capacity, const std::vector<uint64_t>& from) {
    if (to == nullptr) return;
    for (uint32_t i = 0; i < capacity; ++i) to[i] = i < from.size() ? from[i] : 0;
    fits = fits && capacity >= words;
  };
  copy(info->contributors, info->contributors_words, record.contributors);
  copy(info->failed, info->failed_words, record.failed);
  if (fits) return MEP_SUCCESS;
  return fail(MEP_ERR_CAPACITY, "a bitmap of this comm needs %zu words of 64 bits", words);
}

mep_result_t Comm::last_op(mep_op_info_t* info) const {
  if (!record_.any) {
    return fail(MEP_ERR_NOT_FOUND, "comm %s has finished no operation yet", name_.c_str());
  }
  return fill_info(record_, info);
}

mep_result_t Comm::describe(const Operation& operation, mep_op_info_t* info) const {
  if (operation.finished && operation.record != nullptr) return fill_info(*operation.record, info);
  OperationRecord record;
  record.epoch = operation.epoch;
  record.seq = operation.seq;
  record.result = operation.result;
  record.input_intact = operation.input_intact;
  return fill_info(record, info);
}

}  // namespace mep

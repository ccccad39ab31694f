// The user's side of a comm: calls, waiting, and what a call meets when the view has changed.
#include "core/comm/comm.hpp"

#include <algorithm>
#include <cstring>

#include "base/hash.hpp"
#include "base/status.hpp"
#include "base/test_delay.hpp"

namespace mep {
namespace {

// Names are the same on all members, so ids are too.
uint64_t hash_name(const std::string& name) {
  Hash hash;
  hash.bytes(name.data(), name.size());
  return hash.value() | 1;  // never the world window's id
}

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
  const std::string text = last_error_text();
  for (const Remote& remote : remotes) {
    if (remote.transport == nullptr || remote.mapped != nullptr) continue;
    (void)remote.transport->flush(remote.slot);  // of a slot that is gone nothing is left
  }
  set_last_error_text(text.c_str());
}

// A view change that does not come to an end is a bug; this is how long a call waits for one beyond
// all that membership may take.
constexpr uint64_t kVerdictGraceMs = 60'000;

}  // namespace

uint64_t Comm::id_of(const std::string& name) {
  return hash_name(name);
}

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
}

Comm::~Comm() {
  close();
}

mep_result_t Comm::begin(uint64_t epoch, uint64_t next_seq) {
  const size_t bytes = Cells::window_bytes(size()) + Bulk::window_bytes(size());
  MEP_TRY(Window::create(id_, bytes, &window_));
  view_ = make_view(world_->view_snapshot(), epoch);
  adopted_ = view_;
  seq_ = next_seq - 1;
  channel_.restart(epoch, seq_);
  return world_->offer_window(window_, slots_);
}

mep_result_t Comm::finish(const Deadline& deadline) {
  const auto absent = [this](uint32_t slot) {
    return world_->view_snapshot().incarnation(slot) == 0;
  };
  MEP_TRY(world_->receive_windows(window_, slots_, absent, deadline, &remotes_));
  cells_.open(rank_, &remotes_, window_->data());
  bulk_.open(rank_, Cells::window_bytes(size()), &remotes_, window_->data());
  cells_.restart(adopted_->epoch, seq_ + 1, adopted_->live);
  bulk_.restart(adopted_->epoch, adopted_->live, cells_.groups(), cells_.through_leaders());
  remote_incarnations_ = adopted_->incarnations;
  // Relaxed: the control thread does not know this comm yet.
  adopted_epoch_.store(adopted_->epoch, std::memory_order_relaxed);
  opened_ = true;
  world_->add_client(this, adopted_->epoch);
  return MEP_SUCCESS;
}

std::unique_ptr<ViewClient> Comm::take_dormant(const std::string& name) {
  const auto it = std::find_if(dormant_.begin(), dormant_.end(),
                               [&](const auto& object) { return object->name() == name; });
  if (it == dormant_.end()) return nullptr;
  std::unique_ptr<ViewClient> object = std::move(*it);
  dormant_.erase(it);
  return object;
}

// A view change that has begun counts on what this rank has reported of the comm, and may have it give
// others what they lack: the comm is there until the change is over.
bool Comm::changes_are_over() const {
  return !channel_.wedged() || world_->terminal_result() != MEP_SUCCESS;
}

void Comm::close_after_changes() {
  const Deadline deadline = Deadline::after_ms(timeout_ms() + kVerdictGraceMs);
  const auto is_over = [this] { return changes_are_over(); };
  // Without the control thread a change that had begun ends no more: this rank has left the world.
  while (opened_ && !deadline.expired() && world_->call([] {})) {
    (void)wait_until(world_->wait_policy(), world_->doorbell(), deadline, is_over);
    // Once more on the control thread, which begins the changes.
    if (world_->remove_client_if(this, is_over)) opened_ = false;
  }
  close();
}

void Comm::close() {
  dormant_.clear();
  if (opened_) world_->remove_client(this);
  opened_ = false;
  if (window_ != nullptr) world_->drop_window(window_->id());
  window_ = nullptr;
}

mep_result_t Comm::rename(const char* name) {
  const std::lock_guard lock(mutex_);
  name_ = name;
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

mep_result_t Comm::agree_largest(uint64_t epoch, uint64_t own, uint64_t* largest) {
  Operation operation;
  operation.agrees_epoch = epoch;
  MEP_TRY(start(Collective::k_allreduce, {&own, largest, 1, MEP_UINT64, MEP_MAX, 0}, &operation));
  if (!wait(&operation, Deadline::after_ms(timeout_ms()))) return end_of_wait(&operation);
  return operation.result;
}

mep_result_t Comm::start(Collective kind, const CollectiveArgs& args, Operation* operation) {
  const CollectiveType& type = collective_type(kind);
  MEP_TRY(type.check(*this, args));
  operation->kind = kind;
  operation->args = args;
  operation->bytes = args.count * mep_dtype_size(args.dtype);
  const mep_result_t begun = begin_operation(operation);
  if (begun != MEP_SUCCESS) return begun;
  stamp(operation);
  if (operation->result == MEP_SUCCESS) queue_.push_back(operation);
  return MEP_SUCCESS;
}

// The root of a small broadcast waits for nobody, so it cannot see that others called something else.
// The next operation in which ranks wait for each other carries what was called in between, and finds it.
void Comm::stamp(Operation* operation) {
  const uint32_t own = fingerprint(operation->kind, operation->args);
  const CollectiveType& type = collective_type(operation->kind);
  operation->is_small = operation->bytes <= cells_.payload_bytes();
  if (type.small_is_rooted && operation->is_small) {
    operation->fingerprint = own;
    rooted_calls_ = (rooted_calls_ ^ own) * 0x9e3779b1u + 1;
    return;
  }
  operation->fingerprint = (own ^ (rooted_calls_ >> 8)) & Cells::kFingerprintMask;
  rooted_calls_ = 0;
}

mep_result_t Comm::begin_operation(Operation* operation) {
  if (!channel_.undisturbed(adopted_->epoch) || world_->terminal_result() != MEP_SUCCESS) {
    const mep_result_t caught = catch_up(operation);
    if (caught != MEP_SUCCESS || operation->retained != nullptr) return caught;
  }
  if (operation->agrees_epoch != 0 && operation->agrees_epoch != adopted_->epoch) [[unlikely]] {
    return fail(passed_result_, "%s", passed_text_.c_str());
  }
  operation->seq = ++seq_;
  operation->epoch = adopted_->epoch;
  operation->contributors = &adopted_->live;
  channel_.enter(operation->seq);
  MEP_TEST_DELAY_POINT("enter");
  return MEP_SUCCESS;
}

bool Comm::test(Operation* operation) {
  // It may have been finished on behalf of a later one, and others may wait behind it.
  while (!operation->finished) {
    if (queue_.empty() || !advance(queue_.front())) return false;
    queue_.pop_front();
  }
  return true;
}

bool Comm::wait(Operation* operation, const Deadline& deadline) {
  return wait_until(world_->wait_policy(), world_->doorbell(), deadline,
                    [&] { return test(operation); });
}

void Comm::ask_verdict(Operation* operation) {
  if (verdict_asked_seq_ >= operation->seq || queue_.empty()) return;
  verdict_asked_seq_ = operation->seq;
  world_->report_deadline(id_, channel_.id(), queue_.front()->epoch);
}

// The deadline is over. What that means is decided for all: a view change fixes which operations are
// complete, and this call waits for its verdict.
mep_result_t Comm::end_of_wait(Operation* operation) {
  ask_verdict(operation);
  const Deadline grace = Deadline::after_ms(kVerdictGraceMs + timeout_ms());
  if (wait(operation, grace)) return operation->result;
  std::erase(queue_, operation);
  return fail(MEP_ERR_INTERNAL, "operation %llu of comm %s got no verdict; please report this",
              static_cast<unsigned long long>(operation->seq), name_.c_str());
}

bool Comm::advance(Operation* operation) {
  if (channel_.undisturbed(operation->epoch) && operation->retained == nullptr) [[likely]] {
    return advance_undisturbed(operation);
  }
  return settle(operation);
}

bool Comm::advance_undisturbed(Operation* operation) {
  const Step step = collective_type(operation->kind).step(*this, *operation);
  if (step == Step::kPending) return false;
  MEP_TEST_DELAY_POINT("complete");
  if (!channel_.complete(operation->epoch, operation->seq)) return false;  // the view decides
  return finish_operation(operation, step == Step::kDone ? MEP_SUCCESS : operation->result);
}

bool Comm::finish_operation(Operation* operation, mep_result_t result) {
  operation->result = result;
  operation->finished = true;
  if (is_error(result)) release_sources(remotes_);
  if (operation->agrees_epoch == 0) note_record(*operation);
  if (operation->record != nullptr) *operation->record = record_;
  return true;
}

// The channel was wedged, or is in a later epoch than the operation: done or failed, by the verdict.
bool Comm::settle(Operation* operation) {
  const mep_result_t terminal = world_->terminal_result();
  std::unique_lock lock(mutex_);
  const auto verdict =
      std::find_if(verdicts_.begin(), verdicts_.end(),
                   [&](const Verdict& candidate) { return candidate.epoch == operation->epoch; });
  if (verdict == verdicts_.end() && operation->retained == nullptr) {
    if (terminal == MEP_SUCCESS) return false;  // still deciding
    lock.unlock();
    restore_input(operation);
    return finish_operation(
        operation, fail(terminal, "the world of comm %s has ended for this rank", name_.c_str()));
  }
  const bool succeeds = operation->retained != nullptr || operation->seq <= verdict->n_star;
  if (!succeeds) {
    news_ = MEP_SUCCESS;  // told by this operation
    const Verdict failed = *verdict;
    lock.unlock();
    return fail_settled(operation, failed);
  }
  const auto kept = retained_.find(operation->seq);
  if (kept != retained_.end()) {
    operation->retained = &kept->second;
    operation->contributors = &kept->second.sources;
  }
  lock.unlock();
  const mep_result_t result = settle_result(operation);
  // Of a broadcast the root's bytes alone were kept; who took part is what it is on every rank.
  if (operation->kind == Collective::k_broadcast) operation->contributors = &adopted_->live;
  finish_operation(operation, result);
  lock.lock();
  retained_.erase(operation->seq);
  operation->retained = nullptr;
  return true;
}

// The view decided that the operation is done; with what this rank holds of it, or was given.
mep_result_t Comm::settle_result(Operation* operation) {
  if (operation->holds_result) return MEP_SUCCESS;
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

bool Comm::fail_settled(Operation* operation, const Verdict& verdict) {
  set_last_error_text(verdict.text.c_str());
  restore_input(operation);
  return finish_operation(operation, verdict.result);
}

// A call finds that the view has changed since the last one. Three outcomes: an operation that the view
// completed is answered now (operation->retained is set), the news is told, or all is as usual.
mep_result_t Comm::catch_up(Operation* operation) {
  const mep_result_t terminal = world_->terminal_result();
  if (terminal != MEP_SUCCESS) {
    return fail(terminal, "the world of comm %s has ended for this rank", name_.c_str());
  }
  const std::shared_ptr<const CommView> before = adopted_;
  // Queued operations of the old epoch are answered first.
  const Deadline deadline = Deadline::after_ms(timeout_ms() + kVerdictGraceMs);
  drain(deadline);
  if (!wait_until(world_->wait_policy(), world_->doorbell(), deadline,
                  [this] { return changes_are_over(); })) {
    return fail(MEP_ERR_INTERNAL, "the view of comm %s did not settle; please report this",
                name_.c_str());
  }
  for (;;) {
    std::unique_lock lock(mutex_);
    if (verdicts_.empty()) break;
    const Verdict verdict = verdicts_.front();
    if (seq_ < verdict.n_star) {
      operation->seq = ++seq_;
      operation->epoch = verdict.epoch;
      const auto kept = retained_.find(operation->seq);
      if (kept == retained_.end()) {
        return fail(MEP_ERR_MISMATCH,
                    "operation %llu of comm %s, this rank's %s, has failed on other ranks, which "
                    "called different things",
                    static_cast<unsigned long long>(operation->seq), name_.c_str(),
                    collective_type(operation->kind).name);
      }
      operation->retained = &kept->second;
      operation->contributors = &kept->second.sources;
      return MEP_SUCCESS;
    }
    lock.unlock();
    MEP_TRY(adopt(verdict));
    lock.lock();
    verdicts_.pop_front();
  }
  const mep_result_t news = take_news();
  if (news != MEP_SUCCESS && operation->agrees_epoch == 0) note_news(*before, news);
  return news;
}

void Comm::drain(const Deadline& deadline) {
  if (!queue_.empty()) (void)wait(queue_.back(), deadline);
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
  adopted_ = verdict.view;
  passed_result_ = verdict.result;
  passed_text_ = verdict.text;
  rooted_calls_ = 0;
  seq_ = verdict.next - 1;
  cells_.restart(adopted_->epoch, verdict.next, adopted_->live);
  bulk_.restart(adopted_->epoch, adopted_->live, cells_.groups(), cells_.through_leaders());
  // Release: windows of ranks that are gone are used no more.
  adopted_epoch_.store(adopted_->epoch, std::memory_order_release);
  return MEP_SUCCESS;
}

mep_result_t Comm::take_news() {
  const std::lock_guard lock(mutex_);
  if (news_ == MEP_SUCCESS) return MEP_SUCCESS;
  const mep_result_t result = news_;
  news_ = MEP_SUCCESS;
  return fail(result, "%s", news_text_.c_str());
}

void Comm::retell_news(mep_result_t news, const char* text) {
  const std::lock_guard lock(mutex_);
  if (news_ != MEP_SUCCESS) return;
  news_ = news;
  news_text_ = text;
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
  note_missing(*adopted_, *latest_view());
}

// A call that was refused because of what has happened since the last one: it is no operation.
void Comm::note_news(const CommView& before, mep_result_t news) {
  record_.any = true;
  record_.epoch = adopted_->epoch;
  record_.seq = 0;
  record_.result = news;
  record_.input_intact = true;
  record_.contributors.assign((size() + 63) / 64, 0);
  note_missing(before, *adopted_);
}

// Missing are those that the later view has no more.
void Comm::note_missing(const CommView& before, const CommView& after) {
  record_.failed.assign((size() + 63) / 64, 0);
  for (const uint32_t rank : before.live) {
    if (!after.is_live(rank)) record_.failed[rank / 64] |= uint64_t{1} << (rank % 64);
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

std::shared_ptr<const CommView> Comm::latest_view() const {
  const std::lock_guard lock(mutex_);
  return view_;
}

void Comm::add_client(ViewClient* client) {
  std::vector<membership::ChannelState> channels;
  client->describe(&channels);
  const std::lock_guard lock(mutex_);
  clients_.push_back(client);
  for (const membership::ChannelState& state : channels) channel_clients_[state.channel] = client;
}

void Comm::remove_client(ViewClient* client) {
  std::vector<membership::ChannelState> channels;
  client->describe(&channels);
  {
    const std::lock_guard lock(mutex_);
    std::erase(clients_, client);
    for (const membership::ChannelState& state : channels) channel_clients_.erase(state.channel);
  }
  // Others may still be in the last operations of this client.
  world_->note_closed(std::move(channels), member_slots_);
}

bool Comm::has_clients(size_t own) const {
  const std::lock_guard lock(mutex_);
  return clients_.size() > own;
}

}  // namespace mep

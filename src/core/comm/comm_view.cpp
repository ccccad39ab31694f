// The control thread's side of a comm: wedge, flush, prepare, install.
#include <sched.h>

#include <algorithm>

#include "base/log.hpp"
#include "base/test_delay.hpp"
#include "core/comm/comm.hpp"

namespace mep {
namespace {

struct Reason {
  mep_result_t result;
  std::string text;
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
      return "it could not be reached";
    case membership::RemovalReason::kEvicted:
      return "it was evicted";
    case membership::RemovalReason::kStalled:
      return "it did not answer";
  }
  return "unknown";
}

// What operations beyond N* answer: the gravest of what happened. MEP_SUCCESS: nothing to report.
Reason reason_of(const membership::InstallView& change, const membership::AffectedComm& affected,
                 const std::vector<uint32_t>& slots, const std::string& name) {
  Reason reason{MEP_SUCCESS, ""};
  const auto prefer = [&](mep_result_t result, const std::string& text) {
    const bool graver = reason.result == MEP_SUCCESS || result == MEP_ERR_PEER_FAILED;
    if (graver) reason.result = result;
    reason.text += (reason.text.empty() ? "" : "; ") + text;
  };
  for (const membership::Removal& removal : change.decision->removed) {
    const auto it = std::find(slots.begin(), slots.end(), removal.slot);
    if (it == slots.end()) continue;
    const bool left = removal.reason == membership::RemovalReason::kLeft;
    prefer(left ? MEP_ERR_PEER_LEFT : MEP_ERR_PEER_FAILED,
           "rank " + std::to_string(it - slots.begin()) + " of comm " + name +
               (left ? " left: " : " failed: ") + removal_text(removal.reason));
  }
  if (reason.result != MEP_SUCCESS) return reason;
  if ((affected.why & membership::kAffectedByRevoke) != 0) {
    return {MEP_ERR_REVOKED, "comm " + name + " was revoked"};
  }
  if ((affected.why & membership::kAffectedByDeadline) != 0) {
    return {MEP_ERR_TIMEOUT, "an operation of comm " + name + " ran out of time on some rank"};
  }
  return reason;  // only additions: nothing to tell
}

}  // namespace

// Who left stays so until somebody takes the place.
void note_left(const CommView* before, const membership::Proposal& decision,
               const std::vector<uint32_t>& slots, CommView* view) {
  for (uint32_t rank = 0; rank < slots.size(); ++rank) {
    if (view->is_live(rank)) continue;
    const auto gone = std::find_if(
        decision.removed.begin(), decision.removed.end(),
        [&](const membership::Removal& removal) { return removal.slot == slots[rank]; });
    const bool left = gone != decision.removed.end()
                          ? gone->reason == membership::RemovalReason::kLeft
                          : ((before->left_bits[rank / 64] >> (rank % 64)) & 1u) != 0;
    if (left) view->left_bits[rank / 64] |= uint64_t{1} << (rank % 64);
  }
}

std::shared_ptr<CommView> Comm::make_view(const membership::View& view, uint64_t epoch) const {
  auto result = std::make_shared<CommView>();
  result->epoch = epoch;
  result->world_epoch = view.epoch;
  result->live_bits.assign((slots_.size() + 63) / 64, 0);
  result->left_bits.assign((slots_.size() + 63) / 64, 0);
  result->incarnations.assign(slots_.size(), 0);
  for (uint32_t rank = 0; rank < slots_.size(); ++rank) {
    const uint64_t incarnation = view.incarnation(slots_[rank]);
    if (incarnation == 0) continue;
    result->live.push_back(rank);
    result->live_bits[rank / 64] |= uint64_t{1} << (rank % 64);
    result->incarnations[rank] = incarnation;
  }
  return result;
}

void Comm::wedge(std::vector<membership::ChannelState>* channels) {
  MEP_TEST_DELAY_POINT("wedge");
  const Channel::Frozen frozen = channel_.wedge();
  MEP_TEST_DELAY_POINT("wedged");
  wait_for_posters();
  const std::lock_guard lock(mutex_);
  gather_held(frozen.done);
  channels->push_back({id_, channel_.id(), held_, std::max(frozen.entered, held_)});
  for (ViewClient* client : clients_) client->wedge(channels);
}

// A poster copies at most one chunk and then sees the wedge, so this ends.
void Comm::wait_for_posters() const {
  const Deadline limit = Deadline::after_ms(10'000);
  while (posting_.load(std::memory_order_seq_cst) != 0) {
    if (limit.expired()) {
      log(LogLevel::kError, "comm %s: a thread is stuck in a copy", name_.c_str());
      return;
    }
    sched_yield();
  }
}

// An operation whose every contribution is here counts as done: this rank can complete it whatever
// happens, and promises so. Its contributions leave the cells, which a later epoch uses again.
// Not before this rank has adopted the view: until then its cells are laid out as in the epoch before, and it
// has given nothing in this one, so nothing but what a root gave could be complete. Others hold that.
void Comm::gather_held(uint64_t done) {
  held_ = done;
  while (cells_are_of_the_view()) {
    const uint64_t seq = held_ + 1;
    cells_.absorb_blocks(view_->epoch, seq);
    RetainedOperation kept;
    if (cells_.retain(view_->epoch, seq, &kept)) {
      retained_[seq] = std::move(kept);
    } else if (!bulk_.finished_by_all(view_->epoch, seq)) {
      return;
    }
    held_ = seq;
  }
}

void Comm::describe(std::vector<membership::ChannelState>* channels) const {
  channels->push_back({id_, channel_.id(), channel_.done(), 0});
  const std::lock_guard lock(mutex_);
  for (const ViewClient* client : clients_) client->describe(channels);
}

bool Comm::holds(uint64_t channel, uint64_t seq) {
  if (channel != channel_.id()) {
    const std::lock_guard lock(mutex_);
    const auto client = channel_clients_.find(channel);
    return client == channel_clients_.end() || client->second->holds(channel, seq);
  }
  const uint64_t done = channel_.done();
  if (seq <= done) return true;
  const std::lock_guard lock(mutex_);
  // What has come since does not count in this change: the others go by what was reported, and a rank that
  // leaves because of this answer takes what it knows with it.
  if (channel_.wedged()) return seq <= held_;
  if (!cells_are_of_the_view()) return false;
  for (uint64_t next = done + 1; next <= seq; ++next) {
    RetainedOperation kept;
    if (!cells_.retain(view_->epoch, next, &kept) && !bulk_.finished_by_all(view_->epoch, next)) {
      return false;
    }
  }
  return true;
}

void Comm::give_flush(uint64_t channel, uint64_t from_seq, uint64_t to_seq, const FlushSink& sink) {
  if (channel != channel_.id()) return;
  const std::lock_guard lock(mutex_);
  for (uint64_t seq = from_seq; seq <= to_seq; ++seq) {
    RetainedOperation kept;
    const auto it = retained_.find(seq);
    const auto given = given_.find(seq);
    if (it != retained_.end()) {
      kept = it->second;
    } else if (given != given_.end()) {
      kept = given->second;
    } else if (!cells_are_of_the_view() || !cells_.retain(view_->epoch, seq, &kept)) {
      continue;  // a large operation: whoever is behind has its data already
    }
    for (size_t i = 0; i < kept.sources.size(); ++i) sink(seq, kept.sources[i], kept.cells[i]);
  }
}

void Comm::take_flush(uint64_t channel, uint64_t seq, uint32_t source,
                      std::span<const std::byte> bytes) {
  if (channel != channel_.id() || source >= size() || bytes.size() != cells_.cell_bytes()) return;
  const std::lock_guard lock(mutex_);
  RetainedOperation& kept = retained_[seq];
  if (std::find(kept.sources.begin(), kept.sources.end(), source) != kept.sources.end()) return;
  const auto place = std::lower_bound(kept.sources.begin(), kept.sources.end(), source);
  const auto index = place - kept.sources.begin();
  kept.sources.insert(place, source);
  kept.cells.emplace(kept.cells.begin() + index, bytes.begin(), bytes.end());
}

// This rank may be asked for these after it has prepared. An operation whose contributions are all here
// was entered by all, so all have completed what was before it; the same goes for a large one.
// What ended without cells, by a root that is gone, has nothing to keep and says nothing of what was before.
void Comm::keep_for_others() {
  if (!cells_are_of_the_view()) return;
  const uint64_t done = channel_.done();
  for (uint64_t seq = done; seq + cells_.depth() > done && seq > 0; --seq) {
    RetainedOperation kept;
    if (bulk_.finished_by_all(view_->epoch, seq)) return;
    if (!cells_.retain(view_->epoch, seq, &kept)) continue;
    const bool entered_by_all = kept.sources.size() == view_->live.size();
    given_[seq] = std::move(kept);
    if (entered_by_all) return;
  }
}

void Comm::prepare() {
  MEP_TEST_DELAY_POINT("prepare");
  const std::lock_guard lock(mutex_);
  keep_for_others();
  cells_.zero_words();
  bulk_.zero_words();
  for (ViewClient* client : clients_) client->prepare();
}

void Comm::install(const membership::InstallView& change,
                   const membership::AffectedComm* affected) {
  MEP_TEST_DELAY_POINT("install");
  const std::lock_guard lock(mutex_);
  given_.clear();
  if (affected == nullptr) {
    // What was copied out stays in the cells too: operations go on from there.
    std::erase_if(retained_, [this](const auto& entry) { return entry.first > channel_.done(); });
    for (ViewClient* client : clients_) client->install(nullptr, nullptr);
    channel_.unwedge();
    doorbell_ring(world_->doorbell());
    return;
  }
  const auto made = std::make_shared<Verdict>();
  Verdict& verdict = *made;
  verdict.epoch = view_->epoch;
  verdict.n_star = channel_.done();
  verdict.next = verdict.n_star + 2;
  if (const auto* decided = change.decision->verdict(id_, channel_.id())) {
    verdict.n_star = decided->n_star;
    verdict.next = decided->next;
  }
  // A newcomer has called nothing yet.
  if (change.joined) verdict.n_star = 0;
  const Reason reason = reason_of(change, *affected, slots_, name_);
  verdict.is_reported = reason.result != MEP_SUCCESS && !change.joined;
  verdict.result = reason.result != MEP_SUCCESS ? reason.result : MEP_ERR_PEER_FAILED;
  verdict.text = reason.text;
  const std::shared_ptr<CommView> after = make_view(*change.view, affected->new_epoch);
  note_left(view_.get(), *change.decision, slots_, after.get());
  verdict.missing = view_->live_bits;
  for (uint32_t rank = 0; rank < size(); ++rank) {
    if (after->incarnations[rank] != view_->incarnations[rank]) continue;
    verdict.missing[rank / 64] &= ~(uint64_t{1} << (rank % 64));
  }
  view_ = after;
  verdict.view = view_;
  for (ViewClient* client : clients_) client->install(&verdict, change.decision.get());
  if (verdict.is_reported && !clients_.empty()) personal_reports_.push_back(made);
  personal_report_count_.store(personal_reports_.size(), std::memory_order_relaxed);
  verdicts_.push_back(made);
  channel_.restart(view_->epoch, verdict.next - 1);
  doorbell_ring(world_->doorbell());
  log(LogLevel::kInfo, "comm %s: epoch %llu, %zu of %u ranks", name_.c_str(),
      static_cast<unsigned long long>(view_->epoch), view_->live.size(), size());
}

bool Comm::quiesced() const {
  const std::lock_guard lock(mutex_);
  for (const ViewClient* client : clients_) {
    if (!client->quiesced()) return false;
  }
  if (adopted_epoch_.load(std::memory_order_acquire) == view_->epoch) return true;
  // A write, so that it has its place among those of enter_call(): a call is either before it and seen
  // here, or after it and sees the new view, which was stored before. Acquire: what the last call did
  // is over. Release: publishes the new view to the next call.
  return in_call_.fetch_add(0, std::memory_order_acq_rel) != kUsesWindows;
}

CommDescription Comm::description() const {
  const std::lock_guard lock(mutex_);
  CommDescription description{id_,    name_,          view_->epoch,
                              slots_, child_number(), ep_number_.load(std::memory_order_relaxed),
                              {}};
  for (const ViewClient* client : clients_) {
    client->describe_object(&description.objects.emplace_back());
  }
  return description;
}

// The others may take what this rank says next for its end, and wait for nothing that it still writes.
void Comm::terminate() {
  (void)channel_.wedge();
  wait_for_posters();
  {
    const std::lock_guard lock(mutex_);
    for (ViewClient* client : clients_) client->terminate();
  }
  doorbell_ring(world_->doorbell());
}

// --- The user's thread ----------------------------------------------------------------------------

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
  {
    const std::lock_guard lock(mutex_);
    std::erase(clients_, client);
    if (clients_.empty()) personal_reports_.clear();
    personal_report_count_.store(personal_reports_.size(), std::memory_order_relaxed);
    std::erase_if(channel_clients_, [client](const auto& each) { return each.second == client; });
  }
  try {
    std::vector<membership::ChannelState> channels;
    client->describe(&channels);
    // Others may still be in the last operations of this client.
    world_->note_closed(std::move(channels), member_slots_);
  } catch (const std::bad_alloc&) {
    // Destructors come here. Then a rank that leaves waits for nobody who is still in these operations.
    log(LogLevel::kWarn, "comm %s: no memory to note what was closed", name().c_str());
  }
}

bool Comm::has_clients(size_t own) const {
  const std::lock_guard lock(mutex_);
  return clients_.size() > own;
}

}  // namespace mep

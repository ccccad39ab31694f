#include "core/ep/ep_buffer.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/log.hpp"
#include "base/status.hpp"
#include "core/ep/ep_drive.hpp"

namespace mep {
namespace {

// Rows that may be on their way to peers without mapped memory before they are waited for.
constexpr uint32_t kStagedRows = 32;
constexpr size_t kTextBytes = 1024;  // of any error's text

}  // namespace

EpBuffer::EpBuffer(Comm& comm, const EpShape& shape, const EpLayout& layout, uint64_t id)
    : comm_(comm),
      shape_(shape),
      layout_(layout),
      id_(id),
      channel_(id, 1),
      is_member_(shape.ranks, 0),
      router_(shape),
      first_row_(shape.places(), 0),
      complete_(shape.ranks, 0),
      recv_count_(shape.local_experts, 0),
      layout_range_(size_t{shape.local_experts} * shape.ranks, 0),
      src_info_(shape.rows(), 0),
      row_entry_(shape.rows(), 0),
      terms_(shape.ranks, CombineWord::kNone) {
  // Once an operation has begun others wait for it: what it needs from then on is there before.
  op_.text.reserve(kTextBytes);
  record_.reserve(shape.ranks);
  members_.reserve(shape.ranks);
  reached_incarnations_.reserve(shape.ranks);
}

EpBuffer::~EpBuffer() {
  if (window_ != nullptr) comm_.world().drop_window(window_->id());
}

mep_result_t EpBuffer::offer() {
  std::shared_ptr<Window> window;
  MEP_TRY(Window::create(id_, layout_.bytes(), &window));
  window_ = std::move(window);
  return comm_.world().offer_window(window_, comm_.slots());
}

mep_result_t EpBuffer::receive(const Deadline& deadline) {
  const membership::View view = comm_.world().view_snapshot();
  reached_incarnations_.clear();
  for (const uint32_t slot : comm_.slots()) {
    reached_incarnations_.push_back(view.incarnation(slot));
  }
  MEP_TRY(comm_.world().receive_windows(
      window_, comm_.slots(),
      [&](uint32_t slot) {
        // A newcomer goes on without a member that leaves the view meanwhile.
        return view.incarnation(slot) == 0 ||
               (comm_.world().entering() && comm_.world().view_snapshot().incarnation(slot) == 0);
      },
      deadline, &remotes_));
  const bool any_put = std::any_of(remotes_.begin(), remotes_.end(), [](const Remote& remote) {
    return remote.mapped == nullptr && remote.transport != nullptr;
  });
  staging_rows_ = any_put ? kStagedRows : 1;
  if (shape_.quantizes()) {
    staging_.resize(staging_rows_ * (shape_.wire_row_bytes() + shape_.scale_row_bytes()));
  }
  return MEP_SUCCESS;
}

void EpBuffer::pull_where_mapped() {
  pulls_.assign(shape_.ranks, 0);
  for (uint32_t rank = 0; rank < shape_.ranks; ++rank) pulls_[rank] = maps(rank) ? 1 : 0;
}

// A newcomer whose windows have all come has this one or never will: the object was made while it came.
bool EpBuffer::reach(uint32_t slot, uint64_t incarnation, Remote* remote) const {
  try {
    return try_to_reach(slot, incarnation, remote);
  } catch (const std::bad_alloc&) {
    (void)fail(MEP_ERR_NO_MEMORY, "there is no memory for its windows");
    return false;
  }
}

bool EpBuffer::try_to_reach(uint32_t slot, uint64_t incarnation, Remote* remote) const {
  World& world = comm_.world();
  if (world.has_offered_all(slot, incarnation) && !world.has_offered(slot, *window_)) {
    (void)fail(MEP_ERR_NOT_FOUND, "it joined while the object was made or destroyed");
    return false;
  }
  return world.await_remote(slot, window_, deadline(), remote) == MEP_SUCCESS;
}

// A replaced rank has the same object, made before it came into the view.
void EpBuffer::reach_newcomers(const CommView& view) {
  for (const uint32_t rank : view.live) {
    if (view.incarnations[rank] == reached_incarnations_[rank]) continue;
    if (rank != shape_.rank) {
      if (!reach(comm_.slots()[rank], view.incarnations[rank], &remotes_[rank])) {
        log(LogLevel::kWarn, "rank %u does not take part in an EP object: %s", rank,
            last_error_text());
        continue;
      }
      pulls_[rank] = maps(rank) ? 1 : 0;
    }
    reached_incarnations_[rank] = view.incarnations[rank];
  }
}

void EpBuffer::start(std::shared_ptr<const CommView> view) {
  adopted_ = std::move(view);
  note_members();
  channel_.restart(adopted_->epoch, 0);
}

void EpBuffer::note_members() {
  members_.clear();
  std::fill(is_member_.begin(), is_member_.end(), 0);
  for (const uint32_t rank : adopted_->live) {
    if (adopted_->incarnations[rank] != reached_incarnations_[rank]) continue;
    members_.push_back(rank);
    is_member_[rank] = 1;
  }
}

Deadline EpBuffer::deadline() const {
  return Deadline::after_ms(shape_.timeout_ms != 0 ? shape_.timeout_ms : comm_.timeout_ms());
}

void EpBuffer::begin_operation(Stage stage, EpHandle* handle) {
  stage_ = stage;
  ++begun_;
  current_ = handle;
  op_.epoch = adopted_->epoch;
  op_.seq = ++seq_;
  op_.phase = 0;
  op_.cursor = 0;
  op_.sent = false;
  op_.over = false;
  op_.agreed = false;
  op_.result = MEP_SUCCESS;
  op_.text.clear();
  channel_.enter(op_.seq);
  pending_epoch_.store(op_.epoch, std::memory_order_seq_cst);  // see quiesced()
}

// A report of a change where all ranks must return the same: an operation that sends nothing and has failed, so
// that its receive phase takes part in the round like those of ranks whose operation was cut.
mep_result_t EpBuffer::begin_report(Stage stage, EpHandle* handle, mep_result_t report) {
  begin_operation(stage, handle);
  std::fill(terms_.begin(), terms_.end(), CombineWord::kNone);
  terms_missing_ = false;
  missing_place_ = kNoExpert;
  own_terms_ = nullptr;
  (void)hard_failure(report);
  return MEP_SUCCESS;
}

// This rank's own trouble; the others learn of it by their deadlines.
Step EpBuffer::hard_failure(mep_result_t result) {
  op_.over = true;
  op_.result = result;
  op_.text = last_error_text();
  if (stage_ == Stage::kDispatching) {
    arrange_nothing();
    leave_peers_alone();
  }
  (void)channel_.complete(op_.epoch,
                          op_.seq);  // else the view is changing, and nothing is to settle
  return Step::kFailed;
}

// A peer that cannot be written to any more is the membership's business: its verdict ends the wait. What
// there was no memory for is done again at the next look, until the deadline ends the operation for all.
Step EpBuffer::posting_failure(mep_result_t result) {
  const bool waits = result == MEP_ERR_PEER_FAILED || result == MEP_ERR_NO_MEMORY;
  return waits ? Step::kPending : hard_failure(result);
}

mep_result_t EpBuffer::result_of_operation() const {
  if (is_error(op_.result)) set_last_error_text(op_.text.c_str());
  return op_.result;
}

// With MEP_COMM_UNIFORM all ranks return the gravest result that one of them has. Every operation, and every
// call that reports a view change instead, takes part in one such round on the comm: so its calls stay in step
// on all ranks. If the view changes before a round is done, the change's result is that of the round.
mep_result_t EpBuffer::agree(mep_result_t own, mep_result_t* gravest) {
  constexpr unsigned kCodeShift = 32;
  // An error outweighs MEP_PARTIAL, that outweighs success; the rank behind it only names who.
  const auto grave = [](mep_result_t result) {
    return is_error(result) ? 2 + static_cast<uint64_t>(-result) : static_cast<uint64_t>(result);
  };
  uint64_t most = 0;
  MEP_TRY(comm_.agree_largest(grave(own) << kCodeShift | shape_.rank, &most));
  const uint64_t code = most >> kCodeShift;
  *gravest = own;
  if (code == grave(own)) return MEP_SUCCESS;
  *gravest = code <= 1 ? static_cast<mep_result_t>(code) : -static_cast<mep_result_t>(code - 2);
  if (!is_error(*gravest)) return MEP_SUCCESS;
  (void)fail(*gravest, "rank %u ended this operation with: %s (MEP_COMM_UNIFORM)",
             static_cast<uint32_t>(most), mep_result_string(*gravest));
  return MEP_SUCCESS;
}

void EpBuffer::agree_on_result() {
  if (!uniform() || op_.agreed) return;
  op_.agreed = true;
  const mep_result_t own = op_.result;
  const mep_result_t agreed = agree(own, &op_.result);
  if (agreed != MEP_SUCCESS) {
    op_.result = agreed;
    // The round was ended by a change, which this operation reports.
    if (comm_.last_report() != nullptr) drop_report(comm_.last_report()->epoch);
  }
  if (op_.result != own) op_.text = last_error_text();
}

bool EpBuffer::arrived(EpWord kind, uint64_t use, uint32_t source, uint32_t* payload) const {
  const uint64_t word = load_signal(window_->data(), layout_.word(kind, use, source));
  if (!signal_matches(word, signal_tag(op_.epoch, use))) return false;
  if (payload != nullptr) *payload = signal_payload(word);
  return true;
}

bool EpBuffer::arrived_from_all(EpWord kind, uint64_t use) {
  for (; op_.cursor < members_.size(); ++op_.cursor) {
    if (!arrived(kind, use, members_[op_.cursor])) return false;
  }
  op_.cursor = 0;
  return true;
}

mep_result_t EpBuffer::signal(EpWord kind, uint64_t use, uint32_t target, uint32_t payload) const {
  return remotes_[target].signal(layout_.word(kind, use, shape_.rank),
                                 signal_tag(op_.epoch, use) | payload);
}

// A use that is over without combine: its rows are given back by the start of the next.
mep_result_t EpBuffer::give_back_unused() {
  if (given_back_ || !follows_a_use()) return MEP_SUCCESS;
  for (const uint32_t target : members_) {
    MEP_TRY(
        signal(EpWord::kCombineReady, use_ - 1, target, combine_payload(CombineWord::kNone, 0)));
  }
  given_back_ = true;
  return MEP_SUCCESS;
}

void EpBuffer::flush_puts() const {
  for (const uint32_t rank : members_) remotes_[rank].flush();
}

void EpBuffer::fill_view(mep_ep_view_t* view) const {
  const std::byte* base = window_->data();
  view->flags = 0;
  view->recv_x = base + layout_.recv_x(0);
  view->recv_scales = shape_.has_scales() ? base + layout_.scales(0) : nullptr;
  view->recv_count = recv_count_.data();
  view->src_info = src_info_.data();
  view->layout_range = layout_range_.data();
  view->combine_input = combine_out();
}

// --- What happened --------------------------------------------------------------------------------

void EpBuffer::note_record(const std::vector<uint8_t>& contributed) {
  const size_t words = (size_t{shape_.ranks} + 63) / 64;
  record_.any = true;
  record_.epoch = op_.epoch;
  record_.seq = op_.seq;
  record_.result = op_.result;
  record_.contributors.assign(words, 0);
  record_.failed.assign(words, 0);
  for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
    std::vector<uint64_t>& set = contributed[rank] != 0 ? record_.contributors : record_.failed;
    set[rank / 64] |= uint64_t{1} << (rank % 64);
  }
}

void EpBuffer::fill_status(mep_op_status_t* status) const {
  if (status == nullptr) return;
  *status = {};
  status->version = 1;
  status->result = record_.result;
  status->epoch = record_.epoch;
  status->seq = record_.seq;
  for (size_t word = 0; word < record_.failed.size(); ++word) {
    if (word < 4) status->failed[word] = record_.failed[word];
    status->failed_count += static_cast<uint32_t>(__builtin_popcountll(record_.failed[word]));
  }
}

mep_result_t EpBuffer::last_op(mep_op_info_t* info) const {
  if (!record_.any) {
    return fail(MEP_ERR_NOT_FOUND, "no dispatch or combine has finished on this buffer yet");
  }
  info->flags = MEP_OP_INPUT_INTACT;  // neither writes its input
  info->epoch = record_.epoch;
  info->seq = record_.seq;
  info->result = record_.result;
  bool fits = true;
  const auto copy = [&](uint64_t* to, uint32_t capacity, const std::vector<uint64_t>& from) {
    if (to == nullptr) return;
    for (uint32_t i = 0; i < capacity; ++i) to[i] = i < from.size() ? from[i] : 0;
    fits = fits && capacity >= from.size();
  };
  copy(info->contributors, info->contributors_words, record_.contributors);
  copy(info->failed, info->failed_words, record_.failed);
  if (fits) return MEP_SUCCESS;
  return fail(MEP_ERR_CAPACITY, "a bitmap of this EP object needs %zu words of 64 bits",
              record_.failed.size());
}

}  // namespace mep

#include "core/ep/host/ep_buffer.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/log.hpp"
#include "base/status.hpp"
#include "base/test_delay.hpp"
#include "core/ep/host/ep_drive.hpp"

namespace mep {
namespace {

constexpr size_t kTextBytes = 1024;  // of any error's text

}  // namespace

EpBuffer::Sent::Sent(const EpShape& shape) : router(shape), first_row(shape.columns(), 0) {
  if (!shape.high_throughput()) return;
  const size_t values = size_t{shape.max_tokens} * shape.row_k * shape.top_k;
  topk_idx.resize(values);
  topk_weights.resize(values);
}

EpBuffer::Received::Received(const EpShape& shape)
    : complete(shape.ranks, 0),
      count(shape.local_experts, 0),
      layout_range(size_t{shape.row_groups} * shape.ranks),
      src_info(shape.rows(), 0),
      row_entry(shape.rows(), 0),
      expansion(shape) {
  if (!shape.high_throughput()) return;
  topk_idx.resize(shape.rows() * shape.top_k);
  expert_rows.resize(shape.local_experts);
}

EpBuffer::EpBuffer(Comm& comm, const EpShape& shape, const EpLayout& layout, uint64_t id)
    : comm_(comm),
      shape_(shape),
      layout_(layout),
      windows_(comm.identity()),
      pulls_(shape.ranks, 0),
      engine_(*this, comm.identity(), id),
      is_member_(shape.ranks, 0),
      sent_(shape),
      received_(shape),
      sums_(shape) {
  // Once an operation has begun others wait for it: what it needs from then on is there before.
  op_.text.reserve(kTextBytes);
  op_.waits.reserve(shape.ranks);
  record_.reserve(shape.ranks);
  members_.reserve(shape.ranks);
}

mep_result_t EpBuffer::offer() {
  MEP_TRY(received_.expansion.allocate());
  MEP_TRY(windows_.create(engine_.id(), layout_.bytes()));
  return comm_.world().windows().offer(windows_.own(), comm_.slots());
}

mep_result_t EpBuffer::receive(const CommView& view, const Deadline& deadline) {
  MEP_TRY(windows_.receive(view.incarnations, deadline));
  mapped_bits_.assign(rank_words(shape_.ranks), 0);
  for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
    if (windows_.maps(rank)) add_rank(&mapped_bits_, rank);
  }
  const bool any_put = std::any_of(
      windows_.remotes().begin(), windows_.remotes().end(),
      [](const Remote& remote) { return remote.mapped == nullptr && remote.transport != nullptr; });
  // The network may read rows until the dispatch ends.
  sent_.staging_rows = any_put ? shape_.max_tokens : 1;
  if (shape_.quantizes()) {
    // Its pages are taken as rows need them.
    sent_.staging = std::make_unique_for_overwrite<std::byte[]>(
        sent_.staging_rows * (shape_.wire_row_bytes() + shape_.scale_row_bytes()));
  }
  return MEP_SUCCESS;
}

void EpBuffer::pull_where_mapped() {
  for (uint32_t rank = 0; rank < shape_.ranks; ++rank) set_pulls(rank, windows_.maps(rank));
}

void EpBuffer::start(std::shared_ptr<const CommView> view) {
  engine_.start(std::move(view), 1);
  note_members();
}

void EpBuffer::note_members() {
  const CommView& view = engine_.adopted();
  members_.clear();
  std::fill(is_member_.begin(), is_member_.end(), 0);
  for (const uint32_t rank : view.live) {
    if (!windows_.reaches(rank, view.incarnations[rank])) continue;
    members_.push_back(rank);
    is_member_[rank] = 1;
  }
}

TimeLimit EpBuffer::limit(uint32_t call_ms) const {
  if (call_ms != 0) return {call_ms, "timeout_ms of the call"};
  if (shape_.timeout_ms != 0) return {shape_.timeout_ms, "timeout_ms of mep_ep_config_t"};
  return {comm_.timeout_ms()};
}

void EpBuffer::begin_operation(Stage stage, EpHandle* handle) {
  MEP_TEST_DELAY_POINT("ep number");
  use_.stage = stage;
  use_.handle = handle;
  op_.phase = 0;
  op_.cursor = 0;
  op_.sent = false;
  op_.finished = false;
  op_.agreed = false;
  op_.replays = false;
  op_.has_rows = true;
  op_.overtaken = false;
  op_.result = MEP_SUCCESS;
  op_.text.clear();
  op_.ended_by.reset();
  engine_.give_number(&op_);
  const bool dispatches = stage == Stage::kDispatching;
  op_.flight = comm_.identity().flight().begin(
      {.channel = engine_.id(),
       .epoch = op_.epoch,
       .number = op_.seq,
       .kind = dispatches ? flight::Kind::kDispatch : flight::Kind::kCombine});
  pending_epoch_.store(op_.epoch, std::memory_order_seq_cst);  // see quiesced()
}

// A report of a change where all ranks must return the same: an operation that sends nothing and has failed, so
// that receiving it takes part in the round like that of ranks whose operation was cut.
mep_result_t EpBuffer::begin_report(Stage stage, EpHandle* handle, mep_result_t report,
                                    Reports::Report told) {
  begin_operation(stage, handle);
  op_.ended_by = std::move(told);
  std::fill(sums_.outputs.begin(), sums_.outputs.end(), CombineWord::kNone);
  sums_.missing_place = kNoExpert;
  sums_.own_terms = nullptr;
  (void)hard_failure(report);
  return MEP_SUCCESS;
}

// This rank's own trouble; the others learn of it by their deadlines.
Step EpBuffer::hard_failure(mep_result_t result) {
  op_.finished = true;
  op_.result = result;
  op_.text = last_error_text();
  if (use_.stage == Stage::kDispatching) {
    receive_nothing();
    leave_peers_alone();
  }
  (void)engine_.complete(op_.epoch,
                         op_.seq);  // else the view is changing, and nothing is to settle
  return Step::kFailed;
}

// A peer that cannot be written to any more is the membership's business: its decision ends the wait.
Step EpBuffer::posting_failure(mep_result_t result) {
  return result == MEP_ERR_PEER_FAILED ? Step::kPending : hard_failure(result);
}

mep_result_t EpBuffer::result_of_operation() const {
  if (is_error(op_.result)) set_last_error_text(op_.text.c_str());
  return op_.result;
}

// With MEP_EP_LOSS_UNIFORM all ranks return the gravest result that one of them has. Every operation, and every
// call that reports a view change instead, takes part in one such round on the comm: so its calls stay in step
// on all ranks. If the view changes before a round is done, the change's result is that of the round.
mep_result_t EpBuffer::agree(mep_result_t own, mep_result_t* gravest) {
  constexpr unsigned kCodeShift = 32;
  // An error outweighs success; the rank behind it only names who.
  const auto grave = [](mep_result_t result) { return static_cast<uint64_t>(-result); };
  uint64_t most = 0;
  MEP_TRY(comm_.collectives().agree_largest(grave(own) << kCodeShift | shape_.rank, &most));
  const uint64_t code = most >> kCodeShift;
  *gravest = own;
  if (code == grave(own)) return MEP_SUCCESS;
  *gravest = -static_cast<mep_result_t>(code);
  (void)fail(*gravest, "rank %u ended this operation with: %s (MEP_EP_LOSS_UNIFORM)",
             static_cast<uint32_t>(most), mep_result_string(*gravest));
  return MEP_SUCCESS;
}

void EpBuffer::agree_on_result() {
  if (!uniform() || op_.agreed) return;
  op_.agreed = true;
  const mep_result_t own = op_.result;
  const mep_result_t agreed = agree(own, &op_.result);
  bool is_second = false;
  if (agreed != MEP_SUCCESS) {
    op_.result = agreed;
    // The round was ended by a change, which this operation reports, behind one that it reports already.
    const Reports::Report reported = comm_.collectives().last_report();
    if (reported != nullptr) {
      reports().drop_up_to(reported->epoch);
      is_second = op_.ended_by != nullptr && op_.ended_by->epoch != reported->epoch;
      op_.ended_by = is_second ? both_changes(*op_.ended_by, *reported) : reported;
      if (is_second) set_last_error_text(op_.ended_by->text.c_str());
    }
  }
  if (op_.result != own || is_second) op_.text = last_error_text();
}

bool EpBuffer::arrived(EpWord kind, uint64_t use, uint32_t source, uint32_t* payload) const {
  const uint64_t word = load_signal(windows_.data(), layout_.word(kind, use, source));
  if (!signal_matches(word, signal_tag(op_.epoch, use))) return false;
  if (payload != nullptr) *payload = signal_payload(word);
  return true;
}

bool EpBuffer::arrived_from_all(EpWord kind, uint64_t use) {
  if (op_.waits.measures()) {
    return op_.waits.look(members_, shape_.rank,
                          [&](uint32_t rank) { return arrived(kind, use, rank); });
  }
  for (; op_.cursor < members_.size(); ++op_.cursor) {
    if (!arrived(kind, use, members_[op_.cursor])) return false;
  }
  op_.cursor = 0;
  return true;
}

mep_result_t EpBuffer::signal(EpWord kind, uint64_t use, uint32_t target, uint32_t payload) const {
  return windows_[target].signal(layout_.word(kind, use, shape_.rank),
                                 signal_tag(op_.epoch, use) | payload);
}

// A use that is over without combine: its rows are given back by the start of the next.
mep_result_t EpBuffer::give_back_unused() {
  if (use_.given_back || !follows_a_use()) return MEP_SUCCESS;
  for (const uint32_t target : members_) {
    MEP_TRY(signal(EpWord::kCombineReady, use_.number - 1, target,
                   combine_payload(CombineWord::kNone, 0)));
  }
  use_.given_back = true;
  return MEP_SUCCESS;
}

void EpBuffer::fill_view(mep_ep_view_t* view) const {
  const std::byte* base = windows_.data();
  view->flags = 0;
  view->recv_x = base + layout_.recv_x(0);
  view->recv_scales = shape_.has_scales() ? base + layout_.scales(0) : nullptr;
  view->recv_count = received_.count.data();
  view->src_info = received_.src_info.data();
  view->layout_range = received_.layout_range.data();
  view->combine_input = shape_.has_combine_memory() ? combine_out() : nullptr;
  const bool has_topk = shape_.high_throughput();
  view->recv_topk_idx = has_topk ? received_.topk_idx.data() : nullptr;
  view->token_rows = view->token_topk_idx = view->token_src_info = nullptr;
  view->token_range = nullptr;
  view->recv_topk_weights =
      has_topk ? reinterpret_cast<const float*>(base + layout_.topk_weights(0)) : nullptr;
  if (!shape_.expanded()) return;
  view->token_rows = received_.expansion.slots();
  view->token_topk_idx = view->recv_topk_idx;
  view->token_src_info = view->src_info;
  view->token_range = view->layout_range;
  const bool has_rows = shape_.has_row_memory();
  view->recv_x = has_rows ? received_.expansion.x() : nullptr;
  if (shape_.has_scales()) view->recv_scales = has_rows ? received_.expansion.scales() : nullptr;
  view->src_info = received_.expansion.tokens();
  view->layout_range = received_.expansion.layout_range().data();
  view->combine_input = has_rows ? received_.expansion.y() : nullptr;
  view->recv_topk_idx = nullptr;
  view->recv_topk_weights = received_.expansion.weights();
}

std::shared_ptr<const void> EpBuffer::take_memory() {
  struct Memory {
    std::shared_ptr<Window> window;
    EpExpansion expansion;
    std::vector<int32_t> recv_count, src_info, recv_topk_idx;
    std::vector<mep_range_t> layout_range;
  };
  return std::make_shared<Memory>(Memory{windows_.own(), std::move(received_.expansion),
                                         std::move(received_.count), std::move(received_.src_info),
                                         std::move(received_.topk_idx),
                                         std::move(received_.layout_range)});
}

// --- What happened --------------------------------------------------------------------------------

void EpBuffer::note_record(const std::vector<uint8_t>& contributed) {
  const size_t words = rank_words(shape_.ranks);
  record_.any = true;
  record_.epoch = op_.epoch;
  record_.seq = op_.seq;
  record_.result = op_.result;
  record_.contributors.assign(words, 0);
  record_.failed.assign(words, 0);
  for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
    add_rank(contributed[rank] != 0 ? &record_.contributors : &record_.failed, rank);
  }
  // Whom this rank had not got all of yet may be any; those that went or had not called are the same on all.
  if (op_.ended_by != nullptr) record_.failed = op_.ended_by->missing;
  comm_.identity().flight().end(op_.flight, op_.result, &record_.failed);
}

// The record of a call that only reports a change, which takes no number.
void EpBuffer::note_report(const CommChange& change) {
  record_.any = true;
  record_.epoch = change.epoch;
  record_.seq = 0;
  record_.result = change.result;
  record_.contributors.assign(rank_words(shape_.ranks), 0);
  record_.failed = change.missing;
}

mep_result_t EpBuffer::last_op(mep_op_info_t* info) const {
  if (!record_.any) {
    return fail(MEP_ERR_NOT_FOUND, "no dispatch or combine has finished on this buffer yet");
  }
  return record_.fill(shape_.ranks, info);
}

}  // namespace mep

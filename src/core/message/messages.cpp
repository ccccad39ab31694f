// Calls, and how each ends.
#include "core/message/messages.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/request_event.hpp"
#include "base/status.hpp"
#include "base/test_delay.hpp"
#include "core/operation/operation_record.hpp"

namespace mep {

using State = MessageOperation::State;

Messages::Messages(const CommIdentity& comm, OperationChannel& channel, PeerWindows& windows,
                   uint64_t offset)
    : comm_(comm),
      channel_(channel),
      windows_(windows),
      rings_(comm.rank(), comm.size(), windows, offset),
      peers_(comm.size()) {}

void Messages::open(const CommView& view) {
  epoch_ = view.epoch;
  for (const uint32_t rank : view.live) {
    peers_[rank].incarnation = view.incarnations[rank];
    rings_.begin_pair(rank, comm_.world().identity().incarnation, view.incarnations[rank]);
  }
}

// --- Calls ----------------------------------------------------------------------------------------

// Before any cell is taken: what comes for a receive then goes to its buffer at once.
void Messages::begin(MessageOperation* operation) {
  if (!channel_.undisturbed(epoch_)) [[unlikely]]
    (void)step();
  MEP_TEST_DELAY_POINT("message begins");
  operation->number = ++number_;
  if (comm_.flight().is_on()) [[unlikely]]
    record(operation);
  if (!operation->is_send || !post_at_once(operation)) return queue(operation);
  comm_.flight().end(operation->flight, MEP_SUCCESS);
}

void Messages::record(MessageOperation* operation) const {
  const auto kind = operation->is_send ? flight::Kind::kSend : flight::Kind::kReceive;
  operation->flight = comm_.flight().begin({.channel = 0,
                                            .epoch = epoch_,
                                            .number = operation->number,
                                            .bytes = operation->bytes,
                                            .kind = kind,
                                            .dtype = operation->dtype,
                                            .peer = operation->peer});
}

void Messages::queue(MessageOperation* operation) {
  operation->state = State::kWaiting;
  ++pending_;
  list_of(*operation).add(operation);
  may_post_ = true;
  const mep_result_t ended = comm_.check_world();
  if (ended != MEP_SUCCESS) return end(operation, ended, last_error_text());
  if (!operation->is_send && match_arrived(operation)) return;
  if (can_move(*operation)) [[likely]]
    return;
  // A message that this rank has sent itself may lie in its ring.
  (void)step();
  if (operation->state == State::kWaiting && !can_move(*operation)) end_absent(operation);
}

bool Messages::look(std::span<MessageOperation* const> operations) {
  step_all();
  return std::all_of(operations.begin(), operations.end(),
                     [](const MessageOperation* each) { return each->has_ended(); });
}

bool Messages::test(MessageOperation* operation) {
  (void)step();
  if (!operation->has_ended() && operation->deadline.expired()) end_overdue(operation);
  return operation->has_ended();
}

bool Messages::wait(std::span<MessageOperation* const> operations, const Deadline& deadline) {
  return channel_.wait(deadline, [&] { return look(operations); });
}

void Messages::run(std::span<MessageOperation* const> operations) {
  for (MessageOperation* each : operations) begin(each);
  if (wait(operations, Deadline::after_first_look_ms(comm_.timeout_ms()))) return;
  for (MessageOperation* each : operations) {
    if (!each->has_ended()) end_overdue(each);
  }
}

bool Messages::withdraw_receive(MessageOperation* operation) {
  (void)step();
  if (operation->state != State::kWaiting) return false;
  end(operation, MEP_SUCCESS, "");
  return true;
}

// The rank that is asked about may be gone: then nothing will come.
mep_result_t Messages::probe(int32_t source, int32_t tag, mep_message_t* message, bool* found) {
  step_all();
  MessageOperation asked;
  asked.peer = source;
  asked.tag = tag;
  const auto first = std::find_if(arrived_.begin(), arrived_.end(), [&](const Arrived& each) {
    return asked.fits(each.source, each.header.tag);
  });
  *found = first != arrived_.end();
  if (*found) {
    describe(first->source, first->header, message);
    return MEP_SUCCESS;
  }
  MEP_TRY(comm_.check_world());
  return can_move(asked) ? MEP_SUCCESS : fail_absent(asked);
}

// --- How operations end ---------------------------------------------------------------------------

MessageList& Messages::list_of(const MessageOperation& operation) {
  if (operation.is_send) {
    Peer& peer = peers_[static_cast<uint32_t>(operation.peer)];
    if (operation.state == State::kWaiting) return peer.waiting;
    return operation.state == State::kAnnounced ? peer.announced : peer.moving;
  }
  if (operation.state == State::kWaiting) return receives_;
  return peers_[static_cast<uint32_t>(operation.message.source)].incoming;
}

void Messages::move_to(MessageOperation* operation, State state) {
  list_of(*operation).remove(operation);
  operation->state = state;
  list_of(*operation).add(operation);
  may_post_ = true;
}

void Messages::owe_answer(MessageOperation* operation) {
  ++peers_[static_cast<uint32_t>(operation->message.source)].owed_answers;
  operation->owes_answer = true;
  may_post_ = true;
}

void Messages::forget_answer(MessageOperation* operation) {
  if (!operation->owes_answer) return;
  --peers_[static_cast<uint32_t>(operation->message.source)].owed_answers;
  operation->owes_answer = false;
}

void Messages::end(MessageOperation* operation, mep_result_t result, const char* text) {
  MEP_TEST_DELAY_POINT("message ends");
  list_of(*operation).remove(operation);
  if (is_known_send(*operation)) --peers_[static_cast<uint32_t>(operation->peer)].known_sends;
  if (owes_pulled(*operation)) {
    owe(&peers_[static_cast<uint32_t>(operation->message.source)].dropped, operation->peer_number);
  }
  stop_reading(operation);
  forget_answer(operation);
  if (operation->is_send) {
    stop_sending(operation);
  } else {
    close_target(operation);
  }
  // A peer that still reads the buffer does not take what it finds there from here on for the message.
  if (operation->is_offered && is_error(result)) offered_.withdraw();
  --pending_;
  operation->state = State::kEnded;
  operation->result = result;
  operation->epoch = epoch_;
  comm_.flight().end(operation->flight, result);
  if (is_error(result)) std::snprintf(operation->text, sizeof operation->text, "%s", text);
  ring_event(operation->event);
}

// Its receiver, if it knows of the message, learns that it does not come.
void Messages::end_early(MessageOperation* operation, mep_result_t result, const char* text) {
  if (is_known_send(*operation)) {
    if (was_pulled(operation)) return;
    if (operation->is_whole) return end(operation, MEP_SUCCESS, "");
    Peer& peer = peers_[static_cast<uint32_t>(operation->peer)];
    owe(&peer.verdicts, {CellKind::kGone, operation->number, 0});
  }
  end(operation, result, text);
}

void Messages::end_all(mep_result_t result, const char* text) {
  for_each_pending([&](MessageOperation* each) { end_early(each, result, text); });
}

void Messages::end_overdue(MessageOperation* operation) {
  const WantedMessage wanted(operation->peer, operation->tag);
  (void)fail(
      MEP_ERR_TIMEOUT,
      operation->is_send
          ? "the message to %s was not received in time (MEP_TIMEOUT_MS, mep_comm_set_timeout)"
          : "no whole message of %s has come in time (MEP_TIMEOUT_MS, mep_comm_set_timeout)",
      wanted.text);
  end_early(operation, MEP_ERR_TIMEOUT, last_error_text());
  (void)post_all();  // so that its receiver learns of it
}

bool Messages::can_move(const MessageOperation& operation) const {
  if (operation.peer != MEP_ANY_SOURCE) {
    return peers_[static_cast<uint32_t>(operation.peer)].incarnation != 0;
  }
  const Peer& own = peers_[comm_.rank()];
  const bool sends_itself = own.known_sends != 0 || !own.waiting.empty();
  return comm_.size() == 1 || sends_itself || others_live();
}

bool Messages::others_live() const {
  for (uint32_t rank = 0; rank < comm_.size(); ++rank) {
    if (rank != comm_.rank() && peers_[rank].incarnation != 0) return true;
  }
  return false;
}

mep_result_t Messages::fail_absent(const MessageOperation& operation) const {
  if (operation.peer == MEP_ANY_SOURCE) {
    bool all_left = true;
    for (const Peer& each : peers_) {
      all_left = all_left && (each.incarnation != 0 || each.absence == MEP_ERR_PEER_LEFT);
    }
    return fail(all_left ? MEP_ERR_PEER_LEFT : MEP_ERR_PEER_FAILED,
                "no other rank of comm %s is left to send a message", comm_.name().c_str());
  }
  const Peer& peer = peers_[static_cast<uint32_t>(operation.peer)];
  return fail(peer.absence, "rank %d of comm %s %s", operation.peer, comm_.name().c_str(),
              peer.absence == MEP_ERR_PEER_LEFT ? "has left" : "is not in the view");
}

void Messages::end_absent(MessageOperation* operation) {
  const mep_result_t result = fail_absent(*operation);
  end(operation, result, last_error_text());
}

// --- For people -----------------------------------------------------------------------------------

void Messages::describe(int32_t source, const MessageHeader& header, mep_message_t* message) {
  message->flags = 0;
  message->source = source;
  message->tag = header.tag;
  message->bytes = header.bytes;
  message->dtype = header.dtype;
}

mep_result_t Messages::describe(const MessageOperation& operation, mep_op_info_t* info) const {
  OperationRecord record;
  record.epoch = operation.has_ended() ? operation.epoch : epoch_;
  record.seq = operation.number;
  record.result = operation.has_ended() ? operation.result : MEP_IN_PROGRESS;
  record.contributors.assign(rank_words(comm_.size()), 0);
  record.failed.assign(rank_words(comm_.size()), 0);
  const bool went_well = operation.has_ended() && operation.result == MEP_SUCCESS;
  if (went_well) {
    add_rank(&record.contributors,
             operation.is_send ? comm_.rank() : static_cast<uint32_t>(operation.message.source));
  }
  const bool is_lost =
      operation.result == MEP_ERR_PEER_FAILED || operation.result == MEP_ERR_PEER_LEFT;
  if (operation.has_ended() && is_lost && operation.peer >= 0) {
    add_rank(&record.failed, static_cast<uint32_t>(operation.peer));
  }
  return record.fill(comm_.size(), info);
}

// --- Progress -------------------------------------------------------------------------------------

bool Messages::take_turn() {
  bool moved = false;
  is_cut_ = false;
  for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
    if (!rings_.has_come(rank) || peers_[rank].incarnation == 0) continue;
    moved = take_from(rank) || moved;
    may_post_ = may_post_ || rings_.owes_taken(rank);
  }
  if (reading_.messages != 0) moved = read_turn() || moved;
  if (may_post_) moved = post_all() || moved;
  return moved;
}

bool Messages::step() {
  bool moved = false;
  (void)comm_.world().attempt([&] {
    if (!channel_.undisturbed(epoch_)) [[unlikely]]
      moved = adopt();
    for (uint32_t turn = 0; turn < kTurns; ++turn) {
      moved = take_turn() || moved;
      if (!is_cut_) [[likely]]
        break;
    }
  });
  // A wait comes back at once.
  if (reading_.messages != 0) doorbell_ring_sleepers(comm_.world().doorbell());
  if (pending_ != 0 && comm_.world().terminal_result() != MEP_SUCCESS) [[unlikely]] {
    const mep_result_t ended = comm_.check_world();
    if (ended != MEP_SUCCESS) end_all(ended, last_error_text());
  }
  return moved;
}

void Messages::step_all() {
  step_own();
  PendingComms& others = comm_.world().pending_comms();
  if (others.any_but(own_)) others.step();
}

Progress Messages::progress() {
  Progress progress;
  progress.advanced = step();
  const uint64_t now = pending_ != 0 ? now_ns() : 0;
  for_each_pending([&](MessageOperation* each) {
    const uint64_t due_ns = each->deadline.at_ns(now);
    if (due_ns <= now) return end_overdue(each);
    progress.deadline_ns = std::min(progress.deadline_ns, due_ns);
  });
  progress.pending = pending_ != 0;
  return progress;
}

void Messages::leave_world() {
  // The others may be busy with something else for longer; what they have by then they keep.
  constexpr uint64_t kMostMs = 2'000;
  const auto holds_all = [this](uint32_t rank) {
    const Peer& peer = peers_[rank];
    // A rank that has gone has no ring.
    if (peer.incarnation == 0) return true;
    return peer.verdicts.empty() && (rings_.has_landed(rank) || rings_.all_taken(rank));
  };
  bool owes_any = false;
  for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
    peers_[rank].owes_leaving = !holds_all(rank);
    owes_any = owes_any || peers_[rank].owes_leaving;
  }
  if (!owes_any) return close();
  may_post_ = true;
  const Deadline limit = Deadline::after_ms(std::min<uint64_t>(comm_.timeout_ms(), kMostMs));
  (void)channel_.wait(limit, [&] {
    (void)step();
    if (comm_.world().terminal_result() != MEP_SUCCESS) return true;
    for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
      if (!holds_all(rank)) return false;
    }
    return true;
  });
  close();
}

// While the world goes on, for then whoever does not answer is given up. Once it has ended nobody posts any more.
void Messages::close() {
  if (!is_closed_ && comm_.world().terminal_result() == MEP_SUCCESS) rings_.flush();
  is_closed_ = true;
}

}  // namespace mep

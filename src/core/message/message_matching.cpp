// Cells that came from a peer, and which receive takes a message.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status.hpp"
#include "base/test_delay.hpp"
#include "core/message/messages.hpp"
#include "protocol/types.hpp"

namespace mep {

using State = MessageOperation::State;

// --- Cells ----------------------------------------------------------------------------------------

bool Messages::take_from(uint32_t peer) {
  bool moved = false;
  MessageHeader header;
  for (uint32_t taken = 0; rings_.look(peer, &header); ++taken) {
    if (taken == kCellsInTurn) {
      is_cut_ = true;
      break;
    }
    MEP_TEST_DELAY_POINT("message cell");
    take_cell(peer, header);
    rings_.take(peer, header);
    moved = true;
  }
  if (moved && !rings_.has_landed(peer)) may_be_asked_ = true;
  return moved;
}

void Messages::take_cell(uint32_t peer, const MessageHeader& header) {
  switch (header.kind) {
    case CellKind::kEager:
    case CellKind::kRequest:
      return take_message(peer, header);
    case CellKind::kClear:
      return take_clear(peer, header);
    case CellKind::kData:
      return take_data(peer, header);
    case CellKind::kGone:
      return take_gone(peer, header);
    case CellKind::kPulled:
      return take_pulled(peer, header);
    case CellKind::kConfirmed:
      return take_confirmed(peer, header);
    case CellKind::kLeaving:
      return rings_.ask_taken(peer);
    case CellKind::kSkip:
      return;
  }
  // A cell of no kind: nothing that this library sends.
}

void Messages::take_message(uint32_t peer, const MessageHeader& header) {
  const auto source = static_cast<int32_t>(peer);
  const std::byte* const data = rings_.payload(peer);
  if (offer(source, header, data)) return;
  Arrived arrived{source, header, {}};
  arrived.data.assign(data, data + header.part_bytes);
  arrived_.push_back(std::move(arrived));
}

// The send may have been withdrawn meanwhile; the receiver is told of that.
void Messages::take_clear(uint32_t peer, const MessageHeader& header) {
  MessageOperation* const operation = peers_[peer].announced.find(
      [&](const MessageOperation& each) { return each.number == header.sender; });
  if (operation == nullptr) return;
  operation->peer_number = header.receiver;
  MessageTarget target;
  if (header.part_bytes == sizeof target) {
    std::memcpy(&target, rings_.payload(peer), sizeof target);
  }
  operation->target = target.number;
  move_to(operation, State::kMoving);
}

// Its receive may be over.
void Messages::take_data(uint32_t peer, const MessageHeader& header) {
  MessageOperation* const operation = peers_[peer].incoming.find([&](const MessageOperation& each) {
    return each.number == header.receiver && each.peer_number == header.sender;
  });
  if (operation == nullptr) return;
  if (header.part_bytes > operation->message.bytes - operation->moved_bytes) return;
  if (header.part_bytes == 0 && operation->target != 0) {
    operation->moved_bytes = operation->message.bytes;
  } else {
    std::memcpy(operation->to + operation->moved_bytes, rings_.payload(peer), header.part_bytes);
    operation->moved_bytes += header.part_bytes;
  }
  if (operation->moved_bytes == operation->message.bytes) end(operation, MEP_SUCCESS, "");
}

void Messages::take_gone(uint32_t peer, const MessageHeader& header) {
  const auto known = std::find_if(arrived_.begin(), arrived_.end(), [&](const Arrived& each) {
    return each.source == static_cast<int32_t>(peer) && each.header.sender == header.sender &&
           each.header.kind == CellKind::kRequest;
  });
  if (known != arrived_.end()) {
    arrived_.erase(known);
    return;
  }
  MessageOperation* const operation = peers_[peer].incoming.find(
      [&](const MessageOperation& each) { return each.peer_number == header.sender; });
  if (operation != nullptr) wait_again(operation);
}

// The message that it had taken does not come.
void Messages::wait_again(MessageOperation* operation) {
  stop_reading(operation);
  close_target(operation);
  forget_answer(operation);
  operation->pull = MessageOperation::Pull::kNone;
  move_to(operation, State::kWaiting);
  operation->message = {};
  if (!match_arrived(operation) && !can_move(*operation)) end_absent(operation);
}

// --- Matching -------------------------------------------------------------------------------------

// Whether a message takes care of the receive, which may have ended by it.
bool Messages::match_arrived(MessageOperation* operation) {
  const auto fitting = std::find_if(arrived_.begin(), arrived_.end(), [&](const Arrived& each) {
    return operation->fits(each.source, each.header.tag);
  });
  if (fitting == arrived_.end()) return false;
  if (accept(operation, fitting->source, fitting->header, fitting->data.data())) {
    arrived_.erase(fitting);
  }
  return true;
}

// To the receives, in the order of their calls. False: no one has taken it.
bool Messages::offer(int32_t source, const MessageHeader& header, const std::byte* data) {
  for (MessageOperation* each = receives_.first(); each != nullptr;) {
    MessageOperation* const behind = each->behind;
    if (each->fits(source, header.tag) && accept(each, source, header, data)) return true;
    each = behind;
  }
  return false;
}

// False: it does not go into the receive's buffer, and the receive has ended.
bool Messages::accept(MessageOperation* operation, int32_t source, const MessageHeader& header,
                      const std::byte* data) {
  describe(source, header, &operation->message);
  if (header.dtype != operation->dtype) {
    (void)fail(MEP_ERR_MISMATCH,
               "the message of rank %d with tag %d has type %s, the receive has type %s; the "
               "message stays",
               source, header.tag, type_facts(header.dtype).name,
               type_facts(operation->dtype).name);
    end(operation, MEP_ERR_MISMATCH, last_error_text());
    return false;
  }
  if (header.bytes > operation->bytes) {
    (void)fail(MEP_ERR_CAPACITY,
               "the message of rank %d with tag %d has %llu bytes, the receive has room for %llu; "
               "the message stays",
               source, header.tag, static_cast<unsigned long long>(header.bytes),
               static_cast<unsigned long long>(operation->bytes));
    end(operation, MEP_ERR_CAPACITY, last_error_text());
    return false;
  }
  if (header.kind == CellKind::kEager) {
    if (header.bytes != 0) std::memcpy(operation->to, data, header.bytes);
    end(operation, MEP_SUCCESS, "");
    return true;
  }
  operation->peer_number = header.sender;
  operation->moved_bytes = 0;
  move_to(operation, State::kMoving);
  if (!begin_reading(operation, header, data)) owe_answer(operation);
  return true;
}

}  // namespace mep

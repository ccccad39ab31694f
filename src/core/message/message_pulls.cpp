// Large messages in one copy: the receiver reads them in the memory of the sender.
//
// Both sides agree about each message, however a send ends early, and whoever is stopped in between:
//   - The receiver reads all, posts "pulled", then looks at the sender's word. If that is unchanged the receive has
//     succeeded.
//   - A send that ends early changes the word, then looks for a "pulled" among the cells that have come. If there is one,
//     it has succeeded.
// So either the receiver finds the word changed, or the sender finds the "pulled" (fences in shows() and hide()). A
// receiver that finds the word changed waits for the sender's verdict about this message: "confirmed" or "gone". The
// sender confirms every "pulled" that ends a send.
//
// A word that is found also shows that the sender's process lived all the time: see peer_memory.hpp. So does a verdict.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/peer_memory.hpp"
#include "base/test_delay.hpp"
#include "core/message/messages.hpp"

namespace mep {

using State = MessageOperation::State;
using Pull = MessageOperation::Pull;

// --- The sender -----------------------------------------------------------------------------------

// Only then "pulled" and the word have an order.
bool Messages::reads(uint32_t rank) const {
  const Remote& remote = windows_[rank];
  return remote.mapped != nullptr && remote.readable_pid != 0 && !peers_[rank].is_barred;
}

// A rank that cannot read its peer is taken for one that its peer cannot read.
bool Messages::offer_memory(const MessageOperation& operation, MessageMemory* memory) {
  return operation.bytes >= kLeastPulled && reads(static_cast<uint32_t>(operation.peer)) &&
         offered_.offer(operation.from, memory);
}

// Before a send ends early. True: its receiver has read it, and it has ended well.
bool Messages::was_pulled(MessageOperation* operation) {
  if (!operation->is_offered) return false;
  offered_.withdraw();
  MEP_TEST_DELAY_POINT("message withdrawn");
  MessageHeader header;
  const bool is_pulled =
      rings_.find(static_cast<uint32_t>(operation->peer), &header, [&](const MessageHeader& each) {
        return each.kind == CellKind::kPulled && each.sender == operation->number;
      });
  if (is_pulled) end_pulled(operation, header.receiver);
  return is_pulled;
}

void Messages::end_pulled(MessageOperation* operation, uint64_t receiver) {
  Peer& peer = peers_[static_cast<uint32_t>(operation->peer)];
  owe(&peer.verdicts, {CellKind::kConfirmed, operation->number, receiver});
  end(operation, MEP_SUCCESS, "");
}

// The send may have been withdrawn meanwhile; the receiver is told of that.
void Messages::take_pulled(uint32_t peer, const MessageHeader& header) {
  MessageOperation* const operation = peers_[peer].announced.find(
      [&](const MessageOperation& each) { return each.number == header.sender; });
  if (operation != nullptr) end_pulled(operation, header.receiver);
}

// --- The receiver ---------------------------------------------------------------------------------

// False: the data is to come in cells.
bool Messages::begin_reading(MessageOperation* operation, const MessageHeader& header,
                             const std::byte* data) {
  const auto rank = static_cast<uint32_t>(operation->message.source);
  Peer& peer = peers_[rank];
  const bool is_own = rank == comm_.rank();
  if (!is_own && (header.part_bytes != sizeof operation->memory || !reads(rank))) return false;
  if (!is_own) std::memcpy(&operation->memory, data, sizeof operation->memory);
  operation->pull = Pull::kReading;
  ++peer.reading;
  ++reading_.messages;
  return true;
}

void Messages::stop_reading(MessageOperation* operation) {
  if (operation->pull != Pull::kReading) return;
  --peers_[static_cast<uint32_t>(operation->message.source)].reading;
  --reading_.messages;
  operation->pull = Pull::kNone;
}

// A part of one message, of the peers by turns.
bool Messages::read_turn() {
  while (peers_[reading_.next].reading == 0) reading_.next = (reading_.next + 1) % comm_.size();
  const uint32_t rank = reading_.next;
  reading_.next = (reading_.next + 1) % comm_.size();
  read_part(rank);
  is_cut_ = is_cut_ || reading_.messages != 0;
  return true;
}

void Messages::read_part(uint32_t rank) {
  MessageOperation* const operation = peers_[rank].incoming.find(
      [](const MessageOperation& each) { return each.pull == Pull::kReading; });
  MEP_TEST_DELAY_POINT("message read");
  const size_t part =
      std::min<uint64_t>(kReadInTurn, operation->message.bytes - operation->moved_bytes);
  if (rank == comm_.rank()) return copy_own_part(operation, part);
  errno = 0;
  const size_t got =
      read_peer_memory(windows_[rank].readable_pid, operation->memory.data + operation->moved_bytes,
                       operation->to + operation->moved_bytes, part);
  if (got != part) {
    peers_[rank].is_barred = errno == EPERM || errno == ENOSYS;
    stop_reading(operation);
    operation->moved_bytes = 0;
    return owe_answer(operation);
  }
  operation->moved_bytes += part;
  if (operation->moved_bytes != operation->message.bytes) return;
  stop_reading(operation);
  operation->pull = Pull::kRead;
  owe_answer(operation);
}

// Where the send has ended, "gone" is on its way.
void Messages::copy_own_part(MessageOperation* operation, size_t bytes) {
  MessageOperation* const send = peers_[comm_.rank()].announced.find(
      [&](const MessageOperation& each) { return each.number == operation->peer_number; });
  if (send == nullptr) return;
  std::memcpy(operation->to + operation->moved_bytes, send->from + operation->moved_bytes, bytes);
  operation->moved_bytes += bytes;
  if (operation->moved_bytes != operation->message.bytes) return;
  stop_reading(operation);
  end(send, MEP_SUCCESS, "");
  end(operation, MEP_SUCCESS, "");
}

// "Pulled" is posted.
void Messages::settle(uint32_t rank, MessageOperation* operation) {
  operation->pull = Pull::kAnswered;
  MEP_TEST_DELAY_POINT("message pulled");
  const MessageMemory& memory = operation->memory;
  if (!shows(windows_[rank].readable_pid, memory.word_at, memory.word)) return;
  // Relaxed: a count.
  pulled_messages.fetch_add(1, std::memory_order_relaxed);
  end(operation, MEP_SUCCESS, "");
}

void Messages::take_confirmed(uint32_t peer, const MessageHeader& header) {
  MessageOperation* const operation = peers_[peer].incoming.find([&](const MessageOperation& each) {
    return each.number == header.receiver && each.peer_number == header.sender &&
           each.pull == Pull::kAnswered;
  });
  if (operation == nullptr) return;
  // Relaxed: a count.
  pulled_messages.fetch_add(1, std::memory_order_relaxed);
  end(operation, MEP_SUCCESS, "");
}

}  // namespace mep

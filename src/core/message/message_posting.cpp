// Writes to peers, a cell at a time.
#include <algorithm>

#include "base/test_delay.hpp"
#include "core/message/messages.hpp"

namespace mep {

using State = MessageOperation::State;

namespace {

// The header of a send's cell.
MessageHeader header_of(const MessageOperation& operation, CellKind kind) {
  MessageHeader header;
  header.kind = kind;
  header.tag = operation.tag;
  header.bytes = operation.bytes;
  header.sender = operation.number;
  header.dtype = operation.dtype;
  return header;
}

}  // namespace

// A message that fits a cell, where there is room and nothing waits before it: then it has ended. False: nothing
// was posted, and it is for the queue to find out why.
bool Messages::post_at_once(MessageOperation* operation) {
  const auto rank = static_cast<uint32_t>(operation->peer);
  const Peer& peer = peers_[rank];
  if (operation->bytes > rings_.eager_bytes(rank) || peer.incarnation == 0 || peer.has_posts()) {
    return false;
  }
  if (comm_.world().terminal_result() != MEP_SUCCESS || !rings_.has_room(rank)) return false;
  bool is_posted = false;
  (void)comm_.world().attempt([&] {
    const PostingScope scope = channel_.posting(epoch_);
    MEP_TEST_DELAY_POINT("message post");
    is_posted = scope.allowed() && post_eager(rank, *operation);
  });
  if (!is_posted) return false;
  MEP_TEST_DELAY_POINT("message ends");
  operation->state = State::kEnded;
  operation->result = MEP_SUCCESS;
  operation->epoch = epoch_;
  return true;
}

bool Messages::post_all() {
  bool moved = false;
  bool is_left = false;
  for (uint32_t peer = 0; peer < peers_.size(); ++peer) {
    if (peers_[peer].incarnation == 0 || !owes_posts(peer)) continue;
    (void)comm_.world().attempt([&] { moved = post_to(peer) || moved; });
    is_left = is_left || owes_posts(peer);
  }
  may_post_ = is_left;
  return moved;
}

// The errors of single postings are not the caller's: what is lost ends by the view change that follows.
bool Messages::post_to(uint32_t peer) {
  const PostingScope scope = channel_.posting(epoch_);
  bool moved = false;
  if (rings_.owes_taken(peer) && scope.allowed()) moved = rings_.tell_taken(peer) == MEP_SUCCESS;
  for (uint32_t posted = 0; rings_.has_room(peer) && scope.allowed(); ++posted) {
    if (posted == kCellsInTurn) {
      is_cut_ = true;
      break;
    }
    MEP_TEST_DELAY_POINT("message post");
    if (!post_next(peer)) break;
    moved = true;
  }
  return moved;
}

// Answers first, or both sides might wait for room for what they begin. False: nothing was posted.
bool Messages::post_next(uint32_t rank) {
  Peer& peer = peers_[rank];
  if (!peer.verdicts.empty()) return post_verdict(rank);
  if (peer.owed_answers != 0) return post_answer(rank);
  if (!peer.dropped.empty()) return post_dropped(rank);
  if (!peer.waiting.empty()) return post_waiting(rank);
  if (!peer.moving.empty()) return post_part(rank);
  return peer.owes_leaving && post_leaving(rank);
}

bool Messages::post_verdict(uint32_t rank) {
  Peer& peer = peers_[rank];
  const Verdict& verdict = peer.verdicts.back();
  MessageHeader header;
  header.kind = verdict.kind;
  header.sender = verdict.sender;
  header.receiver = verdict.receiver;
  if (rings_.post(rank, header, nullptr) != MEP_SUCCESS) return false;
  peer.verdicts.pop_back();
  return true;
}

// The message is lost, and its send ends well.
bool Messages::post_dropped(uint32_t rank) {
  Peer& peer = peers_[rank];
  MessageHeader header;
  header.kind = CellKind::kPulled;
  header.sender = peer.dropped.back();
  if (rings_.post(rank, header, nullptr) != MEP_SUCCESS) return false;
  peer.dropped.pop_back();
  return true;
}

bool Messages::post_answer(uint32_t rank) {
  MessageOperation* const operation =
      peers_[rank].incoming.find([](const MessageOperation& each) { return each.owes_answer; });
  MessageHeader header;
  const bool is_read = operation->pull == MessageOperation::Pull::kRead;
  header.kind = is_read ? CellKind::kPulled : CellKind::kClear;
  header.sender = operation->peer_number;
  header.receiver = operation->number;
  MessageTarget target;
  if (!is_read && open_target(rank, operation)) {
    target.number = operation->target;
    header.part_bytes = sizeof target;
  }
  if (rings_.post(rank, header, reinterpret_cast<const std::byte*>(&target)) != MEP_SUCCESS) {
    return false;
  }
  forget_answer(operation);
  if (is_read) settle(rank, operation);
  return true;
}

bool Messages::post_leaving(uint32_t rank) {
  MessageHeader header;
  header.kind = CellKind::kLeaving;
  if (rings_.post(rank, header, nullptr) != MEP_SUCCESS) return false;
  peers_[rank].owes_leaving = false;
  return true;
}

bool Messages::post_eager(uint32_t rank, const MessageOperation& operation) {
  if (!rings_.make_room(rank, operation.bytes)) return false;
  MessageHeader header = header_of(operation, CellKind::kEager);
  header.part_bytes = static_cast<uint32_t>(operation.bytes);
  return rings_.post(rank, header, operation.from) == MEP_SUCCESS;
}

bool Messages::post_waiting(uint32_t rank) {
  Peer& peer = peers_[rank];
  MessageOperation* const operation = peer.waiting.first();
  if (operation->bytes <= rings_.eager_bytes(rank)) {
    if (!post_eager(rank, *operation)) return false;
    end(operation, MEP_SUCCESS, "");
    return true;
  }
  MessageHeader header = header_of(*operation, CellKind::kRequest);
  MessageMemory memory;
  operation->is_offered = offer_memory(*operation, &memory);
  if (operation->is_offered) header.part_bytes = sizeof memory;
  if (rings_.post(rank, header, reinterpret_cast<const std::byte*>(&memory)) != MEP_SUCCESS) {
    return false;
  }
  ++peer.known_sends;
  move_to(operation, State::kAnnounced);
  return true;
}

bool Messages::post_part(uint32_t rank) {
  MessageOperation* const operation = peers_[rank].moving.first();
  const bool is_put = operation->moved_bytes == operation->bytes;
  if (operation->target != 0 && (!is_put || operation->is_whole)) return put_part(rank, operation);
  MessageHeader header = header_of(*operation, CellKind::kData);
  header.receiver = operation->peer_number;
  header.part_bytes = static_cast<uint32_t>(
      std::min<uint64_t>(rings_.room_bytes(rank), operation->bytes - operation->moved_bytes));
  const std::byte* const part = operation->from + operation->moved_bytes;
  if (rings_.post(rank, header, part) != MEP_SUCCESS) return false;
  operation->moved_bytes += header.part_bytes;
  operation->is_whole = operation->moved_bytes == operation->bytes;
  if (operation->is_whole && (operation->target == 0 || is_sent(operation)))
    end(operation, MEP_SUCCESS, "");
  return true;
}

}  // namespace mep

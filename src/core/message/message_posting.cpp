// What this rank writes to its peers, a cell at a time.
#include <algorithm>
#include <new>

#include "base/test_delay.hpp"
#include "core/message/messages.hpp"

namespace mep {

using State = MessageOperation::State;

bool Messages::post_all() {
  bool moved = false;
  for (uint32_t peer = 0; peer < peers_.size(); ++peer) {
    if (peers_[peer].incarnation == 0) continue;
    if (peers_[peer].has_posts() || rings_.owes_taken(peer)) moved = post_to(peer) || moved;
  }
  return moved;
}

// The errors of single postings are not the caller's: what is lost ends by the view change that follows.
bool Messages::post_to(uint32_t peer) {
  // Then others have their turn.
  constexpr uint32_t kMost = 64;
  const PostingScope scope = channel_.posting(epoch_);
  bool moved = false;
  if (rings_.owes_taken(peer) && scope.allowed()) moved = rings_.tell_taken(peer) == MEP_SUCCESS;
  try {
    for (uint32_t posted = 0; posted < kMost && rings_.has_room(peer) && scope.allowed();
         ++posted) {
      MEP_TEST_DELAY_POINT("message post");
      if (!post_next(peer)) break;
      moved = true;
    }
  } catch (const std::bad_alloc&) {
    return moved;  // posted at a later look
  }
  return moved;
}

// Answers first, or both sides might wait for room for what they begin. False: nothing was posted.
bool Messages::post_next(uint32_t rank) {
  Peer& peer = peers_[rank];
  if (!peer.gone.empty()) return post_gone(rank);
  if (peer.owed_clears != 0) return post_clear(rank);
  if (!peer.waiting.empty()) return post_waiting(rank);
  if (!peer.moving.empty()) return post_part(rank);
  return peer.owes_leaving && post_leaving(rank);
}

bool Messages::post_gone(uint32_t rank) {
  Peer& peer = peers_[rank];
  MessageHeader header;
  header.kind = CellKind::kGone;
  header.sender = peer.gone.back();
  if (rings_.post(rank, header, nullptr) != MEP_SUCCESS) return false;
  peer.gone.pop_back();
  return true;
}

bool Messages::post_clear(uint32_t rank) {
  MessageOperation* const operation =
      peers_[rank].incoming.find([](const MessageOperation& each) { return each.owes_clear; });
  MessageHeader header;
  header.kind = CellKind::kClear;
  header.sender = operation->peer_number;
  header.receiver = operation->number;
  if (rings_.post(rank, header, nullptr) != MEP_SUCCESS) return false;
  forget_clear(operation);
  return true;
}

bool Messages::post_leaving(uint32_t rank) {
  MessageHeader header;
  header.kind = CellKind::kLeaving;
  if (rings_.post(rank, header, nullptr) != MEP_SUCCESS) return false;
  peers_[rank].owes_leaving = false;
  return true;
}

bool Messages::post_waiting(uint32_t rank) {
  Peer& peer = peers_[rank];
  MessageOperation* const operation = peer.waiting.first();
  const bool is_eager = operation->bytes <= rings_.payload_bytes();
  MessageHeader header;
  header.kind = is_eager ? CellKind::kEager : CellKind::kRequest;
  header.tag = operation->tag;
  header.bytes = operation->bytes;
  header.sender = operation->number;
  header.dtype = operation->dtype;
  if (is_eager) header.part_bytes = static_cast<uint32_t>(operation->bytes);
  // For all that may be withdrawn, which must not need memory.
  if (!is_eager) peer.gone.reserve(peer.gone.size() + peer.known_sends + 1);
  if (rings_.post(rank, header, operation->from) != MEP_SUCCESS) return false;
  if (is_eager) {
    end(operation, MEP_SUCCESS, "");
  } else {
    ++peer.known_sends;
    move_to(operation, State::kAnnounced);
  }
  return true;
}

bool Messages::post_part(uint32_t rank) {
  MessageOperation* const operation = peers_[rank].moving.first();
  MessageHeader header;
  header.kind = CellKind::kData;
  header.tag = operation->tag;
  header.bytes = operation->bytes;
  header.sender = operation->number;
  header.receiver = operation->peer_number;
  header.dtype = operation->dtype;
  header.part_bytes = static_cast<uint32_t>(
      std::min<uint64_t>(rings_.payload_bytes(), operation->bytes - operation->moved_bytes));
  const std::byte* const part = operation->from + operation->moved_bytes;
  if (rings_.post(rank, header, part) != MEP_SUCCESS) return false;
  operation->moved_bytes += header.part_bytes;
  if (operation->moved_bytes == operation->bytes) end(operation, MEP_SUCCESS, "");
  return true;
}

}  // namespace mep

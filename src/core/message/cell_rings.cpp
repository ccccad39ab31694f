#include "core/message/cell_rings.hpp"

#include <cstring>

#include "base/status.hpp"

namespace mep {
namespace {

// Nothing waits to be sent: so the network takes most of what is put at once, and copies the rest when it is asked to.
bool is_idle(const Remote& remote) {
  Completion completion;
  return !remote.transport->traits().needs_registration &&
         remote.transport->completion(remote.slot, false, &completion) == MEP_SUCCESS &&
         completion.completed == completion.posted;
}

}  // namespace

CellRings::CellRings(uint32_t rank, uint32_t ranks, const PeerWindows& windows, uint64_t offset)
    : rank_(rank),
      windows_(windows),
      offset_(offset),
      layout_(MessageLayout::of(ranks)),
      pairs_(ranks),
      awaited_(ranks) {}

void CellRings::begin_pair(uint32_t peer, uint64_t own_incarnation, uint64_t peer_incarnation) {
  Pair& pair = pairs_[peer];
  pair.out = message_pair(own_incarnation, peer_incarnation);
  pair.in = message_pair(peer_incarnation, own_incarnation);
  pair.posted = pair.passed = pair.taken = pair.told = 0;
  pair.is_asked = false;
  await_next(peer);
}

// --- Out ------------------------------------------------------------------------------------------

void CellRings::look_for_taken(uint32_t peer) {
  Pair& pair = pairs_[peer];
  const uint64_t word = load_signal(windows_.data(), offset_ + layout_.taken_offset(peer));
  if (!is_of_pair(word, pair.out)) return;
  const uint32_t count = message_count(word);
  // A count that cannot be is not believed.
  if (pair.posted - count <= pair.posted - pair.passed) pair.passed = count;
}

bool CellRings::has_room(uint32_t peer) {
  const Pair& pair = pairs_[peer];
  if (pair.posted - pair.passed < layout_.cells) return true;
  look_for_taken(peer);
  return pair.posted - pair.passed < layout_.cells;
}

uint32_t CellRings::free_places(uint32_t peer) {
  look_for_taken(peer);
  return layout_.cells - (pairs_[peer].posted - pairs_[peer].passed);
}

size_t CellRings::room_bytes(uint32_t peer) {
  if (windows_[peer].mapped != nullptr) return layout_.payload_bytes();
  const uint32_t to_end = layout_.places_to_end(pairs_[peer].posted);
  return layout_.payload_bytes(std::min({free_places(peer), to_end, layout_.cells / 2}));
}

bool CellRings::make_room(uint32_t peer, size_t bytes) {
  const uint32_t places = layout_.places(bytes);
  if (places == 1) return has_room(peer);
  const uint32_t to_end = layout_.places_to_end(pairs_[peer].posted);
  if (to_end < places) {
    if (free_places(peer) < to_end) return false;
    MessageHeader skip;
    skip.kind = CellKind::kSkip;
    skip.part_bytes = static_cast<uint32_t>(layout_.payload_bytes(to_end));
    if (post(peer, skip, nullptr) != MEP_SUCCESS) return false;
  }
  return free_places(peer) >= places;
}

bool CellRings::all_taken(uint32_t peer) {
  look_for_taken(peer);
  return pairs_[peer].passed == pairs_[peer].posted;
}

mep_result_t CellRings::post(uint32_t peer, const MessageHeader& header, const std::byte* payload) {
  Pair& pair = pairs_[peer];
  const Remote& remote = windows_[peer];
  const uint64_t at = offset_ + layout_.cell_offset(rank_, pair.posted);
  bool is_lent = false;  // the payload is put from the caller's memory
  const size_t bytes = header.kind == CellKind::kSkip ? 0 : header.part_bytes;
  if (remote.mapped != nullptr) {
    MEP_TRY(remote.put(at + MessageLayout::kHeaderOffset, &header, sizeof header));
    MEP_TRY(remote.put(at + MessageLayout::kPayloadOffset, payload, bytes));
  } else if (bytes > layout_.payload_bytes() && is_idle(remote)) {
    MEP_TRY(remote.put(at + MessageLayout::kHeaderOffset, &header, sizeof header));
    MEP_TRY(remote.put(at + MessageLayout::kPayloadOffset, payload, bytes));
    is_lent = true;
  } else {
    if (pair.mirror.empty()) pair.mirror.resize(layout_.ring_bytes());
    std::byte* const copy = pair.mirror.data() + layout_.place(pair.posted);
    std::memcpy(copy + MessageLayout::kHeaderOffset, &header, sizeof header);
    if (bytes != 0) std::memcpy(copy + MessageLayout::kPayloadOffset, payload, bytes);
    MEP_TRY(remote.put(at + MessageLayout::kHeaderOffset, copy + MessageLayout::kHeaderOffset,
                       sizeof header + bytes));
  }
  const mep_result_t told = remote.signal(at, message_word(pair.out, pair.posted + 1));
  if (is_lent) remote.flush();
  MEP_TRY(told);
  pair.posted += layout_.places(header.part_bytes);
  return MEP_SUCCESS;
}

void CellRings::flush() const {
  for (uint32_t peer = 0; peer < pairs_.size(); ++peer) {
    if (!pairs_[peer].mirror.empty()) windows_[peer].flush();
  }
}

// --- In -------------------------------------------------------------------------------------------

void CellRings::read_header(const std::byte* cell, uint32_t count, MessageHeader* header) const {
  std::memcpy(header, cell + MessageLayout::kHeaderOffset, sizeof *header);
  const bool has_whole = header->kind != CellKind::kEager || header->bytes == header->part_bytes;
  const bool fits = layout_.places(header->part_bytes) <= layout_.places_to_end(count);
  if (!fits || !has_whole) *header = {};
}

// Once the word has been seen nobody but this rank's take() lets the source write the cell again.
bool CellRings::look(uint32_t peer, MessageHeader* header) const {
  if (!has_come(peer)) return false;
  read_header(awaited_[peer].cell, pairs_[peer].taken, header);
  return true;
}

mep_result_t CellRings::tell_taken(uint32_t peer) {
  Pair& pair = pairs_[peer];
  MEP_TRY(windows_[peer].signal(offset_ + layout_.taken_offset(rank_),
                                message_word(pair.in, pair.taken)));
  pair.told = pair.taken;
  pair.is_asked = false;
  return MEP_SUCCESS;
}

}  // namespace mep

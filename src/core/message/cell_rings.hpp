// The rings of cells between this rank and each other one: posting cells to a peer, and taking those that came.
//
// Posted cells lie in the peer's window, cells to take in this rank's own (protocol/message_cells.hpp). A cell is
// written again only once the peer has said that it was taken. To a peer whose window is not mapped a cell is put
// from a mirror of its ring here, which stays as it is until then: so what a caller gives is free when post()
// returns. There a cell may have several places, for each put has its price.
//
// All by the user's thread. Functions that write to a peer (post, tell_taken) are called inside a PostingScope.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/operation/peer_windows.hpp"
#include "protocol/message_cells.hpp"

namespace mep {

class CellRings {
 public:
  // `windows` has all that MessageLayout says from `offset` on, and outlives this object.
  CellRings(uint32_t rank, uint32_t ranks, const PeerWindows& windows, uint64_t offset);

  // From here on the peer is the one of these incarnations, and nothing was exchanged with it.
  void begin_pair(uint32_t peer, uint64_t own_incarnation, uint64_t peer_incarnation);
  // A message of so many bytes is posted whole.
  size_t eager_bytes(uint32_t peer) const {
    if (windows_[peer].mapped != nullptr) return layout_.payload_bytes();
    return std::min(kMostEager, layout_.most_payload_bytes());
  }

  // --- Out ---
  // For a cell of one place.
  bool has_room(uint32_t peer);
  // The payload for which the next cell has room, with room for one.
  size_t room_bytes(uint32_t peer);
  // For so many bytes, at most eager_bytes(); perhaps it has skipped the end of the ring. Inside a PostingScope.
  bool make_room(uint32_t peer, size_t bytes);
  // With room; the header's part_bytes of payload.
  [[nodiscard]] mep_result_t post(uint32_t peer, const MessageHeader& header,
                                  const std::byte* payload);
  // The peer has taken all that was posted, as far as this rank knows.
  bool all_taken(uint32_t peer);
  // Posted cells are in the peer's memory, whatever happens to this rank.
  bool has_landed(uint32_t peer) const {
    const Remote& remote = windows_[peer];
    return remote.mapped != nullptr || remote.transport->traits().lands_at_once;
  }
  // Nothing is read from the mirrors any more.
  void flush() const;

  // --- In ---
  // Whether the next cell of the peer has come; also of one that has none here, for which it means nothing.
  bool has_come(uint32_t peer) const {
    const Awaited& awaited = awaited_[peer];
    return awaited.cell != nullptr && load_signal(awaited.cell, 0) == awaited.word;
  }
  // Its header, if so. A cell that makes no sense has no kind.
  bool look(uint32_t peer, MessageHeader* header) const;
  // The header of the first cell that has come and was not taken, from the next one on, for which `condition` is true.
  // False: there is none.
  template <typename Condition>
  bool find(uint32_t peer, MessageHeader* header, Condition&& condition) const {
    const Pair& pair = pairs_[peer];
    for (uint32_t count = pair.taken; count - pair.taken < layout_.cells;) {
      const std::byte* const cell = windows_.data() + offset_ + layout_.cell_offset(peer, count);
      if (load_signal(cell, 0) != message_word(pair.in, count + 1)) return false;
      read_header(cell, count, header);
      if (condition(*header)) return true;
      count += layout_.places(header->part_bytes);
    }
    return false;
  }
  const std::byte* payload(uint32_t peer) const {
    return awaited_[peer].cell + MessageLayout::kPayloadOffset;
  }
  // The cell that was looked at may be written again.
  void take(uint32_t peer, const MessageHeader& header) {
    Pair& pair = pairs_[peer];
    ++pair.taken;
    for (uint32_t more = layout_.places(header.part_bytes) - 1; more != 0; --more) {
      zero_signal(windows_.data(), offset_ + layout_.cell_offset(peer, pair.taken++));
    }
    await_next(peer);
  }
  // So many are taken that the peer should know.
  bool owes_taken(uint32_t peer) const {
    const Pair& pair = pairs_[peer];
    return pair.taken - pair.told >= layout_.cells / 4 || pair.is_asked;
  }
  // The peer wants to know at once.
  void ask_taken(uint32_t peer) { pairs_[peer].is_asked = true; }
  [[nodiscard]] mep_result_t tell_taken(uint32_t peer);

 private:
  struct Pair {
    uint32_t out = 0;     // names this rank's cells to the peer
    uint32_t in = 0;      // and the peer's to this rank
    uint32_t posted = 0;  // cells
    uint32_t passed = 0;  // of these, the peer has taken
    uint32_t taken = 0;   // of the peer's
    uint32_t told = 0;    // the peer knows of
    bool is_asked = false;
    std::vector<std::byte> mirror;  // of the ring in the peer's window
  };
  // Where the next cell of a peer will be, and its word. Apart from the rest: looks go over those of all peers.
  struct Awaited {
    const std::byte* cell = nullptr;
    uint64_t word = 0;
  };
  void await_next(uint32_t peer) {
    const Pair& pair = pairs_[peer];
    awaited_[peer] = {windows_.data() + offset_ + layout_.cell_offset(peer, pair.taken),
                      message_word(pair.in, pair.taken + 1)};
  }
  void look_for_taken(uint32_t peer);
  uint32_t free_places(uint32_t peer);
  void read_header(const std::byte* cell, uint32_t count, MessageHeader* header) const;

  static constexpr size_t kMostEager = size_t{64} << 10;

  const uint32_t rank_;
  const PeerWindows& windows_;
  const uint64_t offset_;
  const MessageLayout layout_;
  std::vector<Pair> pairs_;  // by rank
  std::vector<Awaited> awaited_;
};

}  // namespace mep

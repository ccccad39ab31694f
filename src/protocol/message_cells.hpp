// Messages between two ranks are made of cells, in rings of one writer and one reader.
//
// In a comm of R ranks each rank's window has, from some offset on:
//
//   taken   [R] a line    by the peer that the line is for: how many cells of this rank it has taken
//   cells   [R][cells]    by source rank, whose ring it is
//
//   cell:   u64 word | MessageHeader | payload
//   word:   bit 63      always 1, so zero is never a word
//           bits 32-62  the pair: a hash of both ranks' incarnations, in the order source, target
//           bits 0-31   how many cells the source has posted, this one included; of a taken word: how many
//                       the target has taken
//
// A cell lies at place count % cells, from 0. One whose payload is larger than a place goes on over those behind it, up to
// half of the ring's and never over its end, and counts for as many cells as it has places. Where it does not fit before
// the end, a kSkip has the places that are left. The reader zeroes the words of the further places before the source may
// write them again: payload never looks like a word.
//
// A rank that takes another's place makes another pair, which begins at 0: what its predecessor left never looks like
// its cells. Counts wrap; a source is at most `cells` ahead of its reader.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mep {

enum class CellKind : uint32_t {
  kEager = 1,  // a whole message
  kRequest,    // there is a message that does not fit a cell
  kClear,      // to its sender: a receive has taken it, send the data; perhaps with a target
  kData,       // the next part of it; without payload: all of it was put to the target
  kGone,       // its sender has withdrawn it
  kLeaving,    // the source wants to know at once how many cells were taken
  kPulled,     // to its sender: all of it was read in the sender's memory
  kConfirmed,  // its sender had not withdrawn it when that came
  kSkip,       // nothing; its part_bytes are not there
};

struct MessageHeader {
  CellKind kind{};
  int32_t tag = 0;
  uint64_t bytes = 0;     // of the whole message
  uint64_t sender = 0;    // number of the send at its rank
  uint64_t receiver = 0;  // number of the receive at its rank
  uint32_t dtype = 0;
  uint32_t part_bytes = 0;  // in this cell
};
static_assert(sizeof(MessageHeader) == 40);

// The payload of a request whose receiver may read the message in the sender's memory. Without it the data comes in
// cells.
struct MessageMemory {
  uint64_t data = 0;     // an address at the sender
  uint64_t word_at = 0;  // where its watched word is (base/peer_memory.hpp),
  uint64_t word = 0;     // and what that shows as long as the sender has withdrawn nothing
};
static_assert(sizeof(MessageMemory) == 24);

// The payload of a clear whose sender may put the data straight into the receive's buffer.
struct MessageTarget {
  uint64_t number = 0;  // see WindowExchange::open_target()
};

// Where things lie. Fewer and smaller cells for many ranks, for each has a ring of every other.
struct MessageLayout {
  static constexpr size_t kLine = 64;
  static constexpr size_t kHeaderOffset = sizeof(uint64_t);
  static constexpr size_t kPayloadOffset = kHeaderOffset + sizeof(MessageHeader);

  uint32_t ranks = 0;
  uint32_t cells = 0;  // a power of two
  size_t cell_bytes = 0;

  static constexpr MessageLayout of(uint32_t ranks) {
    if (ranks <= 16) return {ranks, 32, 8192};
    if (ranks <= 64) return {ranks, 16, 4096};
    return {ranks, 8, 1024};
  }
  constexpr size_t payload_bytes() const { return cell_bytes - kPayloadOffset; }
  // With so many places.
  constexpr size_t payload_bytes(uint32_t places) const {
    return places * cell_bytes - kPayloadOffset;
  }
  constexpr size_t most_payload_bytes() const { return payload_bytes(cells / 2); }
  constexpr uint32_t places(size_t payload) const {
    return static_cast<uint32_t>((kPayloadOffset + payload + cell_bytes - 1) / cell_bytes);
  }
  // From the place of this count on, itself included.
  constexpr uint32_t places_to_end(uint32_t count) const { return cells - (count & (cells - 1)); }
  constexpr size_t ring_bytes() const { return cells * cell_bytes; }
  constexpr size_t window_bytes() const { return ranks * (kLine + ring_bytes()); }
  constexpr uint64_t taken_offset(uint32_t rank) const { return rank * kLine; }
  constexpr uint64_t cell_offset(uint32_t source, uint32_t count) const {
    return ranks * kLine + source * ring_bytes() + place(count);
  }
  // In its ring.
  constexpr uint64_t place(uint32_t count) const { return (count & (cells - 1)) * cell_bytes; }
};

// 31 bits of both incarnations.
constexpr uint32_t message_pair(uint64_t source_incarnation, uint64_t target_incarnation) {
  uint64_t hash = source_incarnation * 0x9e3779b97f4a7c15u;
  hash = (hash ^ (hash >> 29) ^ target_incarnation) * 0xbf58476d1ce4e5b9u;
  return static_cast<uint32_t>(hash >> 33);
}

constexpr uint64_t message_word(uint32_t pair, uint32_t count) {
  return (uint64_t{1} << 63) | (uint64_t{pair} << 32) | count;
}
constexpr bool is_of_pair(uint64_t word, uint32_t pair) {
  return word >> 32 == message_word(pair, 0) >> 32;
}
constexpr uint32_t message_count(uint64_t word) {
  return static_cast<uint32_t>(word);
}

}  // namespace mep

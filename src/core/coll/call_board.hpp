// Calls that did not fit together, as their ranks tell them. A rank that has found a mismatch writes its call to
// every live peer, so that the texts of all name both calls. No operation waits for it but one that has failed.
// A root that waits for nobody finds none; its contribution says what it called.
//
//   cards   [size][8] 32 bytes, of operation seq the card seq % 8; each with one writer: u64 which operation, u64 what,
//           u64 count. A rank may be some operations ahead of one that still reads.
//   which   counted_signal(epoch, seq), written last; 0 while the rest changes
//   what    bits 0-31 root, 32-39 kind, 40-47 type, 48-55 operator, 56-63 purpose
//
// All three words are signals: a reader may look while the writer begins again in a later operation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/coll/operation.hpp"
#include "core/operation/posting_gate.hpp"
#include "core/world/remote.hpp"

namespace mep {

// "allreduce", or the calls that it is part of
const char* name_of_call(Collective kind, const CollectiveArgs& args);
// "mep_allreduce of 10 float32 (sum)"
std::string text_of_call(Collective kind, const CollectiveArgs& args);

class CallBoard {
 public:
  static constexpr size_t kAlignment = 64;
  // The last operations that may be asked for.
  static constexpr uint64_t kCards = 8;
  static size_t window_bytes(uint32_t size) { return size * kCards * kCardBytes; }

  // `remotes` by comm rank, the own one included, outlives this object; `offset` of the cards in a window.
  void open(uint32_t rank, size_t offset, const std::vector<Remote>* remotes) {
    rank_ = rank;
    offset_ = offset;
    remotes_ = remotes;
  }
  // The user's thread. For a later operation by which a mismatch in this one shows.
  void note(const Operation& operation) { own_[operation.seq % kCards] = card_of(operation); }
  // Best effort: a peer that does not get it names this rank's call no closer.
  void publish(const Operation& operation, const std::vector<uint32_t>& live,
               const PostingScope& posting);
  // Whether what `source` called as operation `seq` is here; of this rank: whether it was noted or published.
  bool read(uint64_t epoch, uint64_t seq, uint32_t source, Collective* kind,
            CollectiveArgs* args) const;

 private:
  static constexpr size_t kCardBytes = 32;
  struct Card {
    uint64_t which = 0;
    uint64_t what = 0;
    uint64_t count = 0;
  };
  static Card card_of(const Operation& operation);
  Card load(uint32_t source, uint64_t seq) const;
  size_t card(uint32_t source, uint64_t seq) const {
    return offset_ + (source * kCards + seq % kCards) * kCardBytes;
  }

  uint32_t rank_ = 0;
  size_t offset_ = 0;
  const std::vector<Remote>* remotes_ = nullptr;
  std::array<Card, kCards> own_{};
};

}  // namespace mep

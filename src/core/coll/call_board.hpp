// Calls that did not fit together, as their ranks tell them. A rank that has found a mismatch writes its call to
// every live peer, so that the texts of all name both calls. No operation waits for it but one that has failed.
//
//   cards   [size][8] 32 bytes, of operation seq the card seq % 8; each with one writer: u64 which operation, u64 what,
//           u64 count. A rank may be some operations ahead of one that still reads.
//   which   counted_signal(epoch, seq), written last; 0 while the rest changes
//   what    bits 0-31 root, 32-39 kind, 40-47 type, 48-55 operator, 56-63 purpose
//
// All three words are signals: a reader may look while the writer begins again in a later operation.
#pragma once

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
  static size_t window_bytes(uint32_t size) { return size * kCards * kCardBytes; }

  // `remotes` by comm rank, the own one included, outlives this object; `offset` of the cards in a window.
  void open(uint32_t rank, size_t offset, const std::vector<Remote>* remotes) {
    rank_ = rank;
    offset_ = offset;
    remotes_ = remotes;
  }
  // The user's thread. Best effort: a peer that does not get it names this rank's call no closer.
  void publish(const Operation& operation, const std::vector<uint32_t>& live,
               const PostingScope& posting) const;
  // Whether what `source` called as this operation is here.
  bool read(const Operation& operation, uint32_t source, CollectiveArgs* args,
            Collective* kind) const;

 private:
  static constexpr size_t kCards = 8;
  static constexpr size_t kCardBytes = 32;
  size_t card(uint32_t source, uint64_t seq) const {
    return offset_ + (source * kCards + seq % kCards) * kCardBytes;
  }

  uint32_t rank_ = 0;
  size_t offset_ = 0;
  const std::vector<Remote>* remotes_ = nullptr;
};

}  // namespace mep

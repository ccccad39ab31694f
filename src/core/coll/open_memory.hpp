// When peers may read a rank's memory in the operations of a comm: from open() until close(), which every end of
// an operation is. See pulled_blocks.hpp.
#pragma once

#include <cstdint>

#include "base/peer_memory.hpp"

namespace mep {

// A rank's entry in an operation: where the others may read during this call.
struct MemoryOffer {
  uint64_t word_at = 0;  // its watched word
  uint64_t word = 0;     // and what that shows; 0: nothing can be read
  uint64_t data = 0;     // the send buffer
};

// The user's thread.
class OpenMemory {
 public:
  // The word shows a value that it has never shown.
  const MemoryOffer& open(const void* data) {
    offer_ = {};
    if (!may_read_ || !word_.make()) return offer_;
    if (last_ == 0) last_ = unguessable_number();
    if (last_ == 0 || ++last_ == 0) return offer_;
    word_.show(last_);
    offer_ = {word_.address(), last_, reinterpret_cast<uintptr_t>(data)};
    return offer_;
  }
  // Nothing is offered in this operation.
  void keep_closed() { offer_ = {}; }
  void close() { word_.hide(); }
  // In the operation that was begun last.
  const MemoryOffer& offer() const { return offer_; }
  bool may_read() const { return may_read_; }
  // This rank offers nothing any more, so no rank of the comm reads another one's memory. False: it was so before.
  bool forbid_reading() {
    const bool before = may_read_;
    may_read_ = false;
    return before;
  }

 private:
  WatchedWord word_;  // made when it is first needed
  MemoryOffer offer_;
  uint64_t last_ = 0;
  bool may_read_ = true;
};

}  // namespace mep

// When peers may read the sends of a comm in this rank's memory. One watched word for all: a send that ends early, so
// that its buffer is the caller's again while someone may read it, changes the word for all.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/peer_memory.hpp"
#include "protocol/message_cells.hpp"

namespace mep {

// The user's thread.
class OfferedMemory {
 public:
  // False: it cannot be offered here.
  bool offer(const std::byte* data, MessageMemory* memory) {
    if (!word_.make()) return false;
    if (word_.value() == 0) {
      if (last_ == 0) last_ = unguessable_number();
      if (last_ == 0 || ++last_ == 0) return false;
      word_.show(last_);
    }
    *memory = {reinterpret_cast<uintptr_t>(data), word_.address(), word_.value()};
    return true;
  }
  // A message that was offered until now counts only where this rank confirms it.
  void withdraw() { word_.hide(); }

 private:
  WatchedWord word_;  // made when it is first needed
  uint64_t last_ = 0;
};

}  // namespace mep

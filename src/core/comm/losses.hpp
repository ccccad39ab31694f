// Which ranks of a comm have gone, as its callers see it: a loss shows until a caller to whom it was shown forgets it.
//
// By rank, an epoch: the first in which it was absent, 0 while it is there; of the loss that was shown last; of the one
// that was forgotten. So a rank that comes back and goes again shows again.
//
// The control thread writes the first, in pinned memory where the comm has a GPU. The other two are the caller's thread's,
// or its stream's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/operation/comm_view.hpp"

namespace mep {

class Losses {
 public:
  explicit Losses(uint32_t ranks);
  uint32_t ranks() const { return ranks_; }

  // --- Under the lock of ViewParticipants, as the control thread ---
  void note(const CommView& now);
  static size_t bytes(uint32_t ranks) { return words(ranks) * sizeof(uint64_t); }
  // From now on in this memory, of bytes(ranks()); null: in the object's own.
  void move_to(uint64_t* memory);

  // --- The caller's thread, on hosts ---
  void show(int32_t* lost);
  void forget();
  // For kernels: ranks() words each.
  uint64_t* gone() const { return words_; }
  uint64_t* shown() const { return words_ + ranks_; }
  uint64_t* forgotten() const { return words_ + size_t{2} * ranks_; }

 private:
  static size_t words(uint32_t ranks) { return size_t{3} * ranks; }

  const uint32_t ranks_;
  const std::unique_ptr<uint64_t[]> own_;
  uint64_t* words_;
};

}  // namespace mep

#include "core/comm/losses.hpp"

#include <algorithm>
#include <atomic>

namespace mep {

Losses::Losses(uint32_t ranks)
    : ranks_(ranks), own_(std::make_unique<uint64_t[]>(words(ranks))), words_(own_.get()) {}

void Losses::note(const CommView& now) {
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    const std::atomic_ref<uint64_t> gone(this->gone()[rank]);
    // Relaxed: its writers hold the lock.
    const uint64_t before = gone.load(std::memory_order_relaxed);
    const uint64_t first = before != 0 ? before : now.epoch;
    // Release: a reader that sees the view, or that its kernel was ended, finds the loss.
    gone.store(now.is_live(rank) ? 0 : first, std::memory_order_release);
  }
}

void Losses::move_to(uint64_t* memory) {
  uint64_t* const to = memory != nullptr ? memory : own_.get();
  if (to != words_) std::copy_n(words_, words(ranks_), to);
  words_ = to;
}

void Losses::show(int32_t* lost) {
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    const std::atomic_ref<uint64_t> gone(this->gone()[rank]);
    // Acquire: see note().
    shown()[rank] = gone.load(std::memory_order_acquire);
    lost[rank] = shown()[rank] > forgotten()[rank] ? 1 : 0;
  }
}

void Losses::forget() {
  std::copy_n(shown(), ranks_, forgotten());
}

}  // namespace mep

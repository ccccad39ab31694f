#include "core/coll/cells.hpp"

#include <algorithm>

#include "base/status.hpp"

namespace mep {

void Cells::open(uint32_t rank, const std::vector<Remote>* remotes, std::byte* window) {
  rank_ = rank;
  size_ = static_cast<uint32_t>(remotes->size());
  remotes_ = remotes;
  window_ = window;
}

void Cells::restart(uint64_t epoch, uint64_t next, const std::vector<uint32_t>& live) {
  live_ = live;
  epoch_ = epoch;
  first_ = next;
  passed_by_all_ = next - 1;
  all_signalled_ = next - 1;
}

mep_result_t Cells::post_to_all(const Operation& operation, const void* payload, size_t bytes,
                                bool from_root) {
  const uint64_t offset = cell_offset(operation.seq, rank_);
  const uint64_t word =
      tag(operation.epoch, operation.seq) | operation.fingerprint | (from_root ? kRooted : 0u);
  // The own copy first: what a peer has been given can always be given again from here.
  MEP_TRY((*remotes_)[rank_].put(offset + sizeof word, payload, bytes));
  reinterpret_cast<std::atomic<uint64_t>*>(window_ + offset)
      // Release: the control thread that copies contributions out sees the payload.
      ->store(word, std::memory_order_release);
  for (const uint32_t peer : live_) {
    if (peer == rank_) continue;
    const Remote& remote = (*remotes_)[peer];
    if (bytes != 0) MEP_TRY(remote.put(offset + sizeof word, payload, bytes));
    MEP_TRY(remote.signal(offset, word));
  }
  return MEP_SUCCESS;
}

mep_result_t Cells::note_done(const Operation& operation) {
  if (operation.seq - all_signalled_ < kDepth / 2) return MEP_SUCCESS;
  all_signalled_ = operation.seq;
  const uint64_t word = signal_tag(operation.epoch, 0) | (operation.seq & kSignalPayloadMask);
  for (const uint32_t peer : live_) {
    if (peer != rank_) MEP_TRY((*remotes_)[peer].signal(passed_offset(rank_), word));
  }
  return MEP_SUCCESS;
}

bool Cells::look_for_passed(uint64_t seq) {
  const uint64_t epoch_tag = signal_tag(epoch_, 0);
  uint64_t lowest = seq;
  for (const uint32_t peer : live_) {
    if (peer == rank_) continue;
    const uint64_t word = load_signal(window_, passed_offset(peer));
    if (!signal_matches(word, epoch_tag)) return false;
    // The word has the low 24 bits of a seq that is at most a ring behind or ahead of this one.
    const uint64_t distance = (seq - word) & kSignalPayloadMask;
    const uint64_t passed =
        distance > kSignalPayloadMask / 2 ? seq : (distance < seq ? seq - distance : 0);
    lowest = std::min(lowest, passed);
  }
  passed_by_all_ = std::max(passed_by_all_, lowest);
  return seq <= passed_by_all_ + kDepth;
}

bool Cells::retain(uint64_t epoch, uint64_t seq, RetainedOperation* out) const {
  if (seq < first_) return false;
  out->sources.clear();
  out->bytes.clear();
  const auto take = [&](uint32_t source) {
    const std::byte* bytes = payload(seq, source);
    out->sources.push_back(source);
    out->bytes.emplace_back(bytes, bytes + kPayloadBytes);
  };
  const uint64_t expected = tag(epoch, seq);
  uint32_t present = 0;
  for (const uint32_t source : live_) {
    const uint64_t word = load_signal(window_, cell_offset(seq, source));
    if (!signal_matches(word, expected)) continue;
    if ((signal_payload(word) & kRooted) != 0) {
      out->sources.clear();
      out->bytes.clear();
      take(source);
      return true;
    }
    ++present;
  }
  if (present != live_.size()) return false;
  for (const uint32_t source : live_) take(source);
  return true;
}

void Cells::zero_words() {
  const auto zero = [this](uint64_t offset) {
    // Relaxed: nobody posts before the next view is installed, and that install is published by locks.
    reinterpret_cast<std::atomic<uint64_t>*>(window_ + offset)->store(0, std::memory_order_relaxed);
  };
  for (uint64_t slot = 0; slot < kDepth; ++slot) {
    for (uint32_t source = 0; source < size_; ++source) zero(cell_offset(slot, source));
  }
  for (uint32_t source = 0; source < size_; ++source) zero(passed_offset(source));
}

}  // namespace mep

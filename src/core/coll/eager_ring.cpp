#include "core/coll/eager_ring.hpp"

#include <algorithm>
#include <cstring>

#include "base/status.hpp"
#include "base/test_delay.hpp"

namespace mep {

void EagerRing::open(uint32_t rank, const std::vector<Remote>* remotes) {
  rank_ = rank;
  size_ = static_cast<uint32_t>(remotes->size());
  depth_ = depth_of(size_);
  slot_bytes_ = slot_bytes_of(size_);
  remotes_ = remotes;
}

void EagerRing::restart(uint64_t epoch, uint64_t next, const std::vector<uint32_t>& live) {
  live_ = live;
  epoch_ = epoch;
  first_ = next;
  passed_by_all_ = next - 1;
  all_signalled_ = next;
  passed_ = next - 1;
  posted_ = next - 1;
  entered_.assign(size_, next);
  set_targets();
}

mep_result_t EagerRing::post_to_all(const Operation& operation, const void* payload, size_t bytes,
                                    uint32_t flags) {
  const uint64_t offset = slot_offset(operation.seq, rank_);
  const uint64_t word = tag(operation.epoch, operation.seq) | operation.fingerprint | flags;
  // The own copy first: what a peer has got can always be given again from here.
  MEP_TRY((*remotes_)[rank_].put(offset + sizeof word, payload, bytes));
  reinterpret_cast<std::atomic<uint64_t>*>(window_ + offset)
      // Release: the control thread that copies contributions out sees the payload.
      ->store(word, std::memory_order_release);
  MEP_TEST_DELAY_POINT("eager post");
  const bool is_direct = (flags & kRooted) != 0 || operation.enters_directly;
  for (const uint32_t peer : is_direct ? rooted_targets_ : targets_) {
    const Remote& remote = (*remotes_)[peer];
    if (bytes != 0) {
      // The own copy outlives the call, which a transport that sends later needs.
      const void* from = remote.mapped != nullptr ? payload : window_ + offset + sizeof word;
      MEP_TRY(remote.put(offset + sizeof word, from, bytes));
    }
    MEP_TRY(remote.signal(offset, word));
  }
  posted_ = operation.seq;
  return MEP_SUCCESS;
}

mep_result_t EagerRing::show_call(const Operation& operation) {
  return posted_ == operation.seq ? MEP_SUCCESS : post_to_all(operation, nullptr, 0);
}

// Acknowledges seq - 1, because seq is not committed yet: if the channel is frozen first, the control thread reads
// the slots of seq, and no peer may have written to them again by then.
mep_result_t EagerRing::acknowledge(const Operation& operation) {
  passed_ = operation.seq - 1;
  if (operation.seq - all_signalled_ < depth_ / 2) return MEP_SUCCESS;
  const uint64_t word = acknowledgement(operation.epoch, passed_);
  for (const uint32_t peer : targets_) {
    MEP_TRY((*remotes_)[peer].signal(acknowledgement_offset(rank_), word));
  }
  all_signalled_ = operation.seq;
  return MEP_SUCCESS;
}

bool EagerRing::look_for_acknowledgements(uint64_t seq) {
  uint64_t lowest = seq;
  for (const uint32_t peer : acknowledgement_sources_) lowest = std::min(lowest, passed_by(peer));
  passed_by_all_ = std::max(passed_by_all_, lowest);
  return seq <= passed_by_all_ + depth_;
}

bool EagerRing::retain(uint64_t epoch, uint64_t seq, RetainedOperation* out) const {
  if (window_ == nullptr || seq < first_) return false;  // null: the comm is being made
  out->sources.clear();
  out->contributions.clear();
  const auto take = [&](uint32_t source, uint64_t word) {
    out->sources.push_back(source);
    std::vector<std::byte>& contribution = out->contributions.emplace_back(slot_bytes_);
    std::memcpy(contribution.data(), &word, sizeof word);
    std::memcpy(contribution.data() + sizeof word, payload(seq, source), slot_bytes_ - sizeof word);
  };
  const uint64_t expected = tag(epoch, seq);
  for (const uint32_t source : live_) {
    const uint64_t word = load_signal(window_, slot_offset(seq, source));
    if (!signal_matches(word, expected)) continue;
    if ((signal_payload(word) & kEntryOnly) != 0) return false;
    if (is_rooted(word)) {
      out->sources.clear();
      out->contributions.clear();
      take(source, word);
      return true;
    }
    take(source, word);
  }
  return out->sources.size() == live_.size();
}

bool EagerRing::differs(const Operation& operation, uint32_t* source) const {
  for (const uint32_t peer : live_) {
    bool mismatch = false;
    if (peer == rank_ || !arrived(operation, peer, &mismatch) || !mismatch) continue;
    *source = peer;
    return true;
  }
  return false;
}

bool EagerRing::same_call(const RetainedOperation& retained, uint32_t fingerprint) {
  return std::all_of(retained.contributions.begin(), retained.contributions.end(),
                     [=](const auto& contribution) {
                       uint64_t word = 0;
                       std::memcpy(&word, contribution.data(), sizeof word);
                       return ((signal_payload(word) ^ fingerprint) & kFingerprintMask) == 0;
                     });
}

void EagerRing::zero_words() {
  if (window_ == nullptr) return;
  const auto zero = [this](uint64_t offset) { zero_signal(window_, offset); };
  for (uint64_t use = 0; use < depth_; ++use) {
    for (uint32_t source = 0; source < size_; ++source) zero(slot_offset(use, source));
  }
  for (uint32_t source = 0; source < size_; ++source) zero(acknowledgement_offset(source));
  for (uint64_t use = 0; use < depth_; ++use) {
    for (uint32_t leader = 0; leader < size_; ++leader) zero(batch_word_offset(use, leader));
  }
}

}  // namespace mep

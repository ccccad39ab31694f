#include "core/coll/eager_ring.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

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
  last_.posted = next - 1;
  last_.long_or_failed = next - 1;
  std::fill(std::begin(last_.in_area), std::end(last_.in_area), next - 1);
  entered_.assign(size_, next);
  set_targets();
}

mep_result_t EagerRing::post_to_all(const Operation& operation, const void* payload, size_t bytes,
                                    uint32_t flags) {
  const uint64_t offset = slot_offset(operation.seq, rank_);
  const uint64_t word = tag(operation.epoch, operation.seq) | operation.fingerprint | flags;
  const bool goes_long = is_long(word) && bytes != 0;
  const uint64_t data =
      goes_long ? long_offset(operation.seq, rank_) + kLine : offset + sizeof word;
  // The own copy first: what a peer has got can always be given again from here.
  MEP_TRY((*remotes_)[rank_].put(data, payload, bytes));
  if (goes_long) write_heading(operation);
  const size_t heading = goes_long ? kLine : 0;
  reinterpret_cast<std::atomic<uint64_t>*>(window_ + offset)
      // Release: the control thread that copies contributions out sees the payload.
      ->store(word, std::memory_order_release);
  MEP_TEST_DELAY_POINT("eager post");
  const bool is_direct = (flags & kRooted) != 0 || operation.enters_directly;
  for (const uint32_t peer : is_direct ? rooted_targets_ : targets_) {
    const Remote& remote = (*remotes_)[peer];
    if (bytes != 0) {
      // The own copy outlives the call, which a transport that sends later needs.
      const bool is_copied = remote.mapped != nullptr && !goes_long;
      const void* from = is_copied ? payload : window_ + data - heading;
      MEP_TRY(remote.put(data - heading, from, heading + bytes));
    }
    MEP_TRY(remote.signal(offset, word));
  }
  last_.posted = operation.seq;
  return MEP_SUCCESS;
}

mep_result_t EagerRing::show_call(const Operation& operation) {
  return last_.posted == operation.seq ? MEP_SUCCESS : post_to_all(operation, nullptr, 0);
}

// Acknowledges seq - 1, because seq is not committed yet: if the channel is frozen first, the control thread reads
// the slots of seq, and no peer may have written to them again by then.
mep_result_t EagerRing::acknowledge(const Operation& operation) {
  passed_ = operation.seq - 1;
  if (operation.is_long || operation.result != MEP_SUCCESS) {
    last_.long_or_failed = operation.seq;
  }
  if (passed_ < due_at(all_signalled_ - 1)) return MEP_SUCCESS;
  const uint64_t word = acknowledgement(operation.epoch, passed_);
  for (const uint32_t peer : targets_) {
    MEP_TRY((*remotes_)[peer].signal(acknowledgement_offset(rank_), word));
  }
  all_signalled_ = operation.seq;
  return MEP_SUCCESS;
}

// Bits 0-31 kind, 32-63 type; then the count.
void EagerRing::write_heading(const Operation& operation) {
  const uint64_t heading[] = {
      static_cast<uint64_t>(operation.kind) | uint64_t{operation.args.dtype} << 32,
      operation.args.count};
  static_assert(sizeof heading <= kLine);
  std::memcpy(window_ + long_offset(operation.seq, rank_), heading, sizeof heading);
  last_.in_area[operation.seq % kLongUses] = operation.seq;
}

bool EagerRing::call_in_heading(uint64_t seq, uint32_t source, Collective* kind,
                                CollectiveArgs* args) const {
  uint64_t heading[2];
  std::memcpy(heading, window_ + long_offset(seq, source), sizeof heading);
  *kind = static_cast<Collective>(heading[0] & 0xffffffff);
  args->dtype = static_cast<mep_dtype_t>(heading[0] >> 32);
  args->count = heading[1];
  args->root = static_cast<int32_t>(source);
  return is_collective(*kind) && mep_dtype_size(args->dtype) != 0;
}

bool EagerRing::look_for_acknowledgements(uint64_t seq) {
  uint64_t lowest = seq;
  for (const uint32_t peer : acknowledgement_sources_) lowest = std::min(lowest, passed_by(peer));
  passed_by_all_ = std::max(passed_by_all_, lowest);
  return seq <= passed_by_all_ + depth_;
}

void EagerRing::note_roots(uint64_t seq) {
  for (const uint32_t peer : host_peers_) {
    for (uint64_t n = seq - 1; n > entered_[peer] && n + kLongUses > seq; --n) {
      if (signal_matches(load_signal(window_, slot_offset(n, peer)), tag(epoch_, n))) {
        entered_[peer] = n;
      }
    }
  }
}

bool EagerRing::retain(uint64_t epoch, uint64_t seq, RetainedOperation* out) const {
  if (window_ == nullptr || seq < first_) return false;  // null: the comm is being made
  out->sources.clear();
  out->contributions.clear();
  const auto take = [&](uint32_t source, uint64_t word) {
    out->sources.push_back(source);
    const std::byte* from = is_long(word) ? long_payload(seq, source) : payload(seq, source);
    const size_t bytes = is_long(word) ? kLongBytes : slot_bytes_ - sizeof word;
    std::vector<std::byte>& contribution = out->contributions.emplace_back(sizeof word + bytes);
    std::memcpy(contribution.data(), &word, sizeof word);
    std::memcpy(contribution.data() + sizeof word, from, bytes);
  };
  const uint64_t expected = tag(epoch, seq);
  for (const uint32_t source : live_) {
    const uint64_t word = load_signal(window_, slot_offset(seq, source));
    if (!signal_matches(word, expected)) continue;
    if (is_rooted(word)) {
      out->sources.clear();
      out->contributions.clear();
      take(source, word);
      return true;
    }
    if ((signal_payload(word) & kEntryOnly) != 0) return false;
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

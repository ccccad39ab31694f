// The eager ring over several hosts or through a relay: what host leaders do for the ranks of their hosts, see
// eager_ring.hpp.
//
// A leader has done its part of an operation before it completes the operation itself: it completes only with
// all contributions in its window, and by then it has sent and forwarded everything. So nobody waits for a
// leader that has gone on to something else, except for acknowledgements, which it forwards at its next call.
#include <algorithm>
#include <cstring>

#include "base/status.hpp"
#include "base/test_delay.hpp"
#include "core/coll/counted_blocks.hpp"
#include "core/coll/eager_ring.hpp"

namespace mep {

void EagerRing::set_targets() {
  groups_.assign(live_, *remotes_, rank_);
  const HostGroup& own = groups_.own();
  has_relay_ = own.sharing == 0 && own.ranks.size() > 2;
  through_leaders_ = groups_.all().size() > 1 || has_relay_;
  acts_as_leader_ = through_leaders_ && own.leader() == rank_;
  const bool has_large_slots = !groups_.all_mapped() && size_ <= kMostSentRanks;
  most_.payload = has_large_slots ? kSentPayloadBytes : kMappedPayloadBytes;
  const bool maps_none = std::all_of(
      groups_.all().begin(), groups_.all().end(),
      [](const HostGroup& group) { return group.sharing == 0 || group.ranks.size() == 1; });
  most_.rooted = maps_none && size_ <= kMostLongRanks ? kLongBytes : most_.payload;
  host_peers_.clear();
  std::copy_if(own.ranks.begin(), own.ranks.end(), std::back_inserter(host_peers_),
               [this](uint32_t peer) { return peer != rank_; });
  targets_ = host_peers_;
  if (has_relay_) targets_.clear();
  if (has_relay_ && !acts_as_leader_) targets_.push_back(own.leader());
  rooted_targets_ = host_peers_;
  acknowledgement_sources_ = acts_as_leader_ ? host_peers_ : targets_;
  for (const HostGroup& group : groups_.all()) {
    if (groups_.is_own(group)) continue;
    rooted_targets_.push_back(group.leader());
    acknowledgement_sources_.push_back(group.leader());
  }
  batch_sent_ = first_ - 1;
  taken_seq_ = first_ - 1;
  taken_.assign(groups_.all().size(), true);
  taken_count_ = taken_.size();
  host_acknowledged_ = first_ - 1;
  relayed_acknowledgements_.assign(groups_.all().size(), 0);
}

mep_result_t EagerRing::relay(const Operation& operation) {
  const bool needs_batch = !operation.ends_at_root && !operation.enters_directly;
  if (acts_as_leader_ && batch_sent_ != operation.seq && needs_batch) {
    MEP_TRY(send_batch(operation, true));
  }
  MEP_TRY(take_batches(operation));
  if (!acts_as_leader_) return MEP_SUCCESS;
  if (host_acknowledged_ < last_.long_or_failed) note_roots(operation.seq);
  return relay_acknowledgements();
}

// Nobody forwards what comes later. So whoever waits for it must see a mismatch too: between this rank's
// call and its own, or the one that this rank saw.
mep_result_t EagerRing::relay_rest(const Operation& operation) {
  MEP_TRY(take_batches(operation));
  if (batch_sent_ != operation.seq) MEP_TRY(send_batch(operation, false));
  const uint64_t expected = tag(operation.epoch, operation.seq);
  // Roots of other hosts put their contributions to this rank alone. Only they know how long these are.
  for (const uint32_t source : live_) {
    if (is_on_this_host(source)) continue;
    const uint64_t word = load_signal(window_, slot_offset(operation.seq, source));
    if (!signal_matches(word, expected) || !is_rooted(word)) continue;
    MEP_TRY(forward(operation.seq, source, is_long(word) ? kLongBytes : most_.payload));
  }
  return relay_acknowledgements();
}

// Bytes that the batch of this host has for each contribution: all are equally long, or it is the length of the
// longest of those whose words stand in the batch. A contribution that comes later is not looked at.
size_t EagerRing::stride_of(const Operation& operation, const std::byte* words) const {
  if (operation.counted == nullptr) {
    if (operation.is_long) return 0;  // the words of ranks that wait for the root
    return operation.is_small ? operation.given_bytes : operation.landing_bytes;
  }
  size_t longest = 0;
  for (const uint32_t source : groups_.own().ranks) {
    uint64_t word = 0;
    std::memcpy(&word, words, sizeof word);
    words += sizeof word;
    if (word == 0 || !same_call(word, operation)) continue;
    longest = std::max(longest,
                       counted_contribution_bytes(payload(operation.seq, source), most_.payload));
  }
  return longest;
}

// Contributions that a batch lacks have words of 0: a root's, which goes to each leader itself and may be there
// or on its way, whole; and, where a leader ends the operation as a mismatch, what has not come.
mep_result_t EagerRing::send_batch(const Operation& operation, bool complete_only) {
  const HostGroup& own = groups_.own();
  const uint64_t expected = tag(operation.epoch, operation.seq);
  const uint64_t offset = batch_offset(operation.seq, own);
  std::byte* words = window_ + offset;
  std::byte* payloads = words + own.ranks.size() * sizeof(uint64_t);
  for (size_t i = 0; i < own.ranks.size(); ++i) {
    uint64_t word = load_signal(window_, slot_offset(operation.seq, own.ranks[i]));
    if (!signal_matches(word, expected)) {
      if (complete_only) return MEP_SUCCESS;
      word = 0;
    } else if (is_rooted(word)) {
      word = 0;
    }
    std::memcpy(words + i * sizeof word, &word, sizeof word);
  }
  const size_t stride = stride_of(operation, words);
  for (size_t i = 0; stride != 0 && i < own.ranks.size(); ++i) {
    uint64_t word = 0;
    std::memcpy(&word, words + i * sizeof word, sizeof word);
    if (word == 0) continue;
    std::memcpy(payloads + i * stride, payload(operation.seq, own.ranks[i]), stride);
  }
  MEP_TEST_DELAY_POINT("relay send");
  for (const HostGroup& group : groups_.all()) {
    if (groups_.is_own(group)) continue;
    MEP_TRY(put_batch(operation.seq, own, expected | stride, group.leader()));
  }
  for (const uint32_t peer : host_peers_) {
    if (has_relay_) MEP_TRY(put_batch(operation.seq, own, expected | stride, peer));
  }
  batch_sent_ = operation.seq;
  return MEP_SUCCESS;
}

mep_result_t EagerRing::put_batch(uint64_t seq, const HostGroup& group, uint64_t word,
                                  uint32_t target) const {
  const Remote& remote = (*remotes_)[target];
  const uint64_t offset = batch_offset(seq, group);
  MEP_TRY(remote.put(offset, window_ + offset, batch_bytes(group, word)));
  return remote.signal(batch_word_offset(seq, group.leader()), word);
}

mep_result_t EagerRing::take_batches(const Operation& operation) {
  if (taken_seq_ != operation.seq) {
    taken_seq_ = operation.seq;
    std::fill(taken_.begin(), taken_.end(), false);
    taken_count_ = 0;
  }
  const uint64_t expected = tag(operation.epoch, operation.seq);
  for (size_t i = 0; i < taken_.size(); ++i) {
    const HostGroup& group = groups_.all()[i];
    if (taken_[i]) continue;
    if (!acts_as_leader_ || !groups_.is_own(group)) {
      const uint64_t word = load_signal(window_, batch_word_offset(operation.seq, group.leader()));
      if (!signal_matches(word, expected)) continue;
      MEP_TRY(take_batch(operation.seq, group, expected, signal_payload(word)));
    }
    taken_[i] = true;
    ++taken_count_;
  }
  return MEP_SUCCESS;
}

mep_result_t EagerRing::take_batch(uint64_t seq, const HostGroup& group, uint64_t expected,
                                   size_t stride) {
  if (stride > most_.payload) {
    return fail(MEP_ERR_MISMATCH, "rank %u sent contributions of %zu bytes, more than %zu",
                group.leader(), stride, most_.payload);
  }
  MEP_TEST_DELAY_POINT("relay take");
  unpack_batch(seq, group, expected, stride);
  if (!acts_as_leader_) return MEP_SUCCESS;
  if (has_relay_) {
    for (const uint32_t peer : host_peers_) {
      MEP_TRY(put_batch(seq, group, expected | stride, peer));
    }
    return MEP_SUCCESS;
  }
  for (const uint32_t source : group.ranks) {
    const uint64_t word = load_signal(window_, slot_offset(seq, source));
    if (signal_matches(word, expected) && !is_rooted(word)) MEP_TRY(forward(seq, source, stride));
  }
  return MEP_SUCCESS;
}

// Copies into the slots of this rank's own window what is not there yet: the user's thread may be reading the rest.
void EagerRing::unpack_batch(uint64_t seq, const HostGroup& group, uint64_t expected,
                             size_t stride) {
  const std::byte* words = window_ + batch_offset(seq, group);
  const std::byte* payloads = words + group.ranks.size() * sizeof(uint64_t);
  for (size_t i = 0; i < group.ranks.size(); ++i) {
    uint64_t word = 0;
    std::memcpy(&word, words + i * sizeof word, sizeof word);
    if (!signal_matches(word, expected) || group.ranks[i] == rank_) continue;
    const uint64_t offset = slot_offset(seq, group.ranks[i]);
    if (load_signal(window_, offset) == word) continue;
    if (stride != 0) {
      std::memcpy(window_ + offset + sizeof word, payloads + i * stride, stride);
    }
    reinterpret_cast<std::atomic<uint64_t>*>(window_ + offset)
        // Release: the control thread that copies contributions out sees the payload.
        ->store(word, std::memory_order_release);
  }
}

void EagerRing::absorb_batches(uint64_t epoch, uint64_t seq) {
  if (!through_leaders_ || seq < first_) return;
  const uint64_t expected = tag(epoch, seq);
  for (const HostGroup& group : groups_.all()) {
    const uint64_t word = load_signal(window_, batch_word_offset(seq, group.leader()));
    if (!signal_matches(word, expected) || signal_payload(word) > most_.payload) continue;
    unpack_batch(seq, group, expected, signal_payload(word));
  }
}

mep_result_t EagerRing::forward(uint64_t seq, uint32_t source, size_t bytes) const {
  MEP_TEST_DELAY_POINT("relay forward");
  const uint64_t offset = slot_offset(seq, source);
  const uint64_t word = load_signal(window_, offset);
  const uint64_t data = is_long(word) ? long_offset(seq, source) : offset + sizeof word;
  const size_t heading = is_long(word) ? kLine : 0;
  for (const uint32_t peer : host_peers_) {
    const Remote& remote = (*remotes_)[peer];
    if (bytes != 0) MEP_TRY(remote.put(data, window_ + data, heading + bytes));
    MEP_TRY(remote.signal(offset, word));
  }
  return MEP_SUCCESS;
}

uint64_t EagerRing::passed_by(uint32_t peer) const {
  const uint64_t word = load_signal(window_, acknowledgement_offset(peer));
  const uint64_t known =
      speaks_for_itself(peer) ? std::max(passed_by_all_, entered_[peer] - 1) : passed_by_all_;
  if (((word ^ acknowledgement(epoch_, 0)) & ~kAcknowledgedSeqMask) != 0) return known;
  return std::max(known, word & kAcknowledgedSeqMask);
}

mep_result_t EagerRing::relay_acknowledgements() {
  uint64_t lowest = passed_;
  for (const uint32_t peer : host_peers_) lowest = std::min(lowest, passed_by(peer));
  const bool is_due = lowest >= due_at(host_acknowledged_);
  if (is_due && has_relay_) {
    for (const uint32_t peer : host_peers_) {
      MEP_TRY(
          (*remotes_)[peer].signal(acknowledgement_offset(rank_), acknowledgement(epoch_, lowest)));
    }
  }
  for (size_t i = 0; i < relayed_acknowledgements_.size(); ++i) {
    const HostGroup& group = groups_.all()[i];
    if (groups_.is_own(group)) continue;
    if (is_due) {
      MEP_TRY((*remotes_)[group.leader()].signal(acknowledgement_offset(rank_),
                                                 acknowledgement(epoch_, lowest)));
    }
    const uint64_t word = load_signal(window_, acknowledgement_offset(group.leader()));
    if (((word ^ acknowledgement(epoch_, 0)) & ~kAcknowledgedSeqMask) != 0 ||
        word == relayed_acknowledgements_[i]) {
      continue;
    }
    for (const uint32_t peer : host_peers_) {
      MEP_TRY((*remotes_)[peer].signal(acknowledgement_offset(group.leader()), word));
    }
    relayed_acknowledgements_[i] = word;
  }
  if (is_due) host_acknowledged_ = lowest;
  return MEP_SUCCESS;
}

}  // namespace mep

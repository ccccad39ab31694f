// Cells over several hosts or through a hub: what the leaders do for the ranks of their hosts, see cells.hpp.
//
// A leader's part of an operation is done before the operation is done for itself: it completes only with
// all cells in its window, and by then it has sent and given on everything. So nobody waits for a leader
// that has gone on to something else, but for "passed" words, which it gives on at its next call.
#include <algorithm>
#include <cstring>

#include "base/status.hpp"
#include "base/test_delay.hpp"
#include "core/coll/cells.hpp"
#include "core/coll/counted_blocks.hpp"

namespace mep {

void Cells::set_targets() {
  groups_.assign(live_, *remotes_, rank_);
  const HostGroup& own = groups_.own();
  hub_ = own.sharing == 0 && own.ranks.size() > 2;
  through_leaders_ = groups_.all().size() > 1 || hub_;
  relays_ = through_leaders_ && own.leader() == rank_;
  const bool has_large_cells = !groups_.all_mapped() && size_ <= kMostSentRanks;
  payload_bytes_ = has_large_cells ? kSentPayloadBytes : kMappedPayloadBytes;
  host_peers_.clear();
  std::copy_if(own.ranks.begin(), own.ranks.end(), std::back_inserter(host_peers_),
               [this](uint32_t peer) { return peer != rank_; });
  targets_ = host_peers_;
  if (hub_) targets_.clear();
  if (hub_ && !relays_) targets_.push_back(own.leader());
  rooted_targets_ = host_peers_;
  passed_sources_ = relays_ ? host_peers_ : targets_;
  for (const HostGroup& group : groups_.all()) {
    if (groups_.is_own(group)) continue;
    rooted_targets_.push_back(group.leader());
    passed_sources_.push_back(group.leader());
  }
  block_sent_ = first_ - 1;
  taken_seq_ = first_ - 1;
  taken_.assign(groups_.all().size(), true);
  taken_count_ = taken_.size();
  told_passed_ = first_ - 1;
  told_here_.assign(groups_.all().size(), 0);
}

mep_result_t Cells::relay(const Operation& operation) {
  if (relays_ && block_sent_ != operation.seq) MEP_TRY(send_block(operation, true));
  MEP_TRY(take_blocks(operation));
  return relays_ ? relay_passed() : MEP_SUCCESS;
}

// What comes later is given on by nobody. So whoever waits for it must see a mismatch too: between
// this rank's call and its own, or the one that this rank saw.
mep_result_t Cells::relay_rest(const Operation& operation) {
  MEP_TRY(take_blocks(operation));
  const uint64_t expected = tag(operation.epoch, operation.seq);
  if (!signal_matches(load_signal(window_, cell_offset(operation.seq, rank_)), expected)) {
    // Its cells are free: somebody has posted in this operation already.
    MEP_TRY(post_to_all(operation, nullptr, 0));
  }
  if (block_sent_ != operation.seq) MEP_TRY(send_block(operation, false));
  // Roots of other hosts gave their cells to this rank alone; how long these are only they know.
  for (const uint32_t source : live_) {
    if (is_on_this_host(source)) continue;
    const uint64_t word = load_signal(window_, cell_offset(operation.seq, source));
    if (!signal_matches(word, expected) || (signal_payload(word) & kRooted) == 0) continue;
    MEP_TRY(forward(operation.seq, source, payload_bytes_));
  }
  return relay_passed();
}

// What each contribution of this host has in its block: all have the same, or as much as the longest of those
// whose words stand in the block. A contribution that comes later is not looked at.
size_t Cells::stride_of(const Operation& operation, const std::byte* words) const {
  if (operation.counted == nullptr) return operation.is_small ? operation.given_bytes : 0;
  size_t longest = 0;
  for (const uint32_t source : groups_.own().ranks) {
    uint64_t word = 0;
    std::memcpy(&word, words, sizeof word);
    words += sizeof word;
    if (word == 0 || !same_call(word, operation)) continue;
    longest = std::max(longest,
                       counted_contribution_bytes(payload(operation.seq, source), payload_bytes_));
  }
  return longest;
}

// Only a leader that ends the operation as a mismatch sends a block that lacks cells: their words are 0.
mep_result_t Cells::send_block(const Operation& operation, bool complete_only) {
  const HostGroup& own = groups_.own();
  const uint64_t expected = tag(operation.epoch, operation.seq);
  const uint64_t offset = block_offset(operation.seq, own);
  std::byte* words = window_ + offset;
  std::byte* payloads = words + own.ranks.size() * sizeof(uint64_t);
  for (size_t i = 0; i < own.ranks.size(); ++i) {
    uint64_t word = load_signal(window_, cell_offset(operation.seq, own.ranks[i]));
    if (!signal_matches(word, expected)) {
      if (complete_only) return MEP_SUCCESS;
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
    MEP_TRY(give_block(operation.seq, own, expected | stride, group.leader()));
  }
  for (const uint32_t peer : host_peers_) {
    if (hub_) MEP_TRY(give_block(operation.seq, own, expected | stride, peer));
  }
  block_sent_ = operation.seq;
  return MEP_SUCCESS;
}

mep_result_t Cells::give_block(uint64_t seq, const HostGroup& group, uint64_t word,
                               uint32_t target) const {
  const Remote& remote = (*remotes_)[target];
  const uint64_t offset = block_offset(seq, group);
  MEP_TRY(remote.put(offset, window_ + offset, block_bytes(group, word)));
  return remote.signal(block_word_offset(seq, group.leader()), word);
}

mep_result_t Cells::take_blocks(const Operation& operation) {
  if (taken_seq_ != operation.seq) {
    taken_seq_ = operation.seq;
    std::fill(taken_.begin(), taken_.end(), false);
    taken_count_ = 0;
  }
  const uint64_t expected = tag(operation.epoch, operation.seq);
  for (size_t i = 0; i < taken_.size(); ++i) {
    const HostGroup& group = groups_.all()[i];
    if (taken_[i]) continue;
    if (!relays_ || !groups_.is_own(group)) {
      const uint64_t word = load_signal(window_, block_word_offset(operation.seq, group.leader()));
      if (!signal_matches(word, expected)) continue;
      MEP_TRY(take_block(operation.seq, group, expected, signal_payload(word)));
    }
    taken_[i] = true;
    ++taken_count_;
  }
  return MEP_SUCCESS;
}

mep_result_t Cells::take_block(uint64_t seq, const HostGroup& group, uint64_t expected,
                               size_t stride) {
  if (stride > payload_bytes_) {
    return fail(MEP_ERR_MISMATCH, "rank %u sent contributions of %zu bytes, more than %zu",
                group.leader(), stride, payload_bytes_);
  }
  MEP_TEST_DELAY_POINT("relay take");
  unpack_block(seq, group, expected, stride);
  if (!relays_) return MEP_SUCCESS;
  if (hub_) {
    for (const uint32_t peer : host_peers_) {
      MEP_TRY(give_block(seq, group, expected | stride, peer));
    }
    return MEP_SUCCESS;
  }
  for (const uint32_t source : group.ranks) {
    const uint64_t word = load_signal(window_, cell_offset(seq, source));
    if (signal_matches(word, expected)) MEP_TRY(forward(seq, source, stride));
  }
  return MEP_SUCCESS;
}

// Into this rank's own window, what is not there yet: the user's thread may be reading what is.
void Cells::unpack_block(uint64_t seq, const HostGroup& group, uint64_t expected, size_t stride) {
  const std::byte* words = window_ + block_offset(seq, group);
  const std::byte* payloads = words + group.ranks.size() * sizeof(uint64_t);
  for (size_t i = 0; i < group.ranks.size(); ++i) {
    uint64_t word = 0;
    std::memcpy(&word, words + i * sizeof word, sizeof word);
    if (!signal_matches(word, expected) || group.ranks[i] == rank_) continue;
    const uint64_t offset = cell_offset(seq, group.ranks[i]);
    if (load_signal(window_, offset) == word) continue;
    if (stride != 0) {
      std::memcpy(window_ + offset + sizeof word, payloads + i * stride, stride);
    }
    reinterpret_cast<std::atomic<uint64_t>*>(window_ + offset)
        // Release: the control thread that copies contributions out sees the payload.
        ->store(word, std::memory_order_release);
  }
}

void Cells::absorb_blocks(uint64_t epoch, uint64_t seq) {
  if (!through_leaders_ || seq < first_) return;
  const uint64_t expected = tag(epoch, seq);
  for (const HostGroup& group : groups_.all()) {
    const uint64_t word = load_signal(window_, block_word_offset(seq, group.leader()));
    if (!signal_matches(word, expected) || signal_payload(word) > payload_bytes_) continue;
    unpack_block(seq, group, expected, signal_payload(word));
  }
}

mep_result_t Cells::forward(uint64_t seq, uint32_t source, size_t bytes) const {
  MEP_TEST_DELAY_POINT("relay forward");
  const uint64_t offset = cell_offset(seq, source);
  const uint64_t word = load_signal(window_, offset);
  for (const uint32_t peer : host_peers_) {
    const Remote& remote = (*remotes_)[peer];
    if (bytes != 0) {
      MEP_TRY(remote.put(offset + sizeof word, window_ + offset + sizeof word, bytes));
    }
    MEP_TRY(remote.signal(offset, word));
  }
  return MEP_SUCCESS;
}

uint64_t Cells::passed_by(uint32_t peer) const {
  const uint64_t word = load_signal(window_, passed_offset(peer));
  const uint64_t known =
      speaks_for_itself(peer) ? std::max(passed_by_all_, entered_[peer] - 1) : passed_by_all_;
  if (((word ^ passed_word(epoch_, 0)) & ~kPassedSeqMask) != 0) return known;
  return std::max(known, word & kPassedSeqMask);
}

mep_result_t Cells::relay_passed() {
  uint64_t lowest = passed_;
  for (const uint32_t peer : host_peers_) lowest = std::min(lowest, passed_by(peer));
  const bool is_news = lowest >= told_passed_ + depth_ / 2;
  if (is_news && hub_) {
    for (const uint32_t peer : host_peers_) {
      MEP_TRY((*remotes_)[peer].signal(passed_offset(rank_), passed_word(epoch_, lowest)));
    }
  }
  for (size_t i = 0; i < told_here_.size(); ++i) {
    const HostGroup& group = groups_.all()[i];
    if (groups_.is_own(group)) continue;
    if (is_news) {
      MEP_TRY(
          (*remotes_)[group.leader()].signal(passed_offset(rank_), passed_word(epoch_, lowest)));
    }
    const uint64_t word = load_signal(window_, passed_offset(group.leader()));
    if (((word ^ passed_word(epoch_, 0)) & ~kPassedSeqMask) != 0 || word == told_here_[i]) continue;
    for (const uint32_t peer : host_peers_) {
      MEP_TRY((*remotes_)[peer].signal(passed_offset(group.leader()), word));
    }
    told_here_[i] = word;
  }
  if (is_news) told_passed_ = lowest;
  return MEP_SUCCESS;
}

}  // namespace mep
